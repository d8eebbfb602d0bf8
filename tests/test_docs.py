"""Runs the code of documentation pages unchanged."""

import http.server
import json
import re
import sys
import threading

import numpy as np
import pytest
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason import envs, losses
from jaxrl_reason.run import train
from jaxrl_reason.verifiers import resolve, tasks
from jaxrl_reason.verifiers.judges import pairwise


def blocks(page: str) -> dict[str, str]:
  """Returns the Python blocks of a page by the file name in their first
  line.
  """
  text = (ROOT / 'docs' / page).read_text()
  found = re.findall(r'^```python\n# (\S+)\n(.*?)^```', text, re.M | re.S)
  return dict(found)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Writes the files of docs/extending.md to an importable folder."""
  for name, code in blocks('extending.md').items():
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.syspath_prepend(str(tmp_path / 'configs'))
  yield tmp_path
  tasks.TASKS.pop('largest', None)
  losses.POLICIES.pop('anchored', None)
  for name in blocks('extending.md'):
    sys.modules.pop(name.rpartition('/')[2].removesuffix('.py'), None)


def test_the_page_contains_the_tested_blocks():
  assert set(blocks('extending.md')) == {
    'largest.py', 'configs/largest_tiny.py', 'brevity.py',
    'configs/anchored_tiny.py', 'configs/charged_tiny.py', 'own_loop.py'
  }  # fmt: skip


def test_an_own_task_and_reward_train(folder):
  import largest_tiny

  c = largest_tiny.get_config()
  c.rl.path, c.compile_cache = 'host', ''
  weight = {'by': 'step', 'at': [0, 1000], 'values': [0.0, 0.1]}
  short = dict(reward=f'{folder}/brevity.py:short', weight=weight)
  c.rl.rewards = dict(answer=dict(reward='task', weight=1.0), short=short)
  c.log_every = 1
  assert train.run(c, folder / 'run') is not None
  assert resolve.load(short['reward'])('12', {}) == 1 / 3


def test_an_own_loss_of_a_recipe_trains(folder):
  import anchored_tiny

  c = anchored_tiny.get_config()
  c.compile_cache, c.stages, c.rl.steps = '', ('rl',), 2
  assert train.run(c, folder / 'run') is not None
  text = (folder / 'run' / 'metrics.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  assert sum('train/pg_loss' in row for row in rows) == 2
  logp, ref_logp = -np.array([[1.0, 2, 3], [4, 5, 6]]), -np.full((2, 3), 2.5)
  adv, mask = np.array([[0.5], [-1]]), np.array([[0, 1, 1], [1, 1, 0]])
  o = config_lib.read(c).rl.objective(3)
  assert o.needs == {'ref_logp'}
  loss, _ = losses.policy_loss(o, logp, adv[:, 0], mask, ref_logp=ref_logp)
  each = -adv * logp + 0.05 * (logp - ref_logp) ** 2
  assert float(loss) == pytest.approx((each * mask).sum() / 2 / 3)  # N, T


def test_a_loss_without_its_setting_is_refused(folder):
  import anchored_tiny

  anchored_tiny.Anchored.names = (('scale', 'scale', 'drift_coeff'),)
  with pytest.raises(ValueError, match="'drift_coeff', which.*'drift_coef'"):
    losses.resolve({'policy': 'anchored'})
  anchored_tiny.Anchored.names = (('scale', 'scale', 'drift_coef'),)
  o = losses.resolve({'policy': 'anchored', 'drift_coef': 0.3})
  assert o.policy.scale == 0.3
  losses.POLICIES.pop('anchored')
  with pytest.raises(ValueError, match="policy='anchored' is no choice"):
    losses.resolve({'policy': 'anchored'})


def test_an_own_part_sees_every_step_and_its_memory_is_saved(folder):
  import charged_tiny

  c = charged_tiny.get_config()
  c.compile_cache = ''
  c.rl.prompts = 64
  train.run(c, folder / 'run')
  state = train.run(c, folder / 'run')  # from the checkpoint at the end
  text = (folder / 'run' / 'metrics.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  rows = [r for r in rows if 'train/charge/mean' in r]
  assert len(rows) == c.rl.steps
  mean, costs = 0.0, []
  for row in rows:
    costs.append(row['train/charge/cost'])
    assert (costs[-1] > 0) == (mean > 0 and row['train/reward_mean'] > 0)
    mean = 0.9 * mean + 0.1 * row['train/reward_mean']
    assert row['train/charge/mean'] == pytest.approx(mean, rel=1e-5)
  assert max(costs) > 0
  assert float(state.control['charge']['mean']) == pytest.approx(mean, rel=1e-5)


def test_an_own_environment_is_played(tmp_path, monkeypatch):
  shown = blocks('turns.md')
  assert set(shown) == {'bits.py', 'configs/bits_tiny.py'}
  written = [line for line in shown['bits.py'].split('\n') if line]
  assert len(written) <= 40
  for name, code in shown.items():
    (tmp_path / name.rpartition('/')[2]).write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  import bits_tiny

  c = bits_tiny.get_config()
  c.compile_cache, c.log_every = '', 1
  try:
    train.run(c, tmp_path / 'run')
  finally:
    tasks.GAMES.pop('bits')
    envs.ENVS.pop('bits')
    for name in ('bits', 'bits_tiny'):
      sys.modules.pop(name)
  metrics = (tmp_path / 'run' / 'metrics.jsonl').read_text()
  assert '"train/turns/2/reward"' in metrics


def test_an_own_loop_learns(folder):
  import own_loop

  first, last = own_loop.curve[:5], own_loop.curve[-5:]
  assert sum(first) / 5 < 1 and sum(last) / 5 > 1.8


def test_a_judge_by_rules_serves_comparisons(tmp_path, monkeypatch):
  """The better answer wins in both orders; equally good ones are even."""
  (code,) = blocks('judges.md').values()
  (tmp_path / 'rule_judge.py').write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  import rule_judge

  address = ('127.0.0.1', 0)
  server = http.server.ThreadingHTTPServer(address, rule_judge.RuleJudge)
  thread = threading.Thread(target=server.serve_forever, args=(0.01,))
  thread.start()
  url = f'http://127.0.0.1:{server.server_port}/v1'
  texts = ['3 2#4', '1 5#6', '0 0#0']  # 3 * 6 - 2 * 3 % 7 = 6
  try:
    scores = [
      pairwise.reward(
        text,
        {'prompt': '3*6-2*3%7=', 'others': others},
        url=url,
        model='rules',
        part='all',
      ).score
      for text, others in zip(texts, pairwise.others(texts))
    ]
  finally:
    server.shutdown()
    server.server_close()
    thread.join()
    sys.modules.pop('rule_judge')
  assert scores == [0.25, 1.0, 0.25]
