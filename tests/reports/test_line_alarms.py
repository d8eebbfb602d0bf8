"""Alarms of metrics begin once, end, and suggest a remedy."""

import json
import re
import types

import pytest
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason.reports import alarms, line_alarms, signs, workdirs

# A healthy line, and the change of it that raises each alarm.
WELL = {
  'train/reward_invalid': 0.0,
  'train/dead_rows': 0.3,
  'train/truncated': 0.1,
  'train/grad_norm': 0.5,
  'train/entropy': 0.4,
  'train/groups_solved_all': 0.2,
  'train/kl': 0.01,
  'train/approx_kl': 0.001,
  'train/gap_mean': 1e-6,
  'train/length_mean': 50.0,
  'train/reward_mean': 0.5,
  'train/reward_correlation': 0.6,
  'rollouts/repeats': 0.05,
  'rollouts/copies': 0.1,
  'rollouts/format_only': 0.1,
  'rollouts/early': 0.1,
  'rollouts/disagree': 0.0,
  'eval/heldout/pass@1': 0.5,
}
RAISED = {
  'rewards that fail': {'train/reward_invalid': 0.2},
  'groups without signal': {'train/dead_rows': 0.95},
  'completions at the limit of their length': {'train/truncated': 0.8},
  'no gradient': {'train/grad_norm': 0.0},
  'gradients that grow': {'train/grad_norm': 50.0},
  'entropy collapse': {'train/entropy': 0.001},
  'far from the reference': {'train/kl': 3.0},
  'updates that go far': {'train/approx_kl': 0.5},
  'sampler and trainer differ': {'train/gap_mean': 0.4},
  'repeated completions': {'rollouts/copies': 0.7},
  'reward rises while evaluation falls': {
    'train/reward_mean': 0.9,
    'eval/heldout/pass@1': 0.1,
  },
  'reward does not follow correctness': {'train/reward_correlation': 0.02},
  'longer completions, no better reward': {'train/length_mean': 500.0},
  'format passes while answers fail': {'rollouts/format_only': 0.9},
  'the answer stands before the reasoning': {'rollouts/early': 0.9},
  'verifiers disagree': {'rollouts/disagree': 0.9},
}


def test_every_rule_has_a_case():
  assert list(RAISED) == [rule.name for rule in line_alarms.RULES]
  assert WELL.keys() == line_alarms.METRICS.keys()


def test_advice_names_keys_that_exist():
  known = workdirs.flat(json.loads(config_lib.default().to_json_best_effort()))
  known = {'.'.join(k.split('.')[:n]) for k in known for n in (2, 3, 4)}
  for rule in line_alarms.RULES:
    for key in re.findall(r'\b(?:rl|data|model)\.[a-z_.]*[a-z]', rule.advice):
      assert key in known, rule.name


@pytest.mark.parametrize('name', RAISED)
def test_an_alarm_begins_once_and_ends(name):
  watch, bad = line_alarms.LineAlarms(), WELL | RAISED[name]
  (rule,) = (r for r in line_alarms.RULES if r.name == name)
  for step in range(20):
    assert watch.add(step, WELL) == []
  said = [watch.add(20 + i, bad) for i in range(16)]
  ((at, text),) = ((20 + i, text) for i, x in enumerate(said) for text in x)
  assert text.startswith(name) and text.endswith(rule.advice)
  alarm = watch.raised[name]
  assert (alarm.since, alarm.until, [*watch.raised]) == (at, None, [name])
  for step in range(36, 100):
    watch.add(step, WELL)
  assert 36 <= watch.raised[name].until < 100


def test_the_fall_of_one_problem_is_no_alarm_of_pass_at_k():
  def alarm(*right):
    evaluations = [
      {'step': i, 'stage': 'rl', 'splits': {'heldout': entry}}
      for i, entry in enumerate({'samples': 4, 'right': r} for r in right)
    ]
    run = types.SimpleNamespace(evaluations=evaluations)
    return alarms._fewer_solvable(run).on

  assert not alarm([4], [0])
  # The standard error of ten problems divides by nine: 1.96 of them.
  assert not alarm([4] * 10, [0] * 3 + [4] * 7)
  assert alarm([4] * 8, [0] * 7 + [4])


def test_one_line_raises_no_alarm():
  watch = line_alarms.LineAlarms()
  for i in range(60):
    bad = {k: v for d in RAISED.values() for k, v in d.items()}
    assert watch.add(i, WELL | bad if i % 20 == 9 else WELL) == []


def test_a_solved_task_is_not_a_collapse_and_a_line_may_lack_metrics():
  watch = line_alarms.LineAlarms()
  solved = {'train/entropy': 0.001, 'train/groups_solved_all': 0.95}
  assert not any(watch.add(i, solved) for i in range(9))
  assert not any(watch.add(i, {'train/kl': None}) for i in range(9))


def test_an_evaluation_that_rose_and_falls_again_is_noticed():
  """Rows of training and of evaluations alternate, as in a run."""
  watch, begun = line_alarms.LineAlarms(), []
  held = [0.3, 0.4, 0.6, 0.7, 0.7, 0.6, 0.5, 0.5, 0.4, 0.4, 0.3]
  for i, accuracy in enumerate(held):
    for j in range(5):
      line = {'train/reward_mean': 0.3 + 0.01 * (5 * i + j)}
      begun += watch.add(10 * i + j, line)
    begun += watch.add(10 * i + 9, {'eval/heldout/pass@1': accuracy})
  assert len(begun) == 1
  assert begun[0].startswith('reward rises while evaluation falls (train/rew')
  # The evaluation falls with the reward, which is another problem.
  watch = line_alarms.LineAlarms()
  for i, accuracy in enumerate(held):
    line = {'train/reward_mean': accuracy, 'eval/heldout/pass@1': accuracy}
    assert watch.add(i, line) == []


def test_copies_are_wrong_answers_that_samples_share():
  def row(problem, text, right=False):
    verdict = {'score': float(right)}
    return {'problem': problem, 'completion': text, 'verdict': verdict}

  rows = [row(0, '7'), row(0, '7'), row(0, '8'), row(1, '7')]
  rows += [row(2, '5', True)] * 4  # all samples are correct
  assert signs.shares(rows)['rollouts/copies'] == 2 / 8


def test_the_report_has_them_at_its_top(tmp_path):
  rows = [
    {'step': i, 'stage': 'rl'} | WELL | {'train/truncated': 0.9 * (i < 9)}
    for i in range(1, 12)
  ]
  for row in rows[5:]:
    row['train/entropy'] = 0.0
  lines = ''.join(f'{json.dumps(row)}\n' for row in rows)
  (tmp_path / 'metrics.jsonl').write_text(lines)
  found = alarms.of(workdirs.read(tmp_path), [])
  assert [(a.name, a.on, a.when) for a in found[:2]] == [
    ('entropy collapse', True, 'from step 8'),
    ('completions at the limit of their length', False, 'from step 3 to 9'),
  ]
  assert 'raise data.completion_len' in found[1].advice


def test_the_page_of_operation_lists_every_alarm():
  page = (ROOT / 'docs' / 'operating.md').read_text()
  assert not [rule.name for rule in line_alarms.RULES if rule.name not in page]
