"""A model answers for the reward 'verdict': the policy, or one of its own."""

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.run import train

TEXTS = {'rl.verdict.ask': '==', 'rl.verdict.yes': '+', 'rl.verdict.no': '-'}
JUDGED = {
  'answer': dict(reward='task', weight=0.0),
  'judge': dict(reward='verdict', weight=1.0),
}
NAME = 'train/reward/judge'


def judged(**flat):
  c = recipe(**{'rl.samples': 4} | TEXTS | flat)
  c.rl.rewards = dict(JUDGED)
  return c


def test_the_probability_is_that_of_whole_rows_without_padding():
  params = L.model_and_params()[1]
  prompts = L.prompts()
  rollout = L.sample(params, prompts)
  asks = Verdicts(L.MODEL, (3, 4), 5, 6)
  rows_of = batch_lib.rows_of(prompts, rollout)
  got = jax.jit(asks.probability)(params, rows_of)
  for i in (0, 7, 13):
    own = np.asarray(rows_of.tokens[i])[np.asarray(rows_of.valid[i])]
    row = jnp.asarray([*own.tolist(), 3, 4])[None]
    x = L.MODEL.hidden(params, row, jnp.ones_like(row, bool))[:, -1]
    logits = L.MODEL.unembed(params, x)[0]
    odds = np.exp(np.asarray(logits[5] - logits[6]))
    np.testing.assert_allclose(got[i], odds / (1 + odds), rtol=1e-4)


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  where = tmp_path_factory.mktemp('teacher')
  train.run(recipe(stages=('sft',)), where)
  return str(where)


def test_a_run_is_rewarded_by_its_policy_or_by_a_teacher(tmp_path, teacher):
  """A policy that begins with the teacher's weights has its first rewards."""
  start = {'init_from': teacher, 'rl.micro_batches': 2}
  train.run(judged(**start), tmp_path / 'own')
  by = {'rl.verdict.by': 'teacher', 'rl.teacher.weights': teacher}
  train.run(judged(**start | by), tmp_path / 'teacher')
  own, other = (
    [r[NAME] for r in rows(tmp_path / x)] for x in ('own', 'teacher')
  )
  np.testing.assert_allclose(own[0], other[0], rtol=1e-5)
  assert abs(own[-1] - other[-1]) > 1e-6
  assert all(0 < x < 1 for x in own + other)


def test_meshes_judge_alike(tmp_path, teacher):
  by = {'rl.verdict.by': 'teacher', 'rl.teacher.weights': teacher}
  start = {'init_from': teacher, 'rl.prompts': 8} | by
  found = []
  for mesh in ((8, 1, 1), (2, 2, 2)):
    where = tmp_path / str(mesh[0])
    train.run(judged(**start, mesh=mesh), where)
    found.append([r[NAME] for r in rows(where)])
  np.testing.assert_allclose(*found, rtol=2e-3)


@pytest.mark.parametrize(
  'flat, words',
  [
    ({'rl.path': 'host'}, "'verdict' reads"),
    ({'rl.verdict.yes': '++'}, r"rl.verdict.yes='\+\+' is 2 tokens"),
  ],
)
def test_settings_without_a_verdict_are_refused(tmp_path, flat, words):
  with pytest.raises(ValueError, match=words):
    train.run(judged(**flat), tmp_path)
