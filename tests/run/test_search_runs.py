"""`evaluate` with a search, by the value head of a run or by the verifier."""

import json
import random
import shutil

import jax
import numpy as np
import pytest
import run_records
from etils import epath
from test_faults import runs  # noqa: F401
from test_recipe_features import recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import evaluate
from jaxrl_reason.data import tokenizers
from jaxrl_reason.evals import loading
from jaxrl_reason.planning import phases
from jaxrl_reason.rollouts.gumbel_search import Search
from jaxrl_reason.run import prepare, train
from jaxrl_reason.run.rl import generation_settings, search_settings

pytest.importorskip('mctx')
pytestmark = pytest.mark.one_device

SUITE = 'task:arithmetic?min_ops=2&max_ops=3&modulus=3&ops=+-&n=6'
SEARCH = '--simulations=4', '--candidates=2', '--step_tokens=2'


@pytest.fixture(scope='module')
def valued(tmp_path_factory):
  """Trains a value head; returns (workdir, final state)."""
  where = tmp_path_factory.mktemp('valued')
  c = recipe(**{'rl.algorithm': 'ppo', 'rl.critic.optimizer.lr': 1e-2})
  c.rl.rewards = dict(
    coin=dict(reward='random', weight=1.0, kwargs=dict(p=0.5))
  )
  return where, train.run(c, where)


@pytest.fixture(scope='module')
def supervised(tmp_path_factory):
  """Trains without a value head; returns the workdir."""
  where = tmp_path_factory.mktemp('supervised')
  c = recipe(**{'stages': ('sft',), 'sft.steps': 80, 'sft.rows': 32})
  train.run(c, where)
  return where


def answers(where, out, *flags, search=(*SEARCH, '--judge={}')):
  """Evaluates; returns the path of the answers and their records."""
  common = [f'--model={where}', f'--suite={SUITE}', '--k=2', f'--out={out}']
  evaluate.main([*common, *(f.format(where) for f in search), *flags])
  (path,) = (out / 'answers').glob('*.jsonl')
  return path, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope='module')
def searched(valued, tmp_path_factory):
  out = tmp_path_factory.mktemp('searched')
  return *answers(valued[0], out, '--top_logprobs=1'), out


def test_the_value_of_an_answer_is_that_of_its_last_trained_state(
  valued, searched
):
  where, state = valued
  path, found, out = searched
  params, tokenizer = state.critic.params, loading.load(str(where)).tokenizer
  model = prepare.prepare(recipe(), epath.Path(where)).model
  hidden_of = jax.jit(model.hidden)
  lasts = set()
  for row in found:
    ids = tokenizer.encode(row['prompt']) + row['top']['tokens']
    lasts.add(ids[-1] in tokenizer.eos_ids)
    end = len(ids) - 1 - (ids[-1] in tokenizer.eos_ids)
    tokens = np.array([ids + [0] * (40 - len(ids))])
    valid = np.arange(40) < len(ids)
    hidden = hidden_of(params['body'], tokens, valid[None])[0, end]
    value = float(np.float64(hidden) @ np.float64(params['value_head']))
    assert row['p_correct'] == pytest.approx(np.clip(value, 0, 1), abs=1e-4)
  values = {r['p_correct'] for r in found}
  assert len(values - {0, 1}) > 3 and lasts == {True, False}
  assert all(r['generated'] >= r['length'] for r in found)
  assert 'generated' in (out / 'table.md').read_text()
  settings = json.loads(path.with_suffix('.json').read_text())
  want = dict(simulations=4, candidates=2, step_tokens=2, step_end='')
  assert settings | want == settings


def test_a_resumed_search_is_the_uninterrupted_one(valued, searched, tmp_path):
  path, found, out = searched
  cut = tmp_path / 'cut'
  shutil.copytree(out, cut)
  again = cut / 'answers' / path.name
  lines = path.read_text().splitlines(keepends=True)
  again.write_text(''.join(lines[:7]) + lines[7][:30])
  _, rows = answers(valued[0], cut, '--top_logprobs=1')
  assert rows == found and len(found) == 18


def test_batch_and_devices_change_no_answer(valued, searched, tmp_path):
  _, found, _ = searched
  _, got = answers(valued[0], tmp_path, '--batch=8', '--mesh=2,2,2')
  for a, b in zip(got, found, strict=True):
    for key in 'problem', 'sample', 'completion', 'generated':
      assert a[key] == b[key]
    assert a['p_correct'] == pytest.approx(b['p_correct'], abs=1e-5)
    assert a['logp'] == pytest.approx(b['logp'], abs=2e-4)


VERIFIED = (
  '--simulations=4',
  '--candidates=4',
  '--step_tokens=2',
  '--leaf=verifier',
)


def right(found) -> np.ndarray:
  return np.array([row['verdict']['score'] for row in found])


def test_a_search_by_the_verifier_needs_no_judge(supervised, tmp_path):
  """The search keeps the correct samples of the policy. Eight devices, and a
  resumed search, return the same completions.
  """
  _, plain = answers(supervised, tmp_path / 'plain', search=())
  path, found = answers(supervised, tmp_path / 'one', search=VERIFIED)
  settings = json.loads(path.with_suffix('.json').read_text())
  assert settings['leaf'] == 'verifier' and 'judge' not in settings
  assert right(found).sum() > right(plain).sum() > 0
  assert np.all(right(found) >= right(plain)) and 'p_correct' not in found[0]
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:7]))
  devices = '--batch=8', '--mesh=2,2,2'
  for flags, out in ((), 'one'), (devices, 'eight'):
    _, again = answers(supervised, tmp_path / out, *flags, search=VERIFIED)
    for a, b in zip(again, found, strict=True):
      for key in 'problem', 'sample', 'completion', 'generated', 'verdict':
        assert a[key] == b[key]


EXPERT = {
  'rl.algorithm': 'raft',
  'rl.search.simulations': 4,
  'rl.search.step_tokens': 2,
  'rl.optimizer.lr': 1e-2,
  'rl.steps': 4,
}


@pytest.fixture(scope='module')
def expert(supervised):
  """Returns a function that trains on searched completions, and returns the
  metrics of the steps.
  """

  def run(where, **flat):
    start = {'init_from': str(supervised), 'checkpoint.every': 2}
    train.run(recipe(**EXPERT | start | flat), where)
    return run_records.trained(where)

  return run


def test_a_stage_trains_on_searched_completions(expert, tmp_path):
  """Expert iteration by the config alone: resumed, and on eight devices."""
  whole = expert(tmp_path / 'whole')
  for row in whole:
    assert row['train/grad_norm'] > 0 and row['train/policy_lag'] == 0
    assert 0 < row['train/gap_max'] < 1e-5
    assert row['train/search/generated'] > 4 * row['train/length_mean']
  expert(tmp_path / 'parts', **{'rl.steps': 2})
  assert expert(tmp_path / 'parts') == whole
  eight = expert(tmp_path / 'eight', mesh=(8, 1, 1))
  for got, want in zip(eight, whole, strict=True):
    for name in ('loss', 'grad_norm', 'reward_mean', 'search/generated'):
      wanted = pytest.approx(want[f'train/{name}'], rel=1e-3, abs=1e-5)
      assert got[f'train/{name}'] == wanted, name
  run = config_lib.read(recipe(**EXPERT))
  with pytest.raises(ValueError, match='search.simulations=4: a plan counts'):
    phases._refuse_parts(run.rl)


def test_a_second_mesh_searches(expert, tmp_path):
  """Devices that only sample find the completions of one mesh."""
  once = {'rl.steps_per_dispatch': 1}
  one = expert(tmp_path / 'one', mesh=(4, 1, 2), **once)
  two = {'mesh': (2, 1, 2), 'sampler_mesh': (4, 1, 1)}
  two = expert(tmp_path / 'two', **once | two)
  for got, want in zip(two, one, strict=True):
    for name in ('loss', 'grad_norm', 'reward_mean', 'search/generated'):
      wanted = pytest.approx(want[f'train/{name}'], rel=1e-3, abs=1e-5)
      assert got[f'train/{name}'] == wanted, name


def test_the_search_of_a_stage_has_its_settings():
  tokenizer = tokenizers.CharTokenizer('0123456789 ')
  keys = {'candidates': 3, 'step_end': ' ', 'leaf': 'verifier_at_end'}
  keys = {f'rl.search.{k}': x for k, x in keys.items()}
  run = config_lib.read(recipe(**EXPERT | keys))
  (end,) = tokenizer.encode(' ')
  want = Search(4, 3, 2, (end,), 'ended')
  assert search_settings.search_of(run.rl, tokenizer) == want
  run = config_lib.read(recipe(**EXPERT | {'rl.search.step_end': '12'}))
  with pytest.raises(ValueError, match="rl.search.step_end: '12' is the text"):
    search_settings.search_of(run.rl, tokenizer)
  run = config_lib.read(recipe())
  given = run.rl, run.data, None, tokenizer
  assert generation_settings.generation(*given).search is None


@pytest.mark.slow
def test_a_killed_search_continues(runs, supervised, tmp_path):  # noqa: F811
  """Kills evaluations 20 times at random calls of the file system, and resumes
  each until it ends.
  """
  flags = [f'--model={supervised}', f'--suite={SUITE}', '--k=2', '--batch=6']

  def search(out, n=0):
    rest = [*flags, *VERIFIED]
    return runs(out, n, 'SIGKILL', rest, command='evaluate')

  def found(out):
    (path,) = (out / 'answers').glob('*.jsonl')
    return path.read_text()

  code, log, calls = search(tmp_path / 'whole')
  assert code == 0, log[-3000:]
  want, rng, left = found(tmp_path / 'whole'), random.Random(0), 20
  assert len(want.splitlines()) == 18
  while left:
    out, code = tmp_path / f'{left}-left', -9
    while code == -9:
      code, log, _ = search(out, rng.randint(1, calls) if left else 0)
      left -= code == -9
    assert code == 0, log[-3000:]
    assert found(out) == want
