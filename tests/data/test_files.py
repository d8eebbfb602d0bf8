"""Problems in user files: reading, splits and errors."""

import json
import pathlib
import unicodedata

import ml_collections
import numpy as np
import pytest
import tiny_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import example_files as files
from jaxrl_reason.data import lengths, problems, row_fields, row_index
from jaxrl_reason.run import train
from jaxrl_reason.verifiers import compose

GSM8K = pathlib.Path(__file__).parents[3] / 'shared' / 'data' / 'gsm8k'
ROWS = [{'question': f'What is {i} + 1?', 'answer': i + 1} for i in range(200)]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return tmp_path / 'cache'


def write(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  text = (r if isinstance(r, str) else json.dumps(r) for r in rows)
  path.write_text(''.join(line + '\n' for line in text))
  return path


def prompts(examples):
  return [e['prompt'] for e in examples]


def test_rows_become_examples_with_all_fields(tmp_path):
  row = {'problem': 'What is $1+1$?', 'answer': 2, 'tests': ['a'], 'level': 1}
  write(tmp_path / 'train.jsonl', [row, ''])
  write(tmp_path / 'test.jsonl', [row | {'problem': 'Other?'}])
  found = files.load(tmp_path, question='problem')
  assert [*found['train']] == [
    {
      'prompt': 'What is $1+1$?',
      'solution': '2',
      'answer': '2',
      'meta': row,
      'task': 'files',
    }
  ]
  assert prompts(found['test']) == ['Other?']


# Rows in the form in which the published sets are exported.
EXPORTS = {
  'dapo_math_17k': {
    'prompt': [{'content': 'What is $3 + 4$?', 'role': 'user'}],
    'reward_model': {'ground_truth': '7', 'style': 'rule'},
  },
  'math': {
    'problem': 'What is $3 + 4$?',
    'level': 'Level 1',
    'solution': 'Add them:\n\\[3 + 4 = \\boxed{7}.\\]',
  },
  'aime': {'ID': '2024-I-1', 'Problem': 'What is $3 + 4$?', 'Answer': 7},
  'gsm8k': {'question': 'What is $3 + 4$?', 'answer': 'It is\n#### 7'},
}


@pytest.mark.parametrize('name', EXPORTS)
def test_published_sets_differ_in_names_only(name, tmp_path):
  path = write(tmp_path / 'a.jsonl', [*ROWS, EXPORTS[name]])
  found = files.load(
    path,
    question='prompt.0.content,problem,Problem,question',
    answer='reward_model.ground_truth,answer,Answer,solution',
    heldout=0.1,
  )
  (example,) = (
    e for es in found.values() for e in es if e['prompt'] == 'What is $3 + 4$?'
  )
  reward = compose.build('math')
  assert reward('So it is \\boxed{7}.', example).score == 1
  assert reward('So it is \\boxed{8}.', example).score == 0


@pytest.mark.parametrize('name', ['prompt', 'Messages'])
def test_the_question_of_a_conversation_is_the_users(name):
  user = {'role': 'user', 'content': '2+3?'}
  system = {'role': 'system', 'content': 'Add.'}
  for i, row in enumerate([{name: [user]}, {name: [system, user]}]):
    found = row_fields.usual_name(row, 'question')
    assert found == f'{name}.{i}.content'
    assert row_fields.inside(row, found) == '2+3?'


def test_a_whole_number_of_any_size_is_a_text():
  assert row_fields.text_of(10**400) == '1' + '0' * 400
  assert row_fields.text_of(float('inf')) is None


def test_the_share_held_out_stays_when_the_file_grows(tmp_path):
  few = files.load(write(tmp_path / 'a.jsonl', ROWS[:100]), heldout=0.2)
  all_ = files.load(write(tmp_path / 'b.jsonl', ROWS[::-1]), heldout=0.2)
  for split in ('train', 'test'):
    assert set(prompts(few[split])) < set(prompts(all_[split]))
  assert 20 < len(all_['test']) < 60  # of 200; binomial, sd 5.7


def test_a_question_occurs_once_and_in_one_split(tmp_path):
  spaced = [{'question': ' What  is 3 +\n1?', 'answer': '4'}, ROWS[3]]
  write(tmp_path / 'train-00000-of-2.jsonl', [*ROWS[:20], *spaced])
  write(tmp_path / 'train-00001-of-2.jsonl', ROWS[10:30])
  write(tmp_path / 'trainer.jsonl', ROWS[50:60])  # is not a train file
  write(tmp_path / 'test.jsonl', ROWS[25:40])
  found = files.load(tmp_path)
  assert prompts(found['train']) == prompts_of(range(25))
  assert prompts(found['test']) == prompts_of(range(25, 40))


def test_a_question_occurs_once_for_any_form_of_its_accents(tmp_path):
  text = 'Combien de cafés ?'
  forms = [unicodedata.normalize(form, text) for form in ('NFC', 'NFD')]
  assert forms[0] != forms[1]
  rows = [{'question': form, 'answer': 1} for form in forms]
  write(tmp_path / 'test.jsonl', rows[:1])
  write(tmp_path / 'train.jsonl', [*rows[1:], ROWS[0]])
  assert prompts(files.load(tmp_path)['train']) == [ROWS[0]['question']]


def prompts_of(numbers):
  return [ROWS[i]['question'] for i in numbers]


def test_parquet_reads_as_json_lines_do(tmp_path):
  parquet = pytest.importorskip('pyarrow.parquet')
  import pyarrow

  (tmp_path / 'p').mkdir()
  for name, rows in {'train': ROWS[:5], 'test': ROWS[5:9]}.items():
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / 'p' / f'{name}.parquet')
    write(tmp_path / 'j' / f'{name}.jsonl', rows)
  for read in (files.load, again):  # into the cache, and from there
    found = [read(tmp_path / kind) for kind in 'pj']
    for split in ('train', 'test'):
      assert [*found[0][split]] == [*found[1][split]], split


def again(path):
  """Loads files whose rows must not be read: the cache has the index."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(row_index, '_make', None)
    return files.load(path)


def test_a_file_is_indexed_once_and_again_when_it_has_changed(tmp_path, cache):
  path = write(tmp_path / 'a.jsonl', [ROWS[0], '', *ROWS[1:]])
  found = files.load(path)
  before = {split: [*examples] for split, examples in found.items()}
  assert {k: [*v] for k, v in again(path).items()} == before
  write(path, ROWS[:150])
  assert sum(map(len, files.load(path).values())) == 150
  (kept,) = cache.rglob('*.npy')  # that of the old file is removed
  entries = np.load(kept)
  lines = path.read_bytes()
  assert [lines[e['at'] :].split(b'\n')[0] for e in entries] == [
    json.dumps(row).encode() for row in ROWS[:150]
  ]
  assert entries['row'].tolist() == [*range(1, 151)]


def test_a_file_that_changes_during_a_run_is_named(tmp_path):
  """The process does not crash, and no other problem is read."""
  path = write(tmp_path / 'a.jsonl', ROWS[:150])
  found = files.load(path)
  rows = [ROWS[i] | {'question': f'Is it {i} + 1?!'} for i in range(150)]
  with path.open('r+') as f:  # in place, as editors do not, but `cp` does
    f.truncate(200)
    f.write(''.join(json.dumps(r) + '\n' for r in rows[:20]))
  for i in (0, -1):  # another question, and past the end
    with pytest.raises(ValueError, match=f'{path}, row .*changed since the ru'):
      found['train'][i]


def test_an_index_that_cannot_be_cached_is_built_in_memory(
  monkeypatch, tmp_path
):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  found = files.load(write(tmp_path / 'a.jsonl', ROWS))
  assert sum(map(len, found.values())) == 200


def test_a_damaged_parquet_file_is_named(tmp_path):
  pytest.importorskip('pyarrow')
  (tmp_path / 'a.parquet').write_bytes(b'PAR1' + bytes(100))
  with pytest.raises(ValueError, match='a.parquet is no readable Parquet'):
    files.load(tmp_path / 'a.parquet')


GOOD = json.dumps(ROWS[0])


@pytest.mark.parametrize(
  ('rows', 'words'),
  [
    ([GOOD, '', '{"question": '], 'row 3: it is not JSON.*mend'),
    ([GOOD, '[1]'], 'row 2: it is not a JSON object'),
    (
      [GOOD, '{"problem": "x", "answer": "1"}'],
      r"row 2: .*no field 'question', only \['answer', 'problem'\]; "
      'name the right one in data.files.question',
    ),
    (['{"question": "x", "answer": " "}'], "row 1: its 'answer' is ' '"),
    (
      [GOOD, '{"question": "x", "answer": null}'],
      "row 2: its 'answer' is null",
    ),
    (['{"question": "x", "answer": true}'], "'answer' is True, no valid text"),
    (['{"question": ["x"], "answer": "1"}'], r"'question' is \['x'\]"),
    (
      ['{"question": "x", "answer": "It is\\n4"}'],
      "row 1: its 'answer' has several lines.*data.files.answer",
    ),
    ([''], 'has no rows'),
    ([GOOD], 'and 0 held out|0 problems to train on.*another share'),
  ],
)
def test_an_error_names_file_row_and_field(tmp_path, rows, words):
  path = write(tmp_path / 'mine.jsonl', rows)
  with pytest.raises(ValueError, match=f'(?s)mine.jsonl.*({words})'):
    files.load(path)


def test_an_empty_parquet_file_is_named(tmp_path):
  pa = pytest.importorskip('pyarrow')
  table = pa.table(
    {key: pa.array([], pa.string()) for key in ('question', 'answer')}
  )
  pytest.importorskip('pyarrow.parquet').write_table(
    table, tmp_path / 'mine.parquet'
  )
  with pytest.raises(ValueError, match='mine.parquet has no rows'):
    files.load(tmp_path / 'mine.parquet')


def test_missing_names_are_reported(tmp_path):
  write(tmp_path / 'test.jsonl', ROWS)
  with pytest.raises(FileNotFoundError, match=r"train.jsonl is missing.*'test"):
    files.load(tmp_path)
  with pytest.raises(FileNotFoundError, match='no file and no folder'):
    files.load(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match='a file is .jsonl or .parquet'):
    files.load(write(tmp_path / 'a.csv', ROWS))
  with pytest.raises(ValueError, match='data.files.heldout=1'):
    files.load(tmp_path, heldout=1)


def test_no_share_is_held_out_beside_a_test_file(tmp_path):
  write(tmp_path / 'train.jsonl', ROWS[:5])
  with pytest.raises(ValueError, match='0 held out, with data.files.heldout=0'):
    files.load(tmp_path, heldout=0)
  write(tmp_path / 'test.jsonl', ROWS[5:8])
  found = files.load(tmp_path, heldout=0)
  assert {k: len(x) for k, x in found.items()} == {'train': 5, 'test': 3}


@pytest.mark.parametrize('name', ['validation', 'valid', 'val', 'dev'])
def test_splits_of_the_hub_are_held_out(name, monkeypatch):
  splits = {'train': ['a.jsonl'], name: ['b.jsonl']}
  monkeypatch.setattr(files.hub, 'files', lambda source: splits)
  found = files.paths_of('hf:a/b')
  assert [p.name for p in found['test']] == ['b.jsonl']
  splits['test'] = ['c.jsonl']
  assert [p.name for p in files.paths_of('hf:a/b')['test']] == ['c.jsonl']


def test_no_source_trains_on_what_another_holds_out(tmp_path):
  """Not even if files repeat questions of each other, or in chains."""

  def questions(*numbers):
    return [{'question': f'What is {i}+0?', 'answer': i} for i in numbers]

  folder = tmp_path / 'folder'
  folder.mkdir()
  write(folder / 'train.jsonl', questions(*range(20)))
  write(folder / 'test.jsonl', questions(*range(20, 30)))
  file = write(tmp_path / 'file.jsonl', questions(*range(5, 80)))
  sources = {
    'folder': dict(dir=str(folder)),
    'file': dict(dir=str(file), files=dict(heldout=0.2)),
    'less': dict(dir=str(file), files=dict(heldout=0.5)),
    'sums': dict(name='arithmetic'),
  }
  c = config_lib.Data().changed({'name': 'files', 'sources': sources})
  found = problems.load(c, 0)
  held = {
    example['prompt']
    for name, part in found.heldout_by_source.items()
    for example in (part if name != 'sums' else ())
  }
  assert len(held) > 30
  for name in ('folder', 'file', 'less'):
    train = set(prompts(found.parts[name][1].train))
    assert train and not train & held
  sources.pop('sums')
  c = c.changed({'chain': 2, 'sources': sources})
  for text in prompts(problems.load(c, 0).train):
    assert not [q for q in held if q.removesuffix('?') in text]
  write(file, questions(*range(20, 30)))
  both = {name: sources[name] for name in ('folder', 'less')}
  with pytest.raises(ValueError, match='sources.less: another source holds ou'):
    problems.load(c.changed({'chain': 1, 'sources': both}), 0)


def test_a_tokenizer_is_trained_on_every_source(tmp_path, monkeypatch):
  monkeypatch.setattr(problems, 'ROWS', 8)
  sources = {}
  for name in ('one', 'two'):
    rows = [{'question': f'{name} {i}', 'answer': i} for i in range(40)]
    file = write(tmp_path / f'{name}.jsonl', rows)
    sources[name] = dict(dir=str(file), files=dict(heldout=0.5))
  c = config_lib.Data().changed({'name': 'files', 'sources': sources})
  found = prompts(problems._first_rows(problems.load(c, 0)))
  assert len(found) == 8 and {text.split()[0] for text in found} == {*sources}


def test_a_data_section_names_it(tmp_path):
  c = config_lib.default().data
  c.name = 'files'
  with pytest.raises(ValueError, match='needs data.dir'):
    problems.load(c, 0)
  c.dir = str(write(tmp_path / 'a.jsonl', ROWS))
  c.files.update(verifier='numbers', heldout=0.5)
  found = problems.load(c, 0)
  assert found.reward == 'numbers' and found.kernel is None
  assert len(found.train) + len(found.heldout) == 200


@pytest.mark.skipif(not GSM8K.exists(), reason=f'{GSM8K} is absent')
def test_the_published_gsm8k(tmp_path):
  found = files.load(GSM8K)
  # The train file of GSM8K repeats no question of the test file.
  assert {k: len(v) for k, v in found.items()} == {'train': 7473, 'test': 1319}
  one = files.load(GSM8K / 'train.jsonl', heldout=0.1)
  assert 600 < len(one['test']) < 900
  reward = compose.build('math')
  for i in range(0, len(found['test']), 20):
    e = found['test'][i]
    assert reward(e['answer'], e).score == 1
    assert reward('#### 123456', e).score == 0


class Characters:
  eos_ids = (0,)

  def encode(self, text):
    return list(map(ord, text))


@pytest.mark.parametrize(
  'long, solution_len, words',
  [
    ({'question': 'x' * 41}, None, 'the prompt has 41 tokens and data.prompt'),
    ({'answer': 'y' * 20}, 20, 'solution has 21 tokens and data.completion'),
    ({'answer': 'y' * 20}, None, ''),
    # A stage with shorter rows than the run.
    ({'answer': 'y' * 15}, 15, 'solution has 16 tokens and .*_len is 15'),
  ],
)
def test_a_row_that_is_too_long_is_refused_before_the_first_step(
  tmp_path, long, solution_len, words
):
  """Otherwise the run ends at the step that draws it."""
  bad = {'question': 'What is too long?', 'answer': 'no'} | long
  path = write(tmp_path / 'train.jsonl', [*ROWS, bad])
  c = config_lib.default().data
  c.update(name='files', dir=str(path), prompt_len=40, completion_len=20)
  found = problems.load(c, 0)
  if not words:
    return lengths.check(found, c, Characters(), solution_len)
  with pytest.raises(ValueError, match=words) as raised:
    lengths.check(found, c, Characters(), solution_len)
  assert str(raised.value).startswith(f'{path}, row 201: ')
  c.too_long = 'drop'  # the advised remedy
  found, _ = problems.drop_long(found, c, Characters(), solution_len)
  lengths.check(found, c, Characters(), solution_len)


def test_too_long_drop_drops_the_rows_that_error_refuses():
  """The turns of a solution count too."""
  short = {'prompt': 'x', 'solution': 'y'}
  long = short | {'turns': [['a' * 9, 'b' * 9]]}
  found = problems.Problems([long, short], [short], None, None, '', None)
  c = config_lib.default().data
  c.update(prompt_len=40, completion_len=12, too_long='drop')
  kept, dropped = problems.drop_long(found, c, Characters(), 12)
  assert dropped == {'train': 1, 'heldout': 0}
  unread, dropped = problems.drop_long(found, c, Characters(), None)
  assert dropped == {'train': 0, 'heldout': 0}
  c.too_long = 'error'
  lengths.check(kept, c, Characters(), 12)
  with pytest.raises(ValueError, match='solution has 19 tokens'):
    lengths.check(found, c, Characters(), 12)


def test_too_long_drop_redraws_long_problems_of_the_harder_split():
  c = config_lib.default().data
  c.update(name='arithmetic', prompt_len=14, too_long='drop')
  c.knobs, c.harder = dict(min_ops=2, max_ops=2), dict(min_ops=4, max_ops=8)
  found = problems.load(c, 0)
  assert max(len(found.harder[i]['prompt']) for i in range(20)) > 14
  kept, dropped = problems.drop_long(found, c, Characters())
  assert dropped == {}
  for i in range(20):
    assert len(kept.harder[i]['prompt']) <= 14


def refused(path, tmp_path, **flat):
  """Returns the error of a run on a file, which comes before its first step."""
  c = tiny_recipe.get_config()
  c.stages = ('rl',)
  c.data.update(name='files', dir=str(path), tokenizer='byte', prompt_len=32)
  c.data.knobs = c.data.harder = ml_collections.ConfigDict()
  c.eval.harder, c.rl.prompts = False, 8
  c.update_from_flattened_dict(flat)
  with pytest.raises(ValueError) as raised:
    train.run(c, tmp_path / 'w')
  assert not (tmp_path / 'w' / 'metrics.jsonl').exists()
  return str(raised.value)


def test_an_answer_that_the_kernel_cannot_read_is_refused_at_the_start(
  tmp_path,
):
  bad = {'question': 'What is a half?', 'answer': '1/2'}
  path = write(tmp_path / 'train.jsonl', [*ROWS, bad])
  message = refused(path, tmp_path, **{'rl.rewards.answer.reward': 'integer'})
  assert message.startswith(f"{path}, row 201: not an integer answer: '1/2'")


def test_a_row_that_exceeds_the_teachers_prompt_is_refused(tmp_path):
  long = {'question': 'What is ten?', 'answer': '1' * 12}
  path = write(tmp_path / 'train.jsonl', [*ROWS, long])
  flat = {
    'rl.rewards.answer.reward': 'integer',
    'rl.algorithm': 'opd',
    'rl.epochs': 1,
    'rl.minibatches': 1,
    'rl.teacher.weights': 'policy',
    'rl.teacher.prompt': '{prompt} {solution}',
    'rl.teacher.prompt_len': 24,
  }
  message = refused(path, tmp_path, **flat)
  assert message.startswith(f'{path}, row 201: ') and 'has 25 tokens' in message


def test_processes_share_the_check_of_rows(monkeypatch):
  looked, long = [], []
  monkeypatch.setattr('jax.process_count', lambda: 2)
  monkeypatch.setattr(lengths.hosts, 'gather', lambda own: [own, []])

  def fits(row):
    looked.append(row)
    return row % 3 > 0

  for me in range(2):
    monkeypatch.setattr('jax.process_index', lambda me=me: me)
    long += lengths.too_long(range(10), fits, 'rows').tolist()
  assert sorted(looked) == [*range(10)] and sorted(long) == [0, 3, 6, 9]


@pytest.mark.parametrize(
  'row, words',
  [
    ('{"question": "a", "answer": NaN}', 'NaN is no JSON'),
    ('{"question": "a", "answer": 1e999}', "'answer' is inf, no valid text"),
    ('{"question": "a \\ud800", "answer": 1}', "'question' is .* no valid"),
    ('[' * 100_000, 'it is not JSON'),
  ],
)
def test_a_row_that_cannot_be_encoded_is_named(tmp_path, row, words):
  path = write(tmp_path / 'train.jsonl', [*ROWS, row])
  with pytest.raises(ValueError, match=words) as raised:
    files.load(path)
  assert f'{path}, row 201: ' in str(raised.value)
