"""A small RL problem shared by the tests of steps, shardings and stages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from small import small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, tasks
from jaxrl_reason.base import Prompts
from jaxrl_reason.data import pipeline, tokenizers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.run import fused_step
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import optim

B, G, P, C = 8, 4, 12, 8
KNOBS = dict(min_ops=2, max_ops=4, modulus=3, ops='+-', max_total=9)
TASK = tasks.get('arithmetic')
TOKENIZER = tokenizers.CharTokenizer(TASK.alphabet)
STOP = jnp.array(TOKENIZER.eos_ids)
ROOT = jax.random.key(5)


def _device(room: int):
  parts = {
    'answer': {'reward': 'task'},
    'format': {'reward': 'format', 'weight': 0.5},
  }
  return device.make(parts, TASK.kernel, TOKENIZER, room)


def reward(room: int):
  """The reward function for completions with room for so many tokens."""
  return _device(room)[1]


ENCODE, REWARD = _device(C)
GEN = fused_step.Generation(G, C, 'none', ('answer', 'format'))


@functools.cache
def model_and_params():
  """Untied and of four kv heads, so that the axes divide by 2 and 8; the
  vocabulary is the tokenizer's, padded.
  """
  # Cached: weights made while something is traced must not be tracers.
  with jax.ensure_compile_time_eval():
    _, model, params = small_model(vocab=24, kv_heads=4, tied=False, layers=2)
  return model, params


def learner(settings=None, lr=0.3, **changes) -> learner_lib.Learner:
  settings = {'name': 'grpo', 'kl_coef': 0.0} | (settings or {})
  # SGD: Adam turns the rounding of a near-zero gradient into a whole step.
  section = config_lib.optimizer(lr, name='sgd', warmup_steps=0)
  return learner_lib.Learner(
    model=model_and_params()[0],
    settings=losses.resolve(settings),
    tx=optim.make(section, 10),
    start=P,
    **changes,
  )


def prompts(first: int = 0, n: int = B) -> Prompts:
  source = pipeline.TaskSource('arithmetic', 0, 'train', KNOBS)
  rows = [
    pipeline.prompt_row(i, source[i], TOKENIZER, P, ENCODE)
    for i in range(first, first + n)
  ]
  return Prompts(**jax.tree.map(lambda *x: np.stack(x), *rows))


def state(learner: learner_lib.Learner):
  return learner_lib.init_state(learner, model_and_params()[1])


def rollout_batch(learner, seed=0):
  """A Batch sampled by the starting policy, with rewards 0..3 by row so that
  no group is dead whatever the policy says.
  """
  from jaxrl_reason import batch as batch_lib
  from jaxrl_reason.base import Reward

  noise, _ = fused_step.step_keys(jax.random.key(seed), 0)
  p = prompts()
  out = fused_step.rollout(
    learner, GEN, model_and_params()[1], p, noise, Sampling.make(), STOP
  )
  total = (jnp.arange(B * G) * 7 % 5).astype(jnp.float32)
  reward = Reward(total, jnp.stack([total, total], 1), jnp.ones(B * G, bool))
  return batch_lib.make_batch(p, out, reward)


def assert_close(a, b, rtol=2e-4, atol=4e-6):
  """float32 tolerance; `atol` is relative to a leaf's largest entry from 1."""

  def leaf(x, y):
    scale = max(1.0, float(np.max(np.abs(y), initial=0)))
    np.testing.assert_allclose(x, y, rtol=rtol, atol=atol * scale)

  jax.tree.map(leaf, a, b)
