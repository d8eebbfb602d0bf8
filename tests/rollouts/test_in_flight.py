"""Groups in flight have the samples of plain steps, each token of its own
version.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import fused, in_flight
from jaxrl_reason.rollouts.in_flight import NAME, InFlightSource

# Several tokens end a completion, so that rows end at different times.
STOP = jnp.concatenate([L.STOP, jnp.arange(4, 8, dtype=L.STOP.dtype)])


# Layers with windows, of the delta rule, and in a loop that decodes them all.
SHAPES = {
  'plain': {},
  'windows': dict(windows=(3, 0), norm_place='sandwich'),
  'delta': dict(
    delta_layers=(0,),
    delta_heads=2,
    delta_groups=2,
    delta_key_dim=3,
    delta_value_dim=4,
    delta_taps=3,
    norm_eps=0.1,
  ),
  'loop': dict(decode_layers='scan'),
}


@pytest.fixture(autouse=True)
def chunks_of_three_tokens(monkeypatch):
  monkeypatch.setattr(in_flight, 'CHUNK', 3)


@functools.cache
def source(pieces=2, max_staleness=0, cache='kept', shape='plain'):
  gen = dataclasses.replace(L.GEN, slots=2)
  if SHAPES[shape]:
    gen = dataclasses.replace(
      gen, model=small_model(**L.SHAPE | SHAPES[shape])[1]
    )
  plain = dataclasses.replace(L.SOURCE, gen=gen)
  return InFlightSource(plain, 3, pieces, max_staleness, cache)


@functools.cache
def params_of(shape: str):
  with jax.ensure_compile_time_eval():
    params = small_model(**L.SHAPE | SHAPES[shape])[2]
    # With the larger weights of the other shapes, a change in the last bits of
    # all weights changes one log-probability by 4e-5.
    scale = 0.5 if shape == 'delta' else 1.0
    return jax.tree.map(lambda x: scale * x, params)


def weights(i, change, shape='plain'):
  """Returns the weights of step i: the initial ones times 1 + change * i."""
  return jax.tree.map(lambda x: x * (1 + change * i), params_of(shape))


@functools.partial(jax.jit, static_argnums=(0, 5))
def step(how, memory, prompts, i, change, shape='plain'):
  """Runs step i with its weights."""
  given = prompts, L.ROOT, i, L.NEUTRAL, STOP
  return how(weights(i, change, shape), {NAME: memory}, *given)


def sampled(how: InFlightSource, n_steps: int, change=0.0, shape='plain'):
  """Runs n steps, whose weights differ by `change`; returns their trajectories
  and memories.
  """
  shapes = jax.eval_shape(lambda: (params_of(shape), L.prompts()))
  found, memories = [], [jax.jit(lambda: how.memory(*shapes))()]
  for i in range(n_steps):
    prompts = L.prompts(i * L.B)
    found.append(step(how, memories[-1], prompts, i, change, shape))
    memories.append(found[-1].account.control[NAME])
  return found, memories


def by_problem(found, names=('tokens', 'length', 'truncated')):
  """Returns {problem: arrays [G,...]} of the valid groups of all steps."""
  out = {}
  for x in found:
    ids = np.asarray(x.prompts.prompt_id)
    valid = np.asarray(x.reward.valid).reshape(L.B, L.G)
    for i, problem in enumerate(ids.tolist()):
      if valid[i].any():
        assert problem not in out and valid[i].all()
        rows = slice(i * L.G, (i + 1) * L.G)
        arrays = {k: getattr(x.rollout, k)[rows] for k in names}
        out[problem] = arrays | {'reward': x.reward.total[rows]}
  return out


@pytest.mark.parametrize(
  'cache, pieces', [('kept', 1), ('recomputed', 1), ('kept', 2)]
)
def test_constant_weights_sample_what_plain_steps_sample(cache, pieces):
  """Each group has the completions, log-probs and rewards of the step that
  began it, with slots, in whatever order groups end.
  """
  found, memories = sampled(source(pieces=pieces, cache=cache), 8)
  names = 'tokens', 'length', 'truncated', 'logp'
  got, want = by_problem(found, names), {}
  params = L.model_and_params()[1]
  plain = jax.jit(fused.complete, static_argnums=0)
  for i in range(8):
    prompts = L.prompts(i * L.B)
    out = plain(L.GEN, params, prompts, L.ROOT, i, L.NEUTRAL, STOP)
    batch = L.batch_of(prompts, out)
    for j, problem in enumerate(prompts.prompt_id.tolist()):
      rows = slice(j * L.G, (j + 1) * L.G)
      arrays = {k: getattr(out, k)[rows] for k in names}
      want[problem] = arrays | {'reward': batch.reward[rows]}
  assert len(got) == 6 * L.B  # two steps only begin groups
  for problem, arrays in got.items():
    for name, x in arrays.items():
      np.testing.assert_allclose(x, want[problem][name], atol=1e-5)
  # Some group is not trained on in the order in which it began.
  order = np.concatenate([x.prompts.prompt_id for x in found[2:]])
  assert np.any(np.diff(order) < 0)
  first, last = (jax.tree.map(jax.typeof, m) for m in memories[::7])
  assert first == last


@pytest.mark.parametrize('pieces', [1, 2])
def test_each_token_has_the_version_of_the_weights_that_sampled_it(pieces):
  """Rows continue with later weights, and the lag is measured per token."""
  found, _ = sampled(source(pieces=pieces), 9, change=0.02)
  steps = [x for x in found if np.any(x.reward.valid)]
  assert len(steps) == 7
  mixed = 0
  for i, x in enumerate(steps, 2):
    drawn = np.asarray(x.rollout.sampled)
    version = np.where(drawn, x.rollout.version, i)
    assert np.all(version <= i) and np.all(np.diff(version, axis=1) >= 0)
    mixed += np.sum(version.min(axis=1) < version.max(axis=1))
    lag = np.where(drawn, i - np.asarray(version), 0).max()
    assert x.account.metrics['in_flight/lag_max'] == lag
    assert 0 <= x.account.metrics['in_flight/idle'] < 0.5
  assert mixed


def test_no_group_becomes_older_than_the_limit():
  free, _ = sampled(source(), 20)
  bound, _ = sampled(source(max_staleness=2), 20)

  def oldest(found):
    return max(int(x.account.metrics['in_flight/lag_max']) for x in found[2:])

  assert oldest(free) > 2 and oldest(bound) == 2
  columns = [
    sum(int(x.account.metrics['in_flight/columns']) for x in found)
    for found in (free, bound)
  ]
  assert columns[0] < columns[1]  # with the limit, steps wait for old groups
  assert all(np.all(x.reward.valid) for x in bound[2:])


def gap_to_versions(how, found, change, shape) -> float:
  """Returns the largest difference between the log-prob of a sampled token and
  that of the trainer, with the weights of the token's own version.
  """

  @jax.jit
  def score(rows, version):
    params = weights(version, change, shape)
    logp = logprobs.score(how.source.gen.model, params, rows, L.NEUTRAL)[0]
    return logp[:, L.P :]

  gap, n_versions = 0.0, set()
  for x in found[2:]:
    rows = batch_lib.rows_of(x.prompts, x.rollout)
    drawn, version = (
      np.asarray(x) for x in (x.rollout.sampled, x.rollout.version)
    )
    for v in np.unique(version[drawn]):
      own = drawn & (version == v)
      both = score(rows, v) - x.rollout.logp
      gap = max(gap, float(np.abs(np.where(own, both, 0)).max()))
    n_versions |= {len(set(v[d])) for v, d in zip(version, drawn)}
  assert max(n_versions) >= 2  # some rows were sampled by several versions
  return gap


@pytest.mark.parametrize('shape', SHAPES)
def test_recomputed_caches_sample_from_one_version_of_the_weights(shape):
  """The log-prob of a token is that of the trainer with the weights that
  sampled it, also if earlier weights sampled the tokens before it.
  """
  how = source(cache='recomputed', shape=shape)
  found, memories = sampled(how, 8, 0.02, shape)
  assert gap_to_versions(how, found, 0.02, shape) < 1e-5
  # Each step computes the prompts and tokens in flight before it again.
  for x, memory in zip(found[3:], memories[3:]):
    slots = memory.slots
    t = np.where(slots.over, 0, slots.t).sum()
    want = t + memory.prompts.valid.sum()
    assert x.account.metrics['in_flight/recomputed'] == want


def test_kept_caches_mix_versions_of_the_weights():
  found, _ = sampled(source(), 8, 0.02)
  assert gap_to_versions(source(), found, 0.02, 'plain') > 1e-3


@pytest.mark.parametrize('cache', ['kept', 'recomputed'])
def test_a_saved_step_continues_bit_for_bit(cache):
  how = source(max_staleness=2, cache=cache)
  found, memories = sampled(how, 9, change=0.02)
  for first in (1, 3, 6):
    memory = jax.tree.map(np.asarray, memories[first])
    for i in range(first, 9):
      again = step(how, memory, L.prompts(i * L.B), i, 0.02)
      memory = again.account.control[NAME]
    a, b = (trees.flatten(x) for x in (again, found[-1]))
    assert a.keys() == b.keys()
    for path, x in a.items():
      np.testing.assert_array_equal(x, b[path], err_msg=path)


@pytest.mark.parametrize(
  'lacks, cache, words',
  [
    ('renew', 'kept', 'Model.renew'),
    ('extend', 'recomputed', 'recomputed caches need a model with'),
    ('gapped', 'recomputed', 'recomputed caches need a model with'),
  ],
)
def test_a_model_without_the_functions_is_refused(lacks, cache, words):
  gen = dataclasses.replace(
    L.GEN, model=dataclasses.replace(L.MODEL, **{lacks: None})
  )
  source = dataclasses.replace(L.SOURCE, gen=gen)
  how = InFlightSource(source, 2, cache=cache)
  with pytest.raises(ValueError, match=words):
    how.memory(L.model_and_params()[1], L.prompts())
