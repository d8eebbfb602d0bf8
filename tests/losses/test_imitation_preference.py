"""Demonstrations, preferences, values and Bellman losses equal numbers by
hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
from losses_batch import Compiled, close

from jaxrl_reason import losses as library

losses = Compiled(library)

MASK = jnp.array([[1, 1, 0]])
LOGP = jnp.log(jnp.array([[0.5, 0.1, jnp.nan]]))


def value_and_grad(fn):
  (_, x), grad = jax.value_and_grad(
    lambda lp: (fn(lp).sum(), fn(lp)), has_aux=True
  )(LOGP)
  return np.asarray(x), np.asarray(grad)


def test_sft_dft_and_luffy():
  x, grad = value_and_grad(lambda lp: losses.sft(lp, MASK))
  close(x, [[np.log(2), np.log(10), 0]], 1e-5)
  close(grad, [[-1, -1, 0]], 1e-6)
  x, grad = value_and_grad(lambda lp: losses.dft(lp, MASK))
  close(x, [[np.log(2) / 2, np.log(10) / 10, 0]], 1e-5)
  close(grad, [[-0.5, -0.1, 0]], 1e-5)
  adv = jnp.array([[2.0, 2.0, jnp.nan]])
  x, grad = value_and_grad(lambda lp: losses.luffy(lp, adv, MASK))
  close(x, [[-2 * 0.5 / 0.6, -1.0, 0]], 1e-5)
  # gamma p / (p + gamma)^2
  close(grad, [[-2 * 0.05 / 0.36, -2 * 0.01 / 0.04, 0]], 1e-5)


def test_rl_plus():
  """The probabilities are 0.5 and 0.1, and were 0.2 and 0.1 before the
  updates.
  """
  adv = jnp.array([[2.0, 2.0, jnp.nan]])
  old = jnp.log(jnp.array([[0.2, 0.1, 1.0]]))
  x, grad = value_and_grad(lambda lp: losses.rl_plus(lp, old, adv, MASK))
  want = [[-2 * 1.0 / 0.8 * 0.5**0.5, -2 * 0.2 / 0.65 * 0.9**0.5, 0]]
  close(x, want, 1e-5)
  close(grad, want, 1e-5)  # pi is a factor
  x, _ = value_and_grad(
    lambda lp: losses.rl_plus(lp, old, adv, MASK, rl_plus_gamma=0.0)
  )
  close(x, [[-2 * 1.0 / 0.8, -2 * 0.2 / 0.65, 0]], 1e-5)


def test_anneal():
  def at(step, shape='linear'):
    return losses.anneal(step, start=1.0, end=0.2, steps=10, shape=shape)

  close(np.array([at(0), at(5), at(10), at(99)]), [1, 0.6, 0.2, 0.2], 1e-6)
  close(np.array([at(0, 'cosine'), at(5, 'cosine')]), [1, 0.6], 1e-6)


def test_preferences():
  """The margin is 2 and beta 1/2, so h = 1."""
  pair = [jnp.array([x]) for x in (-1.0, -4.0, -2.0, -3.0)]

  def sigmoid(x):
    return 1 / (1 + np.exp(-x))

  close(losses.dpo(*pair, beta=0.5), [-np.log(sigmoid(1))], 1e-5)
  smooth = -0.9 * np.log(sigmoid(1)) - 0.1 * np.log(sigmoid(-1))
  close(losses.dpo(*pair, beta=0.5, label_smoothing=0.1), [smooth], 1e-5)
  close(losses.ipo(*pair, tau=0.5), [1.0], 1e-5)  # (2 - 1)^2
  kto = losses.kto(
    jnp.array([-1.0, -1.0]),
    jnp.array([-3.0, -3.0]),
    jnp.array([1, 0]),
    0.5,
    beta=2.0,
    weight_bad=1.5,
  )
  close(kto, [sigmoid(-3), 1.5 * sigmoid(3)], 1e-5)

  def odds(lp):
    return np.log(np.exp(lp) / (1 - np.exp(lp)))

  orpo = losses.orpo(jnp.array([-0.2]), jnp.array([-1.5]), orpo_lambda=0.1)
  want = 0.2 - 0.1 * np.log(sigmoid(odds(-0.2) - odds(-1.5)))
  close(orpo, [want], 1e-5)
  grad = jax.grad(lambda c: losses.orpo(c, jnp.array([-1e-9])).sum())
  assert np.isfinite(grad(jnp.array([-1e-9]))).all()


def test_values():
  values = jnp.array([[1.0, 3.0, jnp.nan]])
  targets = jnp.array([[2.0, 1.0, jnp.nan]])
  old = jnp.array([[1.0, 2.5, jnp.nan]])
  close(losses.value_loss(values, targets, MASK), [[0.5, 2, 0]], 1e-6)
  clipped = losses.value_loss(
    values, targets + 1.0, MASK, old_values=old, value_clip=0.2
  )
  # Row: (1 - 3)^2 / 2 against the same; (2.7 - 2)^2 < (3 - 2)^2.
  close(clipped, [[2, 0.5, 0]], 1e-6)
  stuck = losses.value_loss(
    values - 1, targets, MASK, old_values=old, value_clip=0.2
  )
  # V = 0, kept at 0.8: (0 - 2)^2 is larger. V = 2, kept at 2.3: (1.3)^2 / 2.
  close(stuck, [[2, 0.845, 0]], 1e-5)


def test_verifiers():
  z, y = jnp.array([0.3, -2.0, 5.0]), jnp.array([1.0, 0.0, jnp.nan])
  want = [np.log1p(np.exp(-0.3)), np.log1p(np.exp(-2.0)), 0]
  close(losses.binary_cross_entropy(z, y), want, 1e-5)
  prm = losses.implicit_prm(
    LOGP,
    jnp.log(jnp.array([[0.25, 0.2, 1.0]])),
    jnp.ones(1),
    MASK,
    prm_beta=2.0,
  )
  # 2 (ln 2 - ln 2) = 0
  close(prm, [np.log(2)], 1e-5)


LOGITS = np.array([[[0.0, 1.0], [2.0, 0.0], [0.5, 0.5]]])
TOKENS = np.array([[1, 0, 1]])


def test_tbrm_by_hand():
  """The first token belongs to the prompt: V is at the start of the answer."""
  mask = np.array([[0, 1, 1]])
  ref = jnp.array([[jnp.nan, -1.0, -0.5]])
  loss = losses.tbrm(
    jnp.array(LOGITS), TOKENS, ref, jnp.array([1.0]), mask, tbrm_beta=0.5
  )
  v = np.log(np.exp(2) + 1)
  path = (2 - v + 1.0) + (-np.log(2) + 0.5)
  close(loss, [(v + path - 2.0) ** 2], 1e-5)
  # The sum of one-step residuals Q - r - V' is the same number.
  q = [2 - (-1.0), 0.5 - (-0.5)]
  steps = (q[0] - np.log(2 * np.exp(0.5))) + (q[1] - 2.0)
  close(loss, [steps**2], 1e-5)
  empty = losses.tbrm(
    jnp.array(LOGITS), TOKENS, ref, jnp.array([jnp.nan]), mask
  )
  assert empty[0] == 0


def test_rover_by_hand():
  mask = np.array([[1, 0, 1]])
  old_logp = jnp.array([[-1.0, jnp.nan, -0.4]])
  old_mean = jnp.array([[jnp.nan, jnp.nan, -0.9]])
  loss = losses.rover(
    jnp.array(LOGITS), TOKENS, old_logp, old_mean, jnp.array([0.3]), mask
  )
  q0 = (1 - np.log(1 + np.e)) + 1.0
  q2 = -np.log(2) + 0.4
  backup = -np.log(2) + 0.9  # mean of log softmax over two equal logits
  close(loss, [[(q0 - 0.3 - backup) ** 2, 0, (q2 - 0.3) ** 2]], 1e-5)


def test_bellman_gradients_ignore_masked_logits():
  logits = jnp.array(LOGITS).at[0, 1].set(jnp.nan)
  mask = np.array([[1, 0, 1]])
  ones = jnp.ones((1, 3))

  def both(z):
    return (
      losses.tbrm(z, TOKENS, ones, jnp.ones(1), mask).sum()
      + losses.rover(z, TOKENS, ones, ones, jnp.ones(1), mask).sum()
    )

  grad = jax.jit(jax.grad(both))(logits)
  assert np.isfinite(grad).all() and not np.any(grad[0, 1])
