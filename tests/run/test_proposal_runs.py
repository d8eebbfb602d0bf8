"""Runs in which the policy writes the problems that it solves."""

import json

import numpy as np
import pytest
import run_records

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import tokenizers
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import proposal_settings

pytestmark = pytest.mark.one_device


def recipe(**flat):
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=8, completion_len=7)
  c.data.update(tokenizer='byte')
  c.data.knobs = dict(min_ops=1, max_ops=1, ops='+')
  c.model.update(layers=1, width=32, mlp=32, heads=2, kv_heads=2, head_dim=16)
  c.sft.update(steps=150, rows=32, steps_per_dispatch=1)
  c.sft.optimizer.lr = 1e-2
  c.rl.update(steps=4, prompts=8, samples=2, steps_per_dispatch=1)
  c.rl.update(algorithm='reinforce', cache_segments=1, propose='?')
  c.eval.update(every=100, problems=8, samples=1, harder=False)
  c.checkpoint.update(every=2)
  c.rollouts.update(every=1, problems=8)
  c.log_every, c.compile_cache, c.stages = 1, '', ('rl',)
  c.update_from_flattened_dict(flat)
  return c


@pytest.fixture(scope='module')
def warm(tmp_path_factory):
  """Returns a run that has learnt to write and to answer problems."""
  folder, rng = tmp_path_factory.mktemp('warm'), np.random.default_rng(0)
  rows = []
  for _ in range(400):
    a, b, x, y = rng.integers(1, 9, 4).tolist()
    one = {'prompt': f'{a}+{b}=?', 'solution': f'{x}+{y}=', 'answer': '0'}
    two = {'prompt': f'{a}+{b}=', 'solution': f'#{a + b}', 'answer': '0'}
    rows += [one, two]
  text = '\n'.join(json.dumps(row) for row in rows)
  (folder / 'train.jsonl').write_text(text)
  c = recipe(**{'data.dir': str(folder), 'rl.propose': ''})
  c.log_every, c.eval.every, c.checkpoint.every = 50, 150, 150
  c.stages, c.data.knobs, c.data.name = ('sft',), {}, 'files'
  c.data.files.solution = 'solution'
  train.run(c, folder / 'run')
  return folder / 'run'


@pytest.fixture(scope='module')
def whole(warm, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole')
  train.run(recipe(init_from=str(warm)), workdir)
  check_rollouts(sum(run_records.rollouts(workdir), []))
  return run_records.trained(workdir)


def check_rollouts(rows):
  """Checks that answers stand beside the proposal that they answer. The answer
  follows the first mark.
  """
  answers = [x for x in rows if not x['prompt'].endswith('?')]
  assert 0 < len(answers) < len(rows)
  for x in answers:
    a, b = x['prompt'].rstrip('=').split('+')
    _, mark, said = x['completion'].partition('#')
    right = bool(mark) and said == str(int(a) + int(b))
    assert x['reward'] == right, x
  asked = {x['prompt'] for x in answers}
  written = {x['completion'] for x in rows if x['prompt'].endswith('?')}
  assert len(asked & written) > 1
  assert not any('host' in x['verdict']['parts'] for x in rows)


def test_a_request_that_the_alphabet_lacks_is_refused_by_its_key():
  tokenizer = tokenizers.CharTokenizer('0123456789 ')
  with pytest.raises(ValueError, match=r"rl.propose: character '\?' of '\?'"):
    proposal_settings.around(None, '?', 'arithmetic', 'integer', tokenizer)


def test_both_roles_are_trained(whole):
  assert len(whole) == 4
  for row in whole:
    assert 0.3 < row['train/role/proposer/valid'] <= 1
    assert 0 < row['train/gap_max'] < 1e-5
  assert max(row['train/role/proposer/learnable'] for row in whole) > 0
  assert max(row['train/role/solver/reward'] for row in whole) > 0


def test_a_stopped_run_goes_on_as_the_whole_one(warm, whole, tmp_path):
  flat = {'init_from': str(warm)}
  train.run(recipe(**flat, **{'rl.steps': 2}), tmp_path)
  train.run(recipe(**flat), tmp_path)
  assert run_records.trained(tmp_path) == whole


def test_eight_devices_train_as_one_does(warm, whole, tmp_path):
  train.run(recipe(init_from=str(warm), mesh=(8, 1, 1)), tmp_path)
  for got, want in zip(run_records.trained(tmp_path), whole, strict=True):
    for name in ('role/proposer/reward', 'role/solver/reward', 'loss'):
      want_now = want[f'train/{name}']
      assert got[f'train/{name}'] == pytest.approx(want_now, abs=1e-4), name
