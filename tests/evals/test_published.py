"""Published suites: rows of the Hub, correct and incorrect answers."""

import base64
import json
import pathlib
import pickle
import zlib

import pytest

from jaxrl_reason.evals import published, suites
from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.verdict import judge

DATA = pathlib.Path(__file__).parents[3] / 'shared' / 'data'


def packed(tests) -> str:
  """Encodes tests as in the private fields of the published files."""
  return base64.b64encode(
    zlib.compress(pickle.dumps(json.dumps(tests)))
  ).decode()


def lcb(public, private, **metadata):
  return {
    'question_title': 'Sum', 'question_content': 'Add the numbers.',
    'starter_code': 'class Solution:' if metadata else '',
    'public_test_cases': json.dumps(public),
    'private_test_cases': packed(private), 'metadata': json.dumps(metadata),
  }  # fmt: skip


def stdin(i, o):
  return {'input': i, 'output': o, 'testtype': 'stdin'}


def functional(i, o):
  return {'input': i, 'output': o, 'testtype': 'functional'}


BOX = 'So it is \\boxed{%s}.'
METHOD = (
  '```python\nclass Solution:\n  def add(self, xs: List[int], y: int) -> int:\n'
  '    return %s\n```'
)
# A row with the fields of the data set, a right completion and a wrong one.
ROWS = {
  'math500': (
    {'problem': 'Half?', 'solution': 'It is $\\boxed{\\frac12}$.',
     'answer': '\\frac12', 'level': 1},
    BOX % '0.5', BOX % '2',
  ),
  'aime24': (
    {'id': 60, 'problem': 'Find it.', 'solution': 'Long.', 'answer': '204'},
    BOX % '204', BOX % '205',
  ),
  'aime25': (
    {'problem': 'Find it.', 'answer': '70', 'id': '0'}, BOX % '70', BOX % '7',
  ),
  'amc23': (
    {'id': 0, 'answer': 27.0, 'question': 'Cities?', 'url': 'x'},
    BOX % '27', BOX % '28',
  ),
  'minerva': (
    {'question': 'How bright?', 'answer': '1.6e-3'}, BOX % '0.0016', BOX % '16',
  ),
  'olympiadbench': (
    {'question': 'Both?', 'solution': ['Long.'], 'final_answer': ['1', '3']},
    BOX % '1, 3', BOX % '1, 2',
  ),
  'gpqa': (
    {'Question': 'Which?', 'Correct Answer': 'red\n', 'Incorrect Answer 1':
     'blue', 'Incorrect Answer 2': 'green', 'Incorrect Answer 3': 'black'},
    'The answer is ({answer}).', 'The answer is (E).',
  ),
  'mmlu_pro': (
    {'question': 'Which?', 'options': ['a1', 'b2', 'c3'], 'answer': 'C',
     'answer_index': 2, 'cot_content': ''},
    'The answer is (C).', 'The answer is (A).',
  ),
  'humaneval': (
    {'task_id': 'HumanEval/0', 'prompt': 'def f(x):\n  """Adds 1."""\n',
     'canonical_solution': '  return x + 1\n', 'entry_point': 'f',
     'test': 'def check(candidate):\n  assert candidate(1) == 2\n'},
    '```python\ndef f(x):\n  return 1 + x\n```',
    '```python\ndef f(x):\n  return x\n```',
  ),
  'mbpp': (
    {'task_id': 11, 'text': 'Write f that adds 1.', 'code': 'def f(x): ...',
     'test_list': ['assert f(1) == 2'], 'test_setup_code': ''},
    '```python\ndef f(x):\n  return 1 + x\n```',
    '```python\ndef f(x):\n  return x\n```',
  ),
  'livecodebench-lite': (
    lcb([stdin('1 2\n', '3\n')], [stdin('4 5\n', '9')]),
    '```python\nprint(sum(map(int, input().split())))\n```',
    '```python\nprint(3)\n```',
  ),
  'ifeval': (
    {'key': 1, 'prompt': 'No commas.', 'instruction_id_list':
     ['punctuation:no_comma'], 'kwargs': [{'num_words': None}]},
    'None here.', 'One, here.',
  ),
  'bbh': (
    {'input': 'not ( True ) is', 'target': 'False'},
    'It is <answer>False</answer>', 'It is <answer>True</answer>',
  ),
}  # fmt: skip


def of_rows(name, tmp_path, rows, more=''):
  path = tmp_path / 'rows.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return suites.load(f'{name}?dir={path}{more}')


@pytest.mark.parametrize('name', published.SUITES)
def test_a_row_becomes_a_prompt_and_is_verified(name, tmp_path):
  row, right, wrong = ROWS[name]
  suite = of_rows(name, tmp_path, [row])
  assert suite.name == name and '{question}' in suite.asks
  (example,) = suite.examples
  reward = resolve.load(suite.reward)
  right = right.replace('{answer}', example['answer'])
  verdicts = [judge(reward, text, example) for text in (right, wrong)]
  assert [v.score for v in verdicts] == [1, 0], verdicts
  assert all(v.valid for v in verdicts)
  with pytest.raises(ValueError, match='row 1: not a row of this suite'):
    of_rows(name, tmp_path, [{'x': 1}])


def test_a_method_is_called_with_its_arguments(tmp_path):
  row = lcb(
    [functional('[1, 2]\n3', '6')], [functional('[]\n1', '1')], func_name='add'
  )
  (example,) = of_rows('livecodebench-lite', tmp_path, [row]).examples
  assert 'class Solution:' in example['prompt']
  reward = resolve.load(published.SUITES['livecodebench-lite'].reward)
  assert reward(METHOD % 'sum(xs) + y', example).score == 1
  assert reward(METHOD % '6', example).score == 0  # the private test


def test_tests_are_read_as_text_alone(tmp_path):
  """A pickle may name any function, which must not be called."""
  bad = base64.b64encode(zlib.compress(pickle.dumps(pathlib.Path('x'))))
  row = ROWS['livecodebench-lite'][0] | {'private_test_cases': bad.decode()}
  (example,) = of_rows('livecodebench-lite', tmp_path, [row]).examples
  reward = resolve.load(published.SUITES['livecodebench-lite'].reward)
  verdict = judge(reward, 'print(3)', example)
  assert verdict.status == 'error' and 'pathlib' in verdict.detail


def test_options_are_shuffled_for_each_question(tmp_path):
  """The correct option is not always (A), and the order is deterministic."""
  rows = [ROWS['gpqa'][0] | {'Question': f'Which of {i}?'} for i in range(40)]
  first, second = (of_rows('gpqa', tmp_path, rows) for _ in range(2))
  assert first.digest() == second.digest()
  assert {e['answer'] for e in first.examples} == set('ABCD')


def test_unreadable_rows_are_refused(tmp_path):
  with pytest.raises(ValueError, match='disputed: name your copy with .dir='):
    suites.load('math500')
  with pytest.raises(ValueError, match="Did you mean 'gsm8k'"):
    suites.load('gms8k')
  with pytest.raises(ValueError, match="Did you mean 'math500'"):
    suites.load('MATH-500')
  with pytest.raises(ValueError, match='is no file'):
    suites.load(f'bbh?dir={tmp_path}/none.jsonl')
  row = ROWS['bbh'][0]
  with pytest.raises(ValueError, match="no option 'split', but dir, n"):
    of_rows('bbh', tmp_path, [row], '&split=test')


@pytest.mark.skipif(not DATA.exists(), reason=f'{DATA} is absent')
@pytest.mark.parametrize(
  'name, place, size',
  [
    ('gsm8k', 'gsm8k', 1319),
    ('humaneval', 'humaneval', 164),
    ('mbpp', 'mbpp', 500),
    ('ifeval', 'ifeval', 540),
  ],
)
def test_published_rows(name, place, size, tmp_path, monkeypatch):
  """Reads all rows; reference solutions are right."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  suite = suites.load(f'{name}?dir={DATA / place}')
  assert len(suite.examples) == size
  reward = resolve.load(suite.reward)
  for example in suite.examples[:: size // 8]:
    right = example['solution']
    if suite.reward == 'code':
      right = f'```python\n{right}\n```'
    verdict = judge(reward, right, example)
    assert verdict.valid
    if name != 'ifeval':
      assert verdict.score == 1, (example['meta'], verdict)
      assert judge(reward, '```python\n1\n```', example).score == 0
