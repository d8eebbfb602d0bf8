"""A small RL problem shared by the tests of steps, shardings and stages."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from small import small_config, small_model

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Prompts, Reward, Trajectories
from jaxrl_reason.data import pipeline, tokenizers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import transformer
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rollouts import fused as fused_lib
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import optim
from jaxrl_reason.verifiers import tasks

B, G, P, C = 8, 4, 12, 8
KNOBS = dict(min_ops=2, max_ops=4, modulus=3, ops='+-', max_total=9)
TASK = tasks.get('arithmetic')
TOKENIZER = tokenizers.CharTokenizer(TASK.alphabet)
STOP = jnp.array(TOKENIZER.eos_ids)
ROOT = jax.random.key(5)
NEUTRAL = Sampling.make()
# Untied and of four kv heads, so that the axes divide by 2 and 8; the
# vocabulary is the tokenizer's, padded.
SHAPE = dict(vocab=24, kv_heads=4, tied=False, layers=2)
MODEL = transformer.build(small_config(**SHAPE))
PARTS = ('answer', 'format')


def _device(room: int):
  parts = {
    'answer': {'reward': 'task'},
    'format': {'reward': 'format', 'weight': 0.5},
  }
  return device.make(parts, TASK.kernel, TOKENIZER, room)


def reward(room: int):
  """Returns the reward function for completions of at most `room` tokens."""
  return _device(room)[1]


ENCODE, REWARD = _device(C)
GEN = fused_lib.Generation(MODEL, G, C)
SOURCE = fused_lib.FusedSource(GEN, REWARD)


@functools.cache
def model_and_params():
  # Cached: weights made while something is traced must not be tracers.
  with jax.ensure_compile_time_eval():
    return MODEL, small_model(**SHAPE)[2]


def learner(settings=None, lr=0.3, **changes) -> learner_lib.Learner:
  settings = {'name': 'grpo', 'kl_coef': 0.0} | (settings or {})
  # SGD: Adam turns the rounding of a near-zero gradient into a whole step.
  section = config_lib.Optimizer(lr=lr, name='sgd', warmup_steps=0)
  return learner_lib.Learner(
    model=MODEL,
    objective=losses.resolve(settings),
    tx=optim.make(section, 10),
    start=P,
    **{'part_names': PARTS} | changes,
  )


def prompts(first: int = 0, n: int = B) -> Prompts:
  source = pipeline.TaskSource('arithmetic', 0, 'train', KNOBS)
  rows = [
    pipeline.prompt_row(i, source[i], TOKENIZER, P, ENCODE)
    for i in range(first, first + n)
  ]
  return Prompts(**trees.stacked(rows))


def state(learner: learner_lib.Learner):
  return learner_lib.init_state(learner, model_and_params()[1])


def fused(learner, state, prompts, source=SOURCE, sampling=NEUTRAL):
  """Runs the fused step of this problem."""
  return programs.fused_step(
    learner, source, state, prompts, ROOT, sampling, STOP
  )


# Compiled as one program. Without jit there would be two hundred programs.
_complete = jax.jit(fused_lib.complete, static_argnums=0)


def sample(params, prompts, gen=GEN, root=ROOT, step=0):
  """Returns the Rollout of one step."""
  return _complete(gen, params, prompts, root, step, NEUTRAL, STOP)


def batch_of(prompts, rollout, total=None):
  """Returns the Batch of a rollout with REWARD, or with `total` [N] in all
  parts.
  """
  if total is None:
    answers = jax.tree.map(
      lambda x: batch_lib.per_row(x, len(rollout.length)), prompts.answer
    )
    found = REWARD(rollout, answers)
  else:
    found = Reward(total, jnp.stack([total, total], 1), total >= 0)
  return batch_lib.make_batch(Trajectories(prompts, rollout, found))


def varied():
  """Returns rewards 0..4 by row, so that no group has zero variance."""
  return (jnp.arange(B * G) * 7 % 5).astype(jnp.float32)


def rollout_batch(learner, seed=0):
  """Returns a Batch of the initial policy with `varied` rewards."""
  gen = dataclasses.replace(GEN, model=learner.model)
  out = sample(model_and_params()[1], prompts(), gen, jax.random.key(seed))
  return batch_of(prompts(), out, varied())


def assert_close(a, b, rtol=2e-4, atol=4e-6):
  """Compares in float32; `atol` is relative to a leaf's largest entry from
  1.
  """

  def leaf(x, y):
    scale = max(1.0, float(np.max(np.abs(y), initial=0)))
    np.testing.assert_allclose(x, y, rtol=rtol, atol=atol * scale)

  jax.tree.map(leaf, a, b)
