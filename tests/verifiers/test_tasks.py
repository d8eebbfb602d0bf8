"""Properties of every task: splits, determinism, totality."""

import json
import re
import subprocess
import sys
import time

import pytest

from jaxrl_reason.verifiers import tasks

FAMILIES = list(tasks.TASKS)
HOSTILE = [
  '',
  '#',
  '##',
  '#1#1',
  '#' * 100_000,
  '#' + '(' * 100_000,
  '#' + '(' * 50_000 + '1' + ')' * 50_000,
  '#' + '9' * 100_000,
  '#-' + '0' * 100_000 + '1',
  '#1' + '+1' * 50_000,
  '#' + ' ' * 100_000 + 'x',
  '#' + '1 ' * 50_000,
  '#' + '1 ' * 50_000 + 'x',
  '#1**99999**99999',
  '#__import__("os")',
  '#1e999',
  '#\u0661\u0662',  # Arabic digits
  '#\u00b2',
  '#1\n',
  '#\x001',
  '#\ud800',  # a lone surrogate
  '#1/0',
  '#()',
  '#nan',
]


def examples(task, n=60, split='train', **knobs):
  return [tasks.example(task, 0, i, split=split, knobs=knobs) for i in range(n)]


@pytest.mark.parametrize('task', FAMILIES)
@pytest.mark.parametrize('split', tasks.SPLITS)
def test_solutions_are_right_and_within_the_alphabet(task, split):
  alphabet = set(tasks.get(task).alphabet)
  for ex in examples(task, split=split):
    assert tasks.check(ex['solution'], ex) == 1.0
    assert tasks.check(f'#{ex["answer"]}', ex) == 1.0
    assert tasks.check_format(ex['solution'], ex) == 1.0
    assert set(ex['prompt'] + ex['solution']) <= alphabet
    assert ex['task'] == task and json.loads(json.dumps(ex)) == ex


@pytest.mark.parametrize('task', FAMILIES)
def test_answers_of_other_problems_are_wrong(task):
  found = examples(task)
  for ex, other in zip(found, found[1:]):
    if ex['answer'] != other['answer'] and task != 'countdown':
      assert tasks.check(other['solution'], ex) == 0.0
  scores = [tasks.check(b['solution'], a) for a, b in zip(found, found[1:])]
  assert sum(scores) < 0.4 * len(scores)


@pytest.mark.parametrize('task', FAMILIES)
def test_checkers_are_total_and_fast(task, small_heap):
  ex = examples(task, 1)[0]
  start = time.thread_time()
  for text in HOSTILE:
    assert tasks.check(text, ex) == 0.0, text[:40]
    assert tasks.check_format(text, ex) in (0.0, 1.0)
  # 24 texts of up to 100,000 characters: linear, with much room.
  assert time.thread_time() - start < 2


@pytest.mark.parametrize('task', FAMILIES)
def test_the_answer_ends_the_text_after_the_only_marker(task):
  ex = examples(task, 1)[0]
  answer = ex['answer']
  for wrong in (
    answer,
    f'#{answer}#',
    f'##{answer}',
    f'#{answer}.',
    f'#{answer}\n',
    f'#{answer}#{answer}',
    f'#{answer} x',
  ):
    assert tasks.check(wrong, ex) == 0.0, wrong


@pytest.mark.parametrize('task', FAMILIES)
def test_splits_never_overlap(task):
  n = 400
  prompts = {
    split: {
      tasks.example(task, seed, i, split=split)['prompt']
      for seed in (0, 1)
      for i in range(n)
    }
    for split in tasks.SPLITS
  }
  assert not prompts['train'] & (prompts['heldout'] | prompts['harder'])
  if task == 'countdown':  # nor with the numbers in another order
    prompts = {
      s: {str(sorted(p.replace('>', ' >').split())) for p in found}
      for s, found in prompts.items()
    }
    assert not prompts['train'] & (prompts['heldout'] | prompts['harder'])
  # Splits do not overlap with equal knobs either.
  same = tasks.example(task, 0, 0, split='harder', harder={})
  assert tasks.is_heldout(tasks.get(task).identity(same))
  assert len(prompts['train']) > n / 4


def test_the_heldout_share_is_as_stated():
  prompts = [f'{a}+{b}=' for a in range(100) for b in range(100)]
  share = sum(map(tasks.is_heldout, prompts)) / len(prompts)
  assert abs(share - tasks.HELDOUT_SHARE) < 0.02


def test_problems_are_the_same_everywhere():
  """The values are pinned, since a change would change every resumed run."""
  pinned = {
    'arithmetic': '1+7+9+8-9-8=',
    'countdown': '6 5 7>18:',
  }
  for task, prompt in pinned.items():
    assert tasks.example(task, 0, 0, split='train')['prompt'] == prompt


@pytest.mark.parametrize('task', FAMILIES)
def test_problems_depend_only_on_seed_and_index(task):
  def prompts(seed, order):
    return {
      i: tasks.example(task, seed, i, split='train')['prompt'] for i in order
    }

  assert prompts(0, range(40)) == prompts(0, reversed(range(40)))
  assert prompts(0, range(40)) != prompts(1, range(40))
  tasks.example(task, 2**40, 2**40, split='heldout')


def test_knobs_reach_the_problem_and_harder_is_on_top():
  knobs = dict(min_ops=2, max_ops=2, modulus=7)
  ex = tasks.example('arithmetic', 0, 3, split='train', knobs=knobs)
  assert ex['prompt'].endswith('%7=') and ex['solution'].count(' ') == 0
  ex = tasks.example('arithmetic', 0, 3, split='harder', knobs=knobs)
  assert ex['prompt'].endswith('%7=') and ex['solution'].count(' ') >= 5
  ex = tasks.example(
    'arithmetic',
    0,
    3,
    split='harder',
    knobs=knobs,
    harder=dict(min_ops=4, max_ops=4),
  )
  assert ex['solution'].count(' ') == 2


@pytest.mark.parametrize(
  ('call', 'words'),
  [
    (dict(task='chess'), ('chess', 'arithmetic')),
    (dict(split='test'), ('test', 'heldout')),
    (dict(knobs=dict(n_ops=3)), ('n_ops', 'min_ops')),
    (dict(knobs=dict(min_ops=9, max_ops=2)), ('9', '2')),
    (dict(knobs=dict(max_total=-1)), ('max_total', 'draws')),
  ],
)
def test_invalid_settings_are_named(call, words):
  call = dict(task='arithmetic', seed=0, index=0, split='train') | call
  with pytest.raises(ValueError) as error:
    tasks.example(**call)
  assert all(word in str(error.value) for word in words)


def test_data_workers_need_no_jax():
  code = (
    'import sys, jaxrl_reason.verifiers.tasks; assert "jax" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize(
  'task, knobs, chain',
  [
    (
      'proposed',
      dict(ops='+-*', modulus=10, min_ops=2, max_ops=2),
      r'\d[-+*]\d[-+*]\d%10=',
    ),
    (
      'proposed_strings',
      dict(functions='RIT', min_functions=2, max_functions=2),
      r'[a-i]{3,5}[|][RIT]{2}=',
    ),
  ],
)
def test_a_request_has_another_problem_as_its_solution(task, knobs, chain):
  knobs = knobs | dict(asked=0.5)
  found = [
    tasks.example(task, 0, i, split='train', knobs=knobs) for i in range(60)
  ]
  asked = [x for x in found if x['prompt'].endswith('?')]
  assert 15 < len(asked) < 45
  for x in asked:
    assert re.fullmatch(chain, x['prompt'][:-1])
    assert re.fullmatch(chain, x['solution'])
  assert sum(x['solution'] != x['prompt'][:-1] for x in asked) > 10
  for x in found:
    if x not in asked:
      assert tasks.check(x['solution'], x) == 1
