"""Values read from texts: confidence, reasoning, common words, suites."""

import dataclasses
import json
import types
import unicodedata

import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import mixture, pipeline, tokenizers
from jaxrl_reason.evals import (
  accuracy,
  cells,
  contamination,
  loading,
  prompts,
  suites,
  traces,
)
from jaxrl_reason.run import prepare
from jaxrl_reason.verifiers import tasks


@pytest.mark.parametrize(
  'text, want',
  [
    ('48/2 = 24 clips, 48+24 = 72', True),
    ('He has $48/2 = $24. Then 2 x 3 = 6', True),
    ('1,200 + 3 = 1,203', True),
    ('10/3 = 3.33', True),
    ('48/2 = 25, 48+24 = 72', False),
    ('the answer is 72', False),
    ('1/0 = 5', False),
    ('2+' * 500 + '1 = 5', False),
    ('so (1+1 = 2, and 3) is it', True),
    ('so (1+(1 = 2', False),
    ('(2+3)*4 = 20', True),
    ('9**9**9 = 1', False),
  ],
)
def test_equations(text, want):
  assert traces.check(text, {'task': 'gsm8k'}) is want


@pytest.mark.parametrize('name', sorted(traces.CHECKS.keys() - {'gsm8k'}))
def test_reference_solutions_are_sound(name):
  for i in range(20):
    problem = tasks.example(name, 0, i, split='heldout')
    assert traces.check(problem['solution'], problem) is True, problem
    assert traces.check('1+1=3 ' + problem['solution'], problem) is False
  assert traces.check('x', {'task': 'sudoku'}) is None


def test_words_in_common():
  problems = ['How many apples has Ann?', 'a b c d e f', 'One two', 'x y z w']
  training = [
    ('f:1', ['Zero. HOW many apples -- has Bob']),
    ('f:2', ['q', 'one, two!']),
    ('f:3', ['one two three', 'b c d']),
  ]
  found = contamination.hits(problems, training, n=4)
  assert [(h.problem, h.where) for h in found] == [(0, 'f:1'), (2, 'f:2')]
  assert found[0].words == 'how many apples has'
  all_of_it = contamination.hits(problems, training, n=3)
  assert [h.problem for h in all_of_it] == [0, 1, 2]


CHINESE = '小明有十二个苹果，他给了小红五个苹果，又买了三个，现在有多少个苹果？'
THAI = 'มีแอปเปิ้ลสิบสองผลให้เพื่อนไปห้าผลแล้วซื้อเพิ่มอีกสามผลตอนนี้มีกี่ผล'


@pytest.mark.parametrize(
  'problem, training, hit',
  [
    (CHINESE, f'题目：{CHINESE}答案是十。', True),
    (CHINESE, CHINESE[-11:] + '好。', False),  # less than 26 characters
    (THAI, f'โจทย์: {THAI} ตอบ 10', True),
    ('12 + 30?', '12+30', True),
    ('12 + 30?', '12 - 30?', False),
    ('3-1+2=', '3+1-2=', False),
    ('café 1', unicodedata.normalize('NFD', 'Café 1'), True),
    ('a b c d e f g h i j k l m n', 'a-b c d e f g h i j k l m', True),
  ],
)
def test_common_words_of_any_script(problem, training, hit):
  found = contamination.hits([problem], [('f:1', [training])])
  assert bool(found) == hit


def test_suites_by_name(tmp_path):
  path = tmp_path / 'mine.jsonl'
  rows = [{'q': f'1+{i}=', 'a': i + 1} for i in range(3)]
  path.write_text(''.join(json.dumps(r) + '\n' for r in rows))
  found = suites.load(f'{path}?question=q&answer=a&n=2&verifier=exact')
  assert [e['answer'] for e in found.examples] == ['1', '2']
  assert found.name == 'mine' and found.reward == 'exact'
  whole = suites.load(f'{path}?question=q&answer=a')
  assert len(whole.examples) == 3 and whole.digest() != found.digest()
  of = suites.load(
    'task:countdown?min_numbers=3&max_numbers=3&n=5&split=harder'
  )
  assert len(of.examples) == 5
  assert of.name == 'task:countdown/harder?max_numbers=3&min_numbers=3'
  same = suites.load('task:arithmetic?n=4&ops=%2B-&modulus=3')
  assert all('*' not in e['prompt'] for e in same.examples)
  names = [suites.load(f'task:arithmetic?n=1{x}').name for x in ('', '&seed=1')]
  assert names == ['task:arithmetic/heldout', 'task:arithmetic/heldout?seed=1']


def test_suites_with_other_tests_are_others(tmp_path):
  """Verifiers read all fields of a row, such as tests."""
  found = []
  for n in (1, 2):
    row = {'q': 'Double.', 'a': 'x', 'tests': [f'f({n})']}
    (tmp_path / 's.jsonl').write_text(json.dumps(row) + '\n')
    suite = suites.load(f'{tmp_path}/s.jsonl?question=q&answer=a')
    found.append(suite.digest())
    assert suite.digest() == found[-1]
  assert found[0] != found[1]


def test_a_digest_has_no_addresses():
  """Sets and objects have other texts in other processes."""
  digests = [
    suites.Suite('s', [{'prompt': 'q', 'meta': meta}], 'exact').digest()
    for meta in ([object(), {0, 8}], [object(), {8, 0}], [object(), {0, 9}])
  ]
  assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
  'text, says',
  [
    ('nowhere.jsonl', "'nowhere.jsonl': no file"),
    ('task:nothing', 'unknown task'),
    ('task:countdown?max_op=4', "no option 'max_op', but n, seed, split"),
    ('task:countdown?split=left', 'unknown split'),
    ('task:arithmetic?min_ops=x', "'x' is not like"),
    ('task:arithmetic?n=0', "n='0': a whole number of at least 1"),
    ('task:arithmetic?n', "'n' is no new KEY=VALUE"),
    ('run:heldout', 'not the workdir of a run'),
    ('gsm8k?dir=/nowhere', 'train.jsonl is missing'),
    ('gsm8k?split=dev', "split='dev'"),
    ('task:guess?n=2', "the environment 'guess' rewards its moves"),
  ],
)
def test_unknown_suites_are_refused(text, says):
  with pytest.raises(ValueError) as error:
    suites.load(text)
  said = str(error.value)
  assert says in said and said.startswith('suite ') and '\n' not in said


@pytest.mark.parametrize(
  'text, says',
  [
    ('nothing', 'choose one of own, chat'),
    ('qa+shot=3', r'\+shot=3 is none of'),
    ('qa+hint=2', r'\+hint=2 is none of'),
    ('qa+shots=0', r'\+shots=0 is none of'),
    ('chat+shots=2', r'\+shots needs one of'),
  ],
)
def test_invalid_prompts_are_refused(text, says):
  with pytest.raises(ValueError, match=says):
    prompts.parse(text)
  assert prompts.parse('qa+plan+hint=0.5+shots=2').shots == 2


def test_prompts_of_suites():
  found = types.SimpleNamespace(
    tokenizer=tokenizers.ByteTokenizer(), run=None, texts=None, name='x'
  )
  suite = suites.load('task:arithmetic?n=3')
  question, solution = (suite.examples[2][k] for k in ('prompt', 'solution'))
  first = suite.train[0]

  def text(name):
    written = prompts.write(prompts.parse(name), found, suite)
    return found.tokenizer.decode(written.ids[2])

  assert text('none') == question
  assert text('none+plan') == question + prompts.PLAN
  assert text('qa') == f'Question: {question}\nAnswer:'
  solved = f'Question: {first["prompt"]}\nAnswer: {first["solution"]}\n\n'
  assert text('qa+shots=1') == solved + text('qa')
  steps = solution.split(' ')
  half = ' '.join(steps[: len(steps) // 2]) + ' '
  assert text('none+hint=0.5') == question + half


def test_solved_problems_of_prompts_are_not_asked():
  found = types.SimpleNamespace(
    tokenizer=tokenizers.ByteTokenizer(), run=None, texts=None, name='x'
  )
  suite = suites.load('task:arithmetic?n=8&split=train')
  written = prompts.write(prompts.parse('qa+shots=2'), found, suite)
  for ids, example in zip(written.ids, suite.examples, strict=True):
    text = found.tokenizer.decode(ids)
    assert text.count(f'Question: {example["prompt"]}\n') == 1
    assert text.count('Question:') == 3
  whole = dataclasses.replace(suite, train=suite.examples)
  with pytest.raises(ValueError, match='only 0 problems of the train split'):
    prompts.write(prompts.parse('qa+shots=2'), found, whole)


def test_evaluations_repeat_no_problem(caplog):
  """Any order of the numbers is the same problem of countdown. Evaluations of a
  run and suites ask the same problems.
  """
  source = pipeline.TaskSource('countdown', 0, 'heldout', {})
  identity = tasks.get('countdown').identity
  each = [identity(source[i]) for i in range(400)]
  asked = accuracy.make_set(source, 64, tokenizers.ByteTokenizer(), 64)
  suite = suites.load('task:countdown?n=64')
  assert suite.examples == asked.examples
  assert len(set(each[:64])) < 64  # the source itself repeats problems
  assert [*map(identity, suite.examples)] == [*dict.fromkeys(each)][:64]
  assert not caplog.records
  few = suites.load('task:base_conversion')
  asked = {e['prompt'] for e in few.examples}
  assert 32 < len(few.examples) == len(asked) < 128
  assert f'only {len(few.examples)} different' in caplog.text


def test_problems_without_repeats_and_games_stay_as_they_are():
  """A mixture may ask one problem in two ways."""
  source = pipeline.TaskSource('arithmetic', 0, 'heldout', {})
  assert suites.load('task:arithmetic?n=64').examples == [
    source[i] for i in range(64)
  ]
  twice = mixture.InTurns(
    [mixture.Labelled(source, i, name, '') for i, name in enumerate('ab')]
  )
  assert accuracy.first_problems(twice, 8) == [twice[i] for i in range(8)]
  game = pipeline.TaskSource('guess', 0, 'heldout', {})
  assert len(accuracy.first_problems(game, 64)) == 64


def test_the_split_of_a_run_is_the_one_that_it_evaluates(tmp_path):
  """Without problems whose prompt is too long in the template of the run."""
  rows = [
    {'question': f'{i}+1?' + ' Think.' * (i % 2), 'answer': i} for i in range(8)
  ]
  for name, part in (('train', rows[:4]), ('test', rows[4:])):
    lines = ''.join(json.dumps(row) + '\n' for row in part)
    (tmp_path / f'{name}.jsonl').write_text(lines)
  c = config_lib.default()
  limits = dict(prompt_len=24, too_long='drop', template='qa')
  c.data.update(name='files', dir=str(tmp_path), tokenizer='byte', **limits)
  (tmp_path / 'checkpoints').mkdir()
  (tmp_path / 'config.json').write_text(c.to_json_best_effort())
  suite = suites.load('run:heldout', str(tmp_path))
  own = prepare.prepare(c, tmp_path).problems.heldout
  assert [e['prompt'] for e in suite.examples] == [e['prompt'] for e in own]
  assert len(suite.examples) == 2 and len(suite.train) == 4
  c.data.sources = {'a': {}, 'b': dict(name='countdown')}
  c.data.update(prompt_len=40, completion_len=80)
  (tmp_path / 'config.json').write_text(c.to_json_best_effort())
  suite = suites.load('run:heldout/b?n=3', str(tmp_path))
  assert [e['task'] for e in suite.examples] == ['countdown'] * 3
  with pytest.raises(ValueError, match="no split 'heldout/c', but .*heldout/b"):
    suites.load('run:heldout/c', str(tmp_path))
  c.data.sources = {}
  c.data.update(name='tic_tac_toe', dir='')
  (tmp_path / 'config.json').write_text(c.to_json_best_effort())
  with pytest.raises(ValueError, match="'tic_tac_toe' rewards its moves"):
    suites.load('run:heldout', str(tmp_path))


def test_names_of_files_are_short_and_distinct():
  names = {cells.slug('/a/' + 'x' * 200 + str(i)) for i in range(20)}
  assert len(names) == 20 and all(len(n) <= cells.LONGEST + 2 for n in names)
  assert cells.slug('run:a/b') == 'run_a_b'


def test_questions_of_a_mixture_are_searched(tmp_path):
  """Procedural sources have none."""
  for name in ('train', 'test'):
    row = json.dumps({'question': f'{name}: 1+2?', 'answer': '3'})
    (tmp_path / f'{name}.jsonl').write_text(row + '\n')
  c = config_lib.default()
  c.data.sources = {
    'own': dict(name='files', dir=str(tmp_path), weight=1.0),
    'sums': dict(name='arithmetic', weight=1.0),
  }
  assert suites.training_of(c) == ['train: 1+2?']


def test_questions_of_earlier_runs_and_of_other_files_are_searched(tmp_path):
  def write(name, *rows):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return str(path)

  def begin(name, c):
    (tmp_path / name / 'checkpoints').mkdir(parents=True)
    (tmp_path / name / 'config.json').write_text(c.to_json_best_effort())
    return loading.run_of(str(tmp_path / name))

  for name in ('train', 'test'):
    write(f'{name}.jsonl', {'question': f'{name} 1?', 'answer': '3'})
  first = config_lib.default()
  first.data.update(name='files', dir=str(tmp_path))
  first.preference.pairs = write('pairs.jsonl', {'prompt': 'pair 1?'})
  begin('a', first)
  write('taught/answers/x.jsonl', {'prompt': 'taught 1?', 'completion': 'no'})
  asked = [{'role': 'user', 'content': 'labels 1?'}]
  c = config_lib.default()
  c.stages, c.init_from = ('sft', 'more'), str(tmp_path / 'a')
  c.sft.teacher = str(tmp_path / 'taught')
  labels = write('labels.jsonl', {'prompt': asked})
  c.named = {
    'more': {'kind': 'reward_model', 'reward_model': {'labels': labels}}
  }
  found = suites.training_of(begin('b', c))
  for name in ('train', 'pair', 'taught', 'labels'):
    assert f'{name} 1?' in found
  assert 'test 1?' not in found and 'no' not in found
  c.init_from = str(tmp_path / 'gone')
  with pytest.raises(FileNotFoundError, match='init_from=.*gone. is not there'):
    suites.training_of(begin('c', c))


def test_flags_of_chats_are_refused_for_plain_prompts():
  variant, problem = prompts.parse('none'), {'prompt': '1+1'}
  suite = types.SimpleNamespace(name='s', examples=[problem], asks='', train=())
  tokenizer = tokenizers.CharTokenizer('01+')
  found = types.SimpleNamespace(
    name='m', run=None, texts=None, tokenizer=tokenizer
  )
  assert prompts.write(variant, found, suite).ids
  for flag, given in {
    '--system': {'system': 'Think.'}, '--thinking': {'thinking': False}
  }.items():  # fmt: skip
    with pytest.raises(ValueError, match=f'{flag} has no effect on the prompt'):
      prompts.write(variant, found, suite, **given)
