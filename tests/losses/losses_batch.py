"""The batch of most tests: all edge cases in 11 rows of 5 tokens."""

import functools
import inspect

import jax
import numpy as np


class Compiled:
  """Compiles each call of a module's functions as one program.

  Otherwise every new shape compiles a dozen small programs. The calls also show
  that all functions work under jit. Arrays are traced, other arguments are
  static.
  """

  def __init__(self, module):
    self._module = module

  def __getattr__(self, name):
    fn = getattr(self._module, name)
    return functools.partial(_compiled, fn) if inspect.isfunction(fn) else fn


def _compiled(fn, *args, **kwargs):
  at = {str(i): x for i, x in enumerate(args)}
  everything = at | kwargs
  traced = {k: x for k, x in everything.items() if hasattr(x, 'dtype')}
  static = {k: x for k, x in everything.items() if k not in traced}

  def call(traced):
    both = static | traced
    keywords = {k: both[k] for k in kwargs}
    return fn(*(both[k] for k in at), **keywords)

  return jax.jit(call)(traced)


def together(fns, *args):
  """Computes {name: fn(*args)} in one program, since compilation takes most of
  the time.
  """

  def run(*args):
    out = {}
    for name, fn in fns.items():
      try:
        out[name] = fn(*args)
      except Exception as e:
        e.add_note(f'in {name}')
        raise
    return out

  return jax.jit(run)(*args)


def edge_batch(seed=0, spread=0.5, poison=True):
  """Returns a batch with interleaved groups of 1 to 5, holes, empty rows, NaN
  and a ratio of e^25.

  The arrays are float64 NumPy arrays. With `poison`, numbers outside the mask
  are NaN or inf, and one row has a NaN reward.
  """
  rng = np.random.default_rng(seed)
  group = np.array([5, -3, 5, 9, -3, 5, 9, 5, 70, 9, 5])
  reward = np.array([1, 0, 0, 0.3, 1, 1, 0.3, np.nan, 2, 0.3, 0.5])
  n, t = len(group), 5
  mask = rng.random((n, t)) < 0.75
  mask[0] = [0, 1, 1, 0, 1]
  mask[5] = False
  mask[9] = False
  logp = -np.abs(rng.normal(1.0, 0.6, (n, t))) - 0.05
  old = -np.abs(-logp + rng.normal(0, spread, (n, t))) - 0.01
  mask[2, 1] = mask[4, 2] = True
  logp[2, 1], old[2, 1] = -0.5, -25.5
  logp[4, 2], old[4, 2] = -25.5, -0.5
  ref = -np.abs(-logp + rng.normal(0, 0.3, (n, t))) - 0.01
  entropy = np.abs(rng.normal(1, 0.5, (n, t)))
  arrays = dict(logp=logp, old=old, ref=ref, entropy=entropy)
  if poison:
    for k, x in arrays.items():
      x[~mask] = {'logp': np.nan, 'old': -np.inf, 'ref': np.nan}.get(k, np.inf)
  # Values of float32, so that both sides have the same inputs.
  arrays = {k: np.float64(np.float32(x)) for k, x in arrays.items()}
  reward = np.float64(np.float32(reward))
  valid = np.isfinite(reward)
  return dict(arrays, group=group, reward=reward, mask=mask, valid=valid)


def run_in(bits, fn):
  """Runs fn(dtype) in float32, or in float64 with x64 enabled."""
  if bits == 32:
    return fn(np.float32), 2e-5
  with jax.enable_x64(True):
    return jax.tree.map(np.asarray, fn(np.float64)), 1e-6


def close(actual, desired, rtol, what=''):
  """Compares every value with a relative tolerance, and 1e-3 of it absolute."""
  actual, desired = np.asarray(actual, np.float64), np.asarray(desired)
  assert actual.shape == desired.shape, (what, actual.shape, desired.shape)
  assert np.isfinite(actual).all(), (what, actual)
  np.testing.assert_allclose(
    actual, desired, rtol=rtol, atol=1e-3 * rtol, err_msg=str(what)
  )
