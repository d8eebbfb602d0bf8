"""The compiled program of the rl stages of several runs, which differ in seeds
and in numbers of their loss.

  rl_seeds   states [S], prompts [S,K,B] -> states, metrics [S,K]
"""

from collections.abc import Callable

import jax

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Metrics, TrainState
from jaxrl_reason.run.rl import programs


def each_run(f: Callable, given):
  """Computes f(x) for every x of stacked runs: by `vmap` over [S,...], or on a
  CPU, where batched products are no faster, one after another.
  """
  if sharding.platform() == 'cpu':
    return jax.lax.map(f, given)
  return jax.vmap(f)(given)


def rl_seeds(
  made: Callable, states, prompts, roots, values, stop
) -> tuple[TrainState, Metrics]:
  """Makes K steps of S runs: states [S,...], prompts [S,K,B,...], roots [S],
  values [S] by name -> metrics [S,K].

  The runs sample side by side, because decoding consists of many short
  operations. They update one after another, because the activations of one run
  may fit into on-chip memory and those of all runs do not.

  Args:
    made: a run's values -> (learner, source, sampling) of its steps.
  """

  def sample(run):
    state, prompts, root, values = run
    learner, source, sampling = made(values)
    return programs.sampled(
      learner, source, state, prompts, root, sampling, stop
    )

  def update(run):
    state, (found, sampling), root, values = run
    batch = batch_lib.make_batch(found)
    learner = made(values)[0]
    return programs.learn(learner, state, batch, root, sampling, found.account)

  def one(states, prompts):
    found = each_run(sample, (states, prompts, roots, values))
    return jax.lax.map(update, (states, found, roots, values))

  def swapped(tree):
    return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)

  states, metrics = jax.lax.scan(one, states, swapped(prompts))
  return states, swapped(metrics)
