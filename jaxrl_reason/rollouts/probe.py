"""A probe of correctness: a logistic regression on the hidden states of
completions, trained beside the policy.

  p(correct) = sigmoid(w z + b),   z = (x - mean) / (std sqrt(D))

x is the state [D] of a completion by `rl.views.hidden`. The weights, and the
running mean and standard deviation of x, are stored in
`TrainState.control['probe']`. Every step scores its completions first, and
trains on them afterwards, so the metrics are of samples that the probe has not
seen. Completions without a verdict, demonstrations and completions after a hint
do not count. A step without any that counts leaves the memory as it is.

With `token_weight` a, the policy's loss of a token t is multiplied by

  1 - a + a d_t / mean(d),   d_t = |p_t - p_(t-1)|

p_t is the probability of the probe at the state of token t, and the mean is
over the sampled tokens of the row. Tokens that change the prediction count
more, and the weights of a row have the mean 1.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.parts import Part, Step
from jaxrl_reason.rollouts.hidden_states import HIDDEN, HiddenStates

MEMORY = 0.9  # decay of the running statistics of the states, per step
SMALLEST = 1e-12  # variance of a feature


@dataclasses.dataclass(frozen=True)
class Probe(Part):
  """Trains the probe; static.

  Attributes:
    states: computes the hidden states.
    width: D.
    rate, updates: learning rate and gradient steps in a step of the run.
    decay: coefficient of |w|^2 / 2 in the loss.
    token_weight: a; 0: the probe changes nothing.
  """

  states: HiddenStates
  width: int
  rate: float
  updates: int
  decay: float
  token_weight: float = 0.0
  name: str = 'probe'

  def init(self, total: jax.Array) -> dict[str, jax.Array]:
    """Returns a probe that scores every state 0."""
    one, zeros = jnp.float32(0), jnp.zeros(self.width, jnp.float32)
    moments = {'mean': zeros, 'variance': zeros, 'steps': one}
    return {'weight': zeros, 'bias': one, **moments}

  def before(self, memory: dict, step: Step) -> tuple[dict, Step, Metrics]:
    """Scores the generated completions, and trains on them."""
    batch = step.sampled
    right, counts = outcome(batch)
    views, along = dict(batch.views or {}), None
    x = views.pop(HIDDEN, None)
    if x is None:
      own = step.state.params, batch, batch.mask
      x, along = self.states.along(*own, self._direction(memory))
    step = step._replace(batch=step.batch.replace(views=views or None))
    x = jnp.where(counts[:, None], x, 0)  # [N,D]
    scores = logits(memory, x)
    metrics = {
      'probe/auroc': auroc(scores, right, counts),
      'probe/loss': _mean(log_loss(scores, right), counts),
    }
    if along is not None:
      weight = self._weights(memory, along, batch.mask)
      step = step._replace(batch=step.batch.replace(token_weight=weight))
    new = self._fit(observed(memory, x, counts), x, right, counts)
    any_row = jnp.any(counts)
    new = {k: jnp.where(any_row, new[k], memory[k]) for k in memory}
    return new, step, metrics

  def _direction(self, memory: dict) -> jax.Array | None:
    """Returns the direction [D] of states in which log-odds rise."""
    if not self.token_weight:
      return None
    return memory['weight'] / (_std(memory) * self.width**0.5)

  def _weights(self, memory: dict, along, mask) -> jax.Array:
    """Computes the weights of tokens [N,T] of the loss; 1 in rows in which the
    prediction is constant.
    """
    start = memory['bias'] - _product(memory['mean'], self._direction(memory))
    p = jax.nn.sigmoid(along + start)  # [N,T]
    change = jnp.abs(p - jnp.roll(p, 1, axis=1))
    change = jnp.where(mask, change, 0)
    n = jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    mean = change.sum(axis=1, keepdims=True) / n
    share = jnp.where(mean > 0, change / jnp.where(mean > 0, mean, 1), 1)
    return 1 - self.token_weight + self.token_weight * share

  def _fit(self, memory: dict, x, right, counts) -> dict:
    z = features(memory, x)
    n = jnp.maximum(counts.sum(), 1)

    def update(_, weights):
      w, b = weights
      error = jax.nn.sigmoid(_product(z, w) + b) - right
      error = jnp.where(counts, error, 0) / n
      slope = _product(error, z) + self.decay * w
      return w - self.rate * slope, b - self.rate * error.sum()

    first = memory['weight'], memory['bias']
    w, b = jax.lax.fori_loop(0, self.updates, update, first)
    return memory | {'weight': w, 'bias': b}


def outcome(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Returns whether each row is correct by the first reward part, f32 [N], and
  whether it counts, bool [N].
  """
  seen = batch_lib.outcomes(batch)
  return (batch.reward_parts[:, 0] > 0.5).astype(jnp.float32), seen.own


def features(memory: dict, x: jax.Array) -> jax.Array:
  """Standardizes states [N,D] to features of a mean squared length of 1."""
  return (x - memory['mean']) / (_std(memory) * x.shape[1] ** 0.5)


def _std(memory: dict) -> jax.Array:
  return jnp.sqrt(jnp.maximum(memory['variance'], SMALLEST))


def logits(memory: dict, x: jax.Array) -> jax.Array:
  """Computes the log-odds [N] that completions with states [N,D] are
  correct.
  """
  return _product(features(memory, x), memory['weight']) + memory['bias']


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
  # TPUs would multiply in bf16.
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _mean(x: jax.Array, counts: jax.Array) -> jax.Array:
  return jnp.where(counts, x, 0).sum() / jnp.maximum(counts.sum(), 1)


def log_loss(scores: jax.Array, right: jax.Array) -> jax.Array:
  """Computes -log p(outcome) [N] in nats of log-odds [N]."""
  return jax.nn.softplus(scores) - right * scores


def auroc(scores: jax.Array, right: jax.Array, counts: jax.Array) -> jax.Array:
  """Computes the probability that a correct row has a higher score than an
  incorrect one; equal scores count half. NaN without such a pair.
  """
  pairs = ((right > 0.5) & counts)[:, None] & (right <= 0.5) & counts
  won = (scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)
  return jnp.where(pairs, won, 0).sum() / pairs.sum()


def observed(memory: dict, x: jax.Array, counts: jax.Array) -> dict:
  """Adds the states of a step to the running mean and variance of features.

  Args:
    x: f32 [N,D], 0 in rows that do not count.
  """
  n = jnp.maximum(counts.sum(), 1)
  mean = x.sum(axis=0) / n
  squares = jnp.where(counts[:, None], (x - mean) ** 2, 0)
  steps = MEMORY * memory['steps'] + 1
  share, apart = 1 / steps, mean - memory['mean']
  before = memory['variance'] + share * apart**2
  return memory | {
    'mean': memory['mean'] + share * apart,
    'variance': (1 - share) * before + share * squares.sum(axis=0) / n,
    'steps': steps,
  }
