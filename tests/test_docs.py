"""Code that the documentation shows, run as it stands there."""

import re
import sys

import pytest
from paths import ROOT

from jaxrl_reason import envs
from jaxrl_reason.run import train
from jaxrl_reason.verifiers import resolve, tasks


def blocks(page: str) -> dict[str, str]:
  """Python blocks of a page by the file name in their first line."""
  text = (ROOT / 'docs' / page).read_text()
  found = re.findall(r'^```python\n# (\S+)\n(.*?)^```', text, re.M | re.S)
  return dict(found)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The files of docs/extending.md, importable."""
  for name, code in blocks('extending.md').items():
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  yield tmp_path
  tasks.TASKS.pop('largest', None)
  for name in ('largest', 'largest_tiny', 'own_loop'):
    sys.modules.pop(name, None)


def test_the_page_has_what_is_tested():
  assert set(blocks('extending.md')) == {
    'largest.py', 'configs/largest_tiny.py', 'brevity.py', 'own_loop.py'
  }  # fmt: skip


def test_an_own_task_and_reward_train(folder):
  sys.path.insert(0, str(folder / 'configs'))
  import largest_tiny

  c = largest_tiny.get_config()
  c.rl.path, c.compile_cache = 'host', ''
  weight = {'by': 'step', 'at': [0, 1000], 'values': [0.0, 0.1]}
  short = dict(reward=f'{folder}/brevity.py:short', weight=weight)
  c.rl.rewards = dict(answer=dict(reward='task', weight=1.0), short=short)
  c.log_every = 1
  assert train.run(c, folder / 'run') is not None
  assert resolve.load(short['reward'])('12', {}) == 1 / 3
  assert (folder / 'run' / 'curves.png').exists()
  sys.path.remove(str(folder / 'configs'))


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
  told = (tmp_path / 'run' / 'metrics.jsonl').read_text()
  assert '"train/turns/2/reward"' in told


def test_an_own_loop_learns(folder):
  import own_loop

  first, last = own_loop.curve[:5], own_loop.curve[-5:]
  assert sum(first) / 5 < 1 and sum(last) / 5 > 1.8
