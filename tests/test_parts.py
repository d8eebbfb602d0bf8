"""Parts of a step: their memories, their order, and errors of a chain."""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason.parts import Chain, Part
from jaxrl_reason.run.rl import programs


@dataclasses.dataclass(frozen=True)
class Counting(Part):
  """Counts the steps, before and after the update, and scales rewards."""

  name: str = 'counting'
  scale: float = 1.0

  def init(self, total):
    return {'before': total, 'after': jnp.int32(0)}

  def before(self, memory, step):
    memory = memory | {'before': memory['before'] + 1}
    batch = step.batch.replace(reward=self.scale * step.batch.reward)
    mean = batch.reward.mean()
    return memory, step._replace(batch=batch), {f'{self.name}/reward': mean}

  def after(self, memory, state, metrics):
    memory = memory | {'after': memory['after'] + 1}
    return memory, state, {f'{self.name}/seen': metrics[f'{self.name}/reward']}


def learner(*parts):
  return L.learner(chain=Chain(parts))


def steps(learner, n=2):
  state = L.state(learner).replace(control=learner.chain.init(jnp.int32(7)))
  prompts = jax.tree.map(lambda x: np.stack([x] * n), L.prompts())
  return jax.jit(
    lambda s, p: programs.rl_steps(
      learner, L.SOURCE, s, p, L.ROOT, L.NEUTRAL, L.STOP
    )
  )(state, prompts)


def test_a_part_keeps_its_memory_and_changes_the_batch_of_later_parts():
  one, two = Counting('one', 3.0), Counting('two', 5.0)
  state, metrics = steps(learner(one, two))
  assert {k: int(v) for k, v in state.control['one'].items()} == {
    'before': 9,
    'after': 2,
  }
  plain = np.asarray(metrics['reward_mean'])
  np.testing.assert_allclose(metrics['one/reward'], 3 * plain, rtol=1e-6)
  np.testing.assert_allclose(metrics['two/reward'], 15 * plain, rtol=1e-6)
  np.testing.assert_array_equal(metrics['two/seen'], metrics['two/reward'])


def test_empty_parts_change_nothing():
  want, _ = steps(L.learner())
  got, _ = steps(learner(Part.__new__(type('Idle', (Part,), {'name': 'idle'}))))
  jax.tree.map(np.testing.assert_array_equal, got.params, want.params)


class Weak(Part):
  name = 'weak'

  def init(self, total):
    return {'rate': jnp.full(3, 1.0)}  # a Python number: weakly typed


def test_a_memory_that_begins_weakly_typed_is_refused():
  """The step would be compiled twice."""
  with pytest.raises(ValueError, match='control/weak/rate begins weakly typed'):
    Chain((Weak(),))


@pytest.mark.parametrize(
  'change',
  [
    lambda x: {'x': x['x'].astype(jnp.float16)},
    lambda x: {'x': x['x'][None]},
    lambda x: x | {'y': x['x']},
  ],
)
def test_a_memory_that_changes_its_kind_is_refused_by_name(change):
  class Changing(Part):
    name = 'changing'

    def init(self, total):
      return {'x': jnp.float32(0)}

    def before(self, memory, step):
      return change(memory), step, {}

  with pytest.raises(
    TypeError, match='control/changing/. was .* Changing must'
  ):
    steps(learner(Changing()), n=1)


def test_two_parts_of_one_name_are_refused():
  with pytest.raises(ValueError, match="names of their own: .'counting'"):
    Chain((Counting(), Counting()))
