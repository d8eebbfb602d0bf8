"""Runs of chains: rewards of every link by name, in metrics and on disk."""

import json

import numpy as np
import pytest
from refusals import refusal

from jaxrl_reason import config as config_lib
from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device

LINKS = {
  'verify': {
    'solve': {'reward': 'task'},
    'verify': {'ask': '?', 'reward': 'agrees', 'of': 'solve', 'weight': 0.5},
  },
  'refine': {
    'draft': {'reward': 'task', 'weight': 0.0},
    'refine': {'ask': '?', 'reward': 'task'},
  },
}


def recipe(second='verify', **rl):
  c = config_lib.default()
  c.data.update(name='checked', prompt_len=10, completion_len=16)
  c.data.knobs = dict(ops='+-', modulus=3, min_ops=1, max_ops=2, second=second)
  c.model.update(layers=1, width=32, mlp=32, heads=2, kv_heads=2, head_dim=16)
  c.sft.update(steps=60, rows=32, steps_per_dispatch=2)
  c.sft.optimizer.lr = 1e-2
  c.rl.update(steps=4, prompts=8, samples=4, steps_per_dispatch=2)
  c.rl.update(algorithm='mt_grpo', cache_segments=1)
  c.rl.rewards = {}
  c.rl.turns.update(env='chain', tokens=8, observation=2, stops=(';',))
  c.rl.turns.links = LINKS[second]
  c.rl.update(rl)
  c.rollouts.update(every=2, problems=4)
  c.eval.update(every=100, problems=16, samples=2, harder=False)
  c.log_every, c.compile_cache = 2, ''
  return c


def told(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.split('\n') if line]


@pytest.mark.parametrize(
  'second', ['verify', pytest.param('refine', marks=pytest.mark.slow)]
)
def test_every_link_has_metrics(second, tmp_path):
  c = recipe(second)
  train.run(c, tmp_path)
  lines = told(tmp_path)
  (first, last), spec = LINKS[second], LINKS[second]
  trained = [x for x in lines if f'train/reward/{first}' in x]
  assert trained and {'train/turns/0/length', f'train/reward/{last}'} <= set(
    trained[-1]
  )
  (path, *_) = sorted((tmp_path / 'rollouts').glob('*.jsonl'))
  rows = [json.loads(x) for x in path.read_text().split('\n') if x]
  assert rows and {tuple(row['verdict']['parts']) for row in rows} == {
    (first, last)
  }
  weights = [spec[k].get('weight', 1.0) for k in (first, last)]
  seen = set()
  for row in rows:
    parts = row['verdict']['parts']
    total = sum(w * parts[k] for w, k in zip(weights, (first, last)))
    assert row['reward'] == pytest.approx(total)
    # The text has all links without the request `?`, which is an observation.
    own = row['completion'].split(';')
    if len(own) == 2 and second == 'verify':
      right = own[0].rpartition('#')[2] == row['answer']
      if own[0].count('#') == 1 and own[1] in ('y', 'n'):
        assert parts == {'solve': right, 'verify': right == (own[1] == 'y')}
        seen.add((right, own[1]))
  assert second == 'refine' or seen
  (end,) = [x for x in lines if 'eval/heldout/greedy' in x][-1:]
  shares = np.array([end['eval/heldout/greedy'], end['eval/heldout/pass@1']])
  assert ((shares > 0) & (shares <= 1)).all()  # one link, and it is graded


def link_texts(tokens):
  """Returns the text of each of three links, without its end."""
  of = zip(tokens['turn'], tokens['sampled'], tokens['text'])
  said = [''] * 3
  for turn, own, text in of:
    said[turn] += text * own
  return [x.removesuffix(';') for x in said]


def test_a_critique_comes_between_two_tries(tmp_path):
  """The critique has no reward. By the rollouts on disk, the reward of the
  second try is its gain over the first.
  """
  c = recipe('refine')
  c.rl.turns.links = {
    'attempt': {'reward': 'task', 'weight': 0.25},
    'critique': {'ask': '?'},
    'retry': {'ask': '?', 'reward': 'gains', 'of': 'attempt'},
  }
  c.data.update(completion_len=28)
  c.eval.problems = 8
  train.run(c, tmp_path)
  (path, *_) = sorted((tmp_path / 'rollouts').glob('*.jsonl'))
  rows = [json.loads(x) for x in path.read_text().split('\n') if x]
  gains = []
  for row in rows:
    parts, said = row['verdict']['parts'], link_texts(row['tokens'])
    assert list(parts) == ['attempt', 'critique', 'retry']
    assert parts['critique'] == 0
    total = 0.25 * parts['attempt'] + parts['retry']
    assert row['reward'] == pytest.approx(total)
    if all(x.count('#') < 2 for x in said):
      right = ['#' in x and x.partition('#')[2] == row['answer'] for x in said]
      gains.append(right[2] - right[0])
      assert parts['retry'] == gains[-1]
  assert {-1, 1} & {*gains}, gains
  assert {'train/reward/critique'} <= {k for x in told(tmp_path) for k in x}


@pytest.mark.parametrize(
  'change, words',
  [
    ({'rewards': {'answer': {'reward': 'task'}}}, "rl.rewards=['answer']: of "),
    ({'turns.stops': (';', '?')}, "rl.turns.stops=(';', '?'): one text ends"),
    (
      {'path': 'host', 'steps_per_dispatch': 1},
      "rl.turns.env='chain' is inside the program: set rl.path='fused'",
    ),
    ({'turns.args': {'a': 1}}, "has no effect without rl.path='host'"),
  ],
)
def test_incompatible_settings_are_refused(change, words):
  assert words in refusal(recipe(), change)


def test_a_request_that_does_not_fit_is_refused(tmp_path):
  c = recipe()
  c.rl.turns.links.verify.ask = '???'
  with pytest.raises(ValueError, match='rl.turns.observation=2: what asks'):
    train.run(c, tmp_path)
