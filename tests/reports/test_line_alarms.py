"""Alarms by lines of metrics: begin once, end, and say what to try."""

import pytest

from jaxrl_reason.reports import alarms, line_alarms, workdirs

# A healthy line, and the change of it that raises each alarm.
WELL = {
  'train/reward_invalid': 0.0,
  'train/dead_rows': 0.3,
  'train/truncated': 0.1,
  'train/grad_norm': 0.5,
  'train/entropy': 0.4,
  'train/groups_solved_all': 0.2,
  'train/kl': 0.01,
  'train/gap_mean': 1e-6,
  'train/reward_mean': 0.5,
}
RAISED = {
  'rewards that fail': {'train/reward_invalid': 0.2},
  'groups without signal': {'train/dead_rows': 0.95},
  'completions at the limit of their length': {'train/truncated': 0.8},
  'no gradient': {'train/grad_norm': 0.0},
  'gradients that grow': {'train/grad_norm': 50.0},
  'entropy collapse': {'train/entropy': 0.001},
  'far from the reference': {'train/kl': 3.0},
  'sampler and trainer differ': {'train/gap_mean': 0.4},
}


def test_every_rule_has_a_case():
  assert list(RAISED) == [rule.name for rule in line_alarms.RULES]


@pytest.mark.parametrize('name', RAISED)
def test_an_alarm_begins_once_and_ends(name):
  watch, bad = line_alarms.LineAlarms(), WELL | RAISED[name]
  for _ in range(line_alarms.PAST):
    assert watch.add(WELL) == []
  assert watch.add(bad) == watch.add(bad) == watch.add(WELL) == []
  said = [watch.add(bad) for _ in range(5)]
  assert [len(x) for x in said] == [0, 0, 1, 0, 0]
  (rule,) = (r for r in line_alarms.RULES if r.name == name)
  assert said[2][0].startswith(name) and said[2][0].endswith(rule.advice)
  assert list(watch.on) == [name]
  watch.add(WELL)
  assert not watch.on


def test_a_solved_task_is_no_collapse_and_a_line_may_lack_metrics():
  watch = line_alarms.LineAlarms()
  solved = {'train/entropy': 0.001, 'train/groups_solved_all': 0.95}
  assert not any(watch.add(solved) for _ in range(9))
  assert not any(watch.add({'train/kl': None}) for _ in range(9))


def test_the_report_has_them_at_its_top(tmp_path):
  rows = [
    {'step': i, 'stage': 'rl'} | WELL | {'train/truncated': 0.9}
    for i in range(1, 5)
  ]
  lines = ''.join(f'{workdirs.json.dumps(row)}\n' for row in rows)
  (tmp_path / 'metrics.jsonl').write_text(lines)
  found = alarms.of(workdirs.read(tmp_path), [])
  assert [a.name for a in found if a.on] == [
    'completions at the limit of their length'
  ]
  assert found[0].on and 'raise data.completion_len' in found[0].evidence
