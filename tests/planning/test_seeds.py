"""The cost of seeds in one program, and the parts that they share."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.planning import abstract, hlo, planner, seeds
from jaxrl_reason.run.rl import several_runs


@pytest.mark.parametrize(
  'alone, each', [(2.0, 0.043), (1.0, 0.3), (5e-3, 1.3e-5)]
)
@pytest.mark.parametrize('counts', [(1, 8), (2, 4), (1, 2, 16)])
def test_the_verdict_counts_seeds_for_the_price_of_one(alone, each, counts):
  """A step of n seeds takes a + b n seconds. The test tries every n."""

  def seconds(n):
    return alone + (n - 1) * each

  found = [
    dict(
      seeds=n, seconds=seconds(n), roofline_s=1e-3, operations=9, peak_gib=1.0
    )
    for n in counts
  ]
  want = 1
  while seconds(want + 1) <= 1.1 * alone * (1 + 1e-9):
    want += 1
  said = seeds.verdict(found)
  assert said.startswith(f'{want} for the price of one (within 10%)')
  assert f'adds {each:.3g} s to a step of {alone:.3g} s' in said
  n = counts[-1]
  faster = n * alone / seconds(n)
  assert f'{n} side by side are done {faster:.2f} times as fast' in said
  rows = seeds.table(found).splitlines()[1:-1]
  for n, row in zip(counts, rows):
    assert row.split()[4] == f'{seconds(n) / alone:.2f}'


def test_one_number_of_seeds_has_no_verdict():
  only = [dict(seeds=4, seconds=2.0, roofline_s=1.0, operations=1, peak_gib=1)]
  assert '--seeds=1,4' in seeds.verdict(only)
  assert seeds.table(only).splitlines()[1].split()[4] == '4.00'


def test_started_operations_are_multiplied_out():
  """The program is a product and then a loop of 7 iterations."""

  def f(x):
    return jax.lax.fori_loop(0, 7, lambda i, y: jnp.sin(y) @ y, x @ x)

  text = jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text()
  module = hlo.parse(text)

  def at(n):
    loop = next(
      op for op in module.computations[module.entry].values()
      if op.kind == 'while'
    )  # fmt: skip
    found = re.sub(
      r'known_trip_count":\{"n":"7"', f'known_trip_count":{{"n":"{n}"', text
    )
    assert loop and found != text or n == 7
    return seeds.starts(hlo.parse(found))

  once, many = at(1), at(7)
  each = at(2) - once
  assert each >= 2 and many == once + 6 * each


def test_runs_side_by_side_share_the_end_of_a_loop():
  """The number of iterations is the largest of all runs, and the runs share its
  counter.
  """

  def f(limit, x):
    def unfinished(state):
      return trees.shared_max(state[0] < limit)

    def body(state):
      i, x = state
      return i + 1, jnp.where(i < limit, x + 1, x)

    return jax.lax.while_loop(unfinished, body, (0, x))

  limits, x = jnp.array([2, 7, 0]), jnp.zeros(3)
  # out_axes=None raises an error if runs have counters of their own.
  count, found = jax.jit(jax.vmap(f, out_axes=(None, 0)))(limits, x)
  assert count == 7
  np.testing.assert_array_equal(found, limits)
  assert trees.shared_max(jnp.array([[3, 9], [4, 1]])) == 9
  assert f(2, 0.0) == (2, 2.0)


def side_by_side(f, given):
  return jax.vmap(f)(given)


def test_runs_side_by_side_copy_no_caches(monkeypatch):
  """All runs have one loop over tokens. With a loop of its own, each run would
  copy its caches at every token by a select.
  """
  monkeypatch.setattr(several_runs, 'each_run', side_by_side)  # as on a chip
  config = load_recipe(ROOT / 'configs' / 'arithmetic_tiny.py').get_config()
  config = config_lib.read(config).changed({'mesh': (1, 1, 1)})
  mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
  parts = abstract.shapes(config, mesh)
  text = seeds.phase(parts, 3).lower(mesh).as_text()
  m, rl, room = config.model, config.rl, config.data.completion_len
  cache = f'3x{rl.prompts * rl.samples}x{m.kv_heads}x{room}x{m.head_dim}xf32'
  assert cache in text
  chosen = re.findall(r'stablehlo\.select[^\n]*', text)
  assert chosen and not [line for line in chosen if cache in line]


@pytest.mark.parametrize(
  'name, value',
  [
    ('search', True),
    ('only', ('step',)),
    ('by_depth', True),
    ('largest', False),
  ],
)
def test_flags_without_effect_beside_seeds_are_refused(name, value):
  config = load_recipe(ROOT / 'configs' / 'arithmetic_tiny.py').get_config()
  flags = dict(search=False, only=(), by_depth=False, largest=True)
  flag = '--nolargest' if name == 'largest' else f'--{name}'
  with pytest.raises(ValueError, match=f'{flag} has no effect with --seeds'):
    planner.run(
      config, 'v5e:1x1', say=print, slices=1, model='', seeds=('1',),
      **flags | {name: value},
    )  # fmt: skip
