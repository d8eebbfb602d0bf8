"""Reads FLOPs, bytes and exchanges of compiled programs for eight CPU devices.
The analysis is the same as for a described TPU.
"""

import dataclasses
import functools
import math
import re
import types

import jax
import jax.numpy as jnp
import learning as L
import pytest
import stage_recipe
from jax.sharding import PartitionSpec as P
from paths import ROOT, load_recipe
from small import small_config

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.models import zoo
from jaxrl_reason.models.parts import attention
from jaxrl_reason.planning import (
  abstract,
  advice,
  compiled_buffers,
  costs,
  depth,
  exchanges,
  hlo,
  kernels,
  mesh_search,
  phases,
  plan_table,
  roofline,
  split_plan,
)
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import matrix_products as products
from jaxrl_reason.planning import plan_settings as settings
from jaxrl_reason.planning import planner as plan
from jaxrl_reason.run.process import chips

TINY = ROOT / 'configs' / 'arithmetic_tiny.py'


def tiny(**changes):
  config = config_lib.read(load_recipe(TINY).get_config())
  return config.changed(**changes)


def work(flops: float) -> costs.Cost:
  """Computes the FLOPs of one product."""
  return costs.Cost(flops=flops, bytes=1.0, events=[costs.Event(flops, 1.0)])


def compiled(f, mesh, *args):
  """Returns the HLO text of f on shapes with specs."""

  def put(shape, spec):
    return jax.ShapeDtypeStruct(
      shape, jnp.float32, sharding=jax.NamedSharding(mesh, P(*spec))
    )

  with jax.set_mesh(mesh):
    return jax.jit(f).lower(*(put(*a) for a in args)).compile().as_text()


def test_loops_are_multiplied_out():
  """XLA's cost analysis counts the product of a loop once."""
  mesh = sharding.make_mesh((8, 1, 1))

  def f(x, w):
    def once(x, _):
      return (jnp.tanh(x @ w), None)

    def inner(x, _):
      return jax.lax.scan(once, x, None, length=3)

    return jax.lax.scan(inner, x, None, length=7)[0]

  text = compiled(f, mesh, ((16, 32), ('data',)), ((32, 32), ()))
  total = costs.of(text, mesh).total()
  assert total.flops == 7 * 3 * 2 * 2 * 32 * 32  # 16 rows on 8 devices
  assert (
    costs.of(text, mesh).loops_of((7,))[0][1].total().flops == total.flops / 7
  )


def test_a_loop_with_a_dynamic_end_has_its_largest_count():
  """The condition of the loop has no constant. Inner loops are multiplied."""
  mesh = sharding.make_mesh((8, 1, 1))

  def once(x):
    return jnp.tanh(x @ x)

  def some(x):
    with trees.at_most('inner', 3):
      return jax.lax.while_loop(lambda x: x[0, 0] < 1, once, x)

  def f(x):
    with trees.at_most('outer', 5):
      return jax.lax.while_loop(lambda x: x[0, 0] < 2, some, x)

  cost = costs.of(compiled(f, mesh, ((32, 32), ())), mesh)
  one = 2 * 32**3
  assert cost.total().flops == 5 * 3 * one
  ((n, outer),) = cost.named('outer')
  ((m, inner),) = cost.named('inner')
  assert (n, m) == (5, 3) and not cost.named('tokens')
  assert outer.total().flops == 3 * one and inner.total().flops == one


def test_each_exchange_of_a_shard_map_counts():
  """All exchanges have one channel."""
  mesh = sharding.make_mesh((1, 8, 1))

  def f(x, y):
    def gather(a):
      return jax.lax.all_gather(a, 'fsdp', tiled=True)

    return jax.shard_map(
      lambda x, y: gather(x) + gather(jnp.tanh(gather(y))),
      in_specs=(P('fsdp'), P('fsdp')),
      out_specs=P(),
      check_vma=False,
    )(x, y)

  text = compiled(f, mesh, ((64, 64), ('fsdp',)), ((8, 64), ('fsdp',)))
  assert len(set(re.findall(r'all-gather\(.*channel_id=(\d+)', text))) == 1
  total = costs.of(text, mesh).total()
  assert sum(total.collectives.values()) == 3


@pytest.mark.parametrize('axis', ['fsdp', 'tensor'])
def test_collectives_are_named_by_mesh_axis(axis):
  mesh = sharding.make_mesh((2, 2, 2))

  def gather(x):
    return jax.lax.with_sharding_constraint(x, P())

  text = compiled(gather, mesh, ((64, 4), (axis,)))
  (found,) = costs.of(text, mesh).total().collectives
  assert (found.kind, found.axes, found.size) == ('all-gather', (axis,), 2)
  assert found.bytes == 64 * 4 * 4
  assert found.sent == found.bytes / 2


@pytest.mark.parametrize(
  'text, want',
  [
    ('replica_groups={{0,2},{1,3}}, x', (0, 2)),
    ('replica_groups=[2,2]<=[4], x', (0, 1)),
    ('replica_groups=[2,2]<=[2,2]T(1,0), x', (0, 2)),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x", (0, 1)),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", (0, 2)),
    (
      "replica_groups=mesh['a'=1,'b'=2,'c'=2], "
      "device_ids=([2,2]T(1,0)) {'c'}, x",
      (0, 2),
    ),
    ('source_target_pairs={{0,1},{1,0}}, x', (0, 1)),
  ],
)
def test_groups_in_every_notation(text, want):
  op = hlo.Op('x', 'all-reduce', (), (), (), text, '', False)
  assert exchanges.groups(op, 4)[0] == want


def test_products_that_the_tpu_compiler_writes_as_convolutions():
  """A batched product has a dilated window; half of it is padding."""
  line = (
    '  %c = f32[64,20,30]{2,1,0} convolution(%a, %b), window={size=64 '
    'stride=63 lhs_dilate=64}, dim_labels=0bf_0oi->0bf'
  )
  text = '\n'.join(
    [
      'HloModule m',
      'ENTRY %e (a: f32[64,20,8], b: f32[64,30,8]) -> f32[64,20,30] {',
      '  %a = f32[64,20,8]{2,1,0} parameter(0)',
      '  %b = f32[64,30,8]{2,1,0} parameter(1)',
      line,
      '}',
    ]
  )
  module = hlo.parse(text)
  ops = module.computations['e']
  want = 2 * 64 * 20 * 30 * 8
  assert products.flops(ops, ops['c']) == want


def test_phases_are_the_programs_of_a_run():
  """FLOPs equal the model's formula, with the loops over tokens of both
  segments. Weights and optimizer state are donated.
  """
  config = tiny(
    mesh=(2, 2, 2), stages=('rl',), rl__path='host', rl__parts=1,
    rl__prompts=8, rl__samples=4, rl__steps_per_dispatch=1,
    data__completion_len=64, rl__cache_segments=2,
  )  # fmt: skip
  mesh = sharding.make_mesh(config.mesh)
  made = phases.phases(abstract.shapes(config, mesh))
  assert [p.name for p in made] == ['evaluate', 'generate', 'update']
  for phase in made:
    text = phase.lower(mesh).compile().as_text()
    done = costs.of(text, mesh).total().flops * mesh.size * phase.calls
    ratio = done / phase.flops
    # Attention computes masked scores too; the formula has the causal half.
    assert 0.9 < ratio < 1.3, (phase.name, ratio)
  n_state = len(jax.tree.leaves(made[-1].state))
  assert hlo.parse(text).aliased() == n_state


def test_an_evaluation_needs_the_memory_of_its_batch():
  """The number of problems changes only the number of calls."""

  def of(problems, batch):
    config = tiny(
      mesh=(2, 2, 2), stages=('rl',), rl__prompts=8, rl__samples=4,
      eval__problems=problems, eval__samples=7, eval__batch=batch,
    )  # fmt: skip
    parts = abstract.shapes(config, sharding.make_mesh(config.mesh))
    phase = phases.evaluation(parts)
    compiled = phase.lower(parts.mesh).compile()
    ratio = costs.of(compiled.as_text(), parts.mesh).total().flops
    assert 0.9 < ratio * parts.mesh.size * phase.calls / phase.flops < 1.4
    facts = plan_table.evaluation_facts(config, parts.mesh)
    assert facts['calls'] * facts['at_a_time'] >= facts['completions']
    assert facts['at_a_time'] <= (batch or 32)
    room = compiled.memory_analysis()
    return room.temp_size_in_bytes + room.argument_size_in_bytes, facts['calls']

  few, one = of(4, 0)
  assert one == 1
  many, calls = of(1319, 0)
  assert many == few and calls == -(-1319 // 4)
  more, calls = of(1319, 256)
  assert more > 1.4 * few and calls == -(-1319 // 32)


def test_attention_splits_rows_and_heads():
  """Rows and heads are split over two mesh axes, so no device has all heads of
  its rows.
  """
  mesh = sharding.make_mesh((1, 4, 2))
  rows = attention.describe(jnp.ones((8, 16), bool))
  attend = functools.partial(
    attention.make(rows, small_config(attention='einsum'), (0,)), which=0
  )
  where = ('fsdp', None, 'tensor')
  shapes = (
    ((8, 16, 4, 8), where),
    ((8, 16, 2, 8), where),
    ((8, 16, 2, 8), where),
  )
  cost = costs.of(compiled(attend, mesh, *shapes), mesh).total()
  assert cost.flops == 2 * 2 * 8 * 4 * 16 * 16 * 8 / mesh.size
  assert not cost.collectives


def test_roofline_adds_loops_and_names_the_bound():
  machine = roofline.Machine(chips.CHIPS['v5e'], (4, 4))
  body = costs.Cost(bytes=819e9)
  cost = costs.Cost(flops=197e12, bytes=1.0, loops=[(3, body)])
  assert roofline.seconds(cost, machine) == {'compute': 1.0, 'memory': 3.0}
  gather = costs.Collective('all-gather', ('fsdp',), 16, 16, ())
  assert machine.links(gather.size) == machine.chip.ici  # all of the torus
  ring = costs.Collective('all-gather', ('tensor',), 4, 16, ())
  # The exchange uses one of two dimensions of the torus.
  assert machine.links(ring.size) == machine.chip.ici / 2


def test_seconds_have_a_range():
  """The range is from full overlap (the longest part of each body) to no
  overlap (the sum).
  """
  machine = roofline.Machine(chips.CHIPS['v5e'], (4, 4))
  body = costs.Cost(bytes=819e9, flops=197e11)
  gather = costs.Collective('all-gather', ('fsdp',), 16, 1600 * 10**9, ())
  cost = costs.Cost(flops=197e12, bytes=819e8, loops=[(3, body)])
  cost.collectives[gather] = 1
  sent = 15 / 16 * 1600e9 / 200e9
  assert roofline.seconds(cost, machine).total() == pytest.approx(sent + 3)
  both = sent + 1 + 0.1 + 3 * (1 + 0.1)
  assert roofline.serial_seconds(cost, machine) == pytest.approx(both)


def gather(seconds: float) -> costs.Collective:
  """Returns an exchange over all chips of a v5e:4x4."""
  size = round(seconds * 200e9 * 16 / 15)
  return costs.Collective('all-gather', ('fsdp',), 16, size, ())


def product(seconds: float, **exchanges) -> costs.Event:
  return costs.Event(197e12 * seconds, 0.0, exchanges)


@pytest.mark.parametrize(
  'events, whole, waited',
  [
    # The exchange ends before the next operation: not hidden.
    ([product(1), product(0, a=gather(2)), product(1)], 4, 2),
    # The product in between hides the exchange, or half of it.
    ([product(0, a=gather(2)), product(3), product(0, a=gather(2))], 3, 0),
    ([product(0, a=gather(2)), product(1), product(0, a=gather(2))], 2, 1),
    # Exchanges follow each other in a chain of products.
    ([product(1, a=gather(3)), product(1, a=gather(3))], 3, 1),
    # Two exchanges share the links, one after the other: the first is hidden,
    # and half of the second.
    (
      [
        product(0, a=gather(2)),
        product(0, b=gather(2)),
        product(3),
        product(0, a=gather(2)),
        product(0, b=gather(2)),
      ],
      4,
      1,
    ),
    # The program waits first for the exchange that began later, so it waits
    # for both.
    (
      [
        product(0, a=gather(2)),
        product(0, b=gather(2)),
        product(0, b=gather(2)),
        product(1),
        product(0, a=gather(2)),
      ],
      5,
      4,
    ),
    # A loop hides an exchange that runs beside it. Its own exchanges wait.
    (
      [
        product(0, a=gather(2)),
        costs.Event(
          loop=(3, costs.Cost(events=[product(1), product(0, b=gather(0.5))]))
        ),
        product(0, a=gather(2)),
      ],
      4.5,
      1.5,
    ),
  ],
)
def test_an_exchange_overlaps_the_operations_in_between(events, whole, waited):
  machine = roofline.Machine(chips.CHIPS['v5e'], (4, 4))
  found = roofline.ordered(costs.Cost(events=events), machine)
  assert found == pytest.approx((whole, waited))


def test_events_are_the_program_in_its_order():
  """The work of the events equals that of the program, and an exchange is in
  one or more events.
  """
  mesh = sharding.make_mesh((1, 8, 1))

  def f(x, w):
    def body(x, _):
      return jnp.tanh(jax.lax.with_sharding_constraint(x @ w, P('fsdp'))), ()

    return jax.lax.scan(body, x, length=5)[0]

  text = compiled(f, mesh, ((16, 64), ('fsdp',)), ((64, 64), ('fsdp',)))
  cost = costs.of(text, mesh)

  def work(cost):
    own = sum(e.flops for e in cost.events)
    loops = [e.loop for e in cost.events if e.loop]
    return own + sum(n * work(body) for n, body in loops)

  def exchanged(cost):
    own = {c for e in cost.events for c in e.exchanges}
    loops = [e.loop for e in cost.events if e.loop]
    return len(own) + sum(n * exchanged(body) for n, body in loops)

  total = cost.total()
  assert work(cost) == total.flops == 5 * 2 * 2 * 64 * 64
  assert exchanged(cost) == total.collectives.total() > 0
  machine = roofline.Machine(chips.CHIPS['v5e'], (4, 4))
  whole, waited = roofline.ordered(cost, machine)
  assert roofline.seconds(cost, machine).total() <= whole * (1 + 1e-9)
  assert whole <= roofline.serial_seconds(cost, machine) * (1 + 1e-9)
  assert waited > 0


def test_exchanges_between_slices_are_hierarchical():
  """Each device sends its share of the sum over its slice."""
  gather = costs.Collective('all-reduce', ('data',), 32, 3200, ())
  machine = roofline.Machine(chips.CHIPS['v5e'], (4, 4), 2)
  inside = 2 * 15 / 16 * 3200 / 200e9
  across = 2 * 1 / 2 * 3200 / 16 / chips.DCN
  assert machine.exchange(gather) == pytest.approx(inside + across)
  own = costs.Collective('all-reduce', ('fsdp',), 16, 3200, ())
  assert machine.exchange(own) == pytest.approx(inside)


LINE = {'kind': 'all-gather', 'axis': 'fsdp', 'largest': 8, 'dims': (2, 4)}


def of_layers(n: int, bend: float = 0.0) -> dict:
  """Returns facts that are linear in n, except `bend`."""
  return {
    'phase': 'update',
    'needs_gib': 1.0 + 0.5 * n + bend,
    'flops': 100.0 + 7 * n,
    'model_flops': 50.0 + 7 * n,
    'bytes': 3 * n,
    'parameters': 1000 + 10 * n,
    'step_seconds': 2.0 * n,
    'seconds_by_bound': {'memory': 5.0 + n, 'compute': float(n * n > 4) * n},
    'collectives': [LINE | {'times': 1 + 2 * n, 'bytes': 16 * n}],
    'token_loop': None,
    'compile_s': 1.0,
  }


def test_figures_of_few_layers_extrapolate_linearly():
  got = depth.extended([of_layers(n) for n in (2, 4, 6)], (2, 4, 6), 80)
  want = of_layers(80)
  for key in ('needs_gib', 'flops', 'bytes', 'parameters', 'collectives'):
    assert got[key] == want[key], key
  assert got['depth_error'] == 0 and got['compile_s'] == 3
  assert got['flops_over_model'] == want['flops'] / want['model_flops']
  bent = [of_layers(2, bend=0.41), of_layers(4), of_layers(6)]
  error = depth.extended(bent, (2, 4, 6), 80)['depth_error']
  assert error == pytest.approx(0.41 / want['needs_gib'])


def test_a_phase_that_does_not_fit_reports_its_bytes():
  no_room = {'phase': 'update', 'needs_gib': 200.0}
  got = depth.extended([of_layers(2), no_room, no_room], (2, 4, 6), 80)
  assert got == no_room


def test_reduced_depths_end_at_the_same_place_of_the_layer_pattern():
  small = zoo.ZOO['gemma-3-1b']
  assert depth.depths(small) == (26,)  # few layers would cost as much
  tables = {
    k: (getattr(small, k)[:6] * 20)[:116] for k in ('windows', 'rope_of_layer')
  }
  deep = dataclasses.replace(small, layers=116, **tables)
  p, few = depth.period(deep), depth.depths(deep)
  assert p == 6 and deep.layers % p == few[0] % p
  assert len(few) == 3 and max(few) < deep.layers
  for n in few:
    assert depth.cut(deep, n).layer_windows == deep.layer_windows[:n]
  assert depth.depths(small_config(layers=2)) == (2,)
  # Every second layer of Llama 4 Maverick has experts, every fourth all keys.
  deep = zoo.ZOO['llama-4-maverick']
  assert depth.period(deep) == 4 and depth.depths(deep) == (8, 12, 16)
  assert depth.cut(deep, 8).dense_layers == (0, 2, 4, 6)
  sparse = dict(mlp_sparsity=(0.5, 0.0, 0.0) * 8)
  deep = small_config(layers=24, **sparse)
  assert depth.period(deep) == 3
  assert depth.cut(deep, 6).mlp_sparsity == sparse['mlp_sparsity'][:6]


@pytest.mark.parametrize('most', [0, 1, 5, 24, 37, 200])
@pytest.mark.parametrize('power', [1.0, 1.5])
def test_the_largest_batch_is_found(most, power):
  """The search needs few compilations, also if bytes are not linear."""
  asked, base = [], 100.0

  def needs(n):
    return asked.append(n) or base + n**power

  room = base + (8.0 * most) ** power
  found = mesh_search.largest(needs, room, 64, 8, 64 * 16)
  limit = min(most * 8, 64 * 16)
  assert found <= limit and limit - found <= max(8, found // 8)
  assert all(n % 8 == 0 for n in asked)
  assert len(asked) == len(set(asked)) <= (4 if power == 1 else 8)


def largest(monkeypatch, config, needs, start: int) -> tuple[int, list]:
  """Returns the largest batch of a recipe on a v5e:2x4, and the tries.

  Args:
    needs: (phase, prompts) -> GiB.
  """

  def devices(topology, slices=1):
    return jax.devices()[: math.prod(chips.torus_of(topology))]

  monkeypatch.setattr(described, 'devices', devices)
  planner = plan.Planner(
    config, 'v5e:2x4', slices=1, model='', say=lambda text: None
  )
  tried = []

  def facts_of(parts, names):
    n = parts.config.rl.prompts
    if parts.sampler_mesh is not None:
      split_plan.all_phases(parts)  # raises if rows do not divide
    tried.append(n)
    return [dict(phase=p, needs_gib=needs(p, n)) for p in names]

  planner.facts_of = facts_of
  parts = planner.parts(config)
  names = [p.name for p in split_plan.all_phases(parts)]
  each = [dict(phase=p, needs_gib=needs(p, start)) for p in names]
  return planner.largest({'prompts': start, 'phases': each}), tried


def test_every_phase_of_a_step_fits_with_the_largest_batch(monkeypatch):
  """The update needs more memory than generation at the recipe's batch, and
  less at larger batches. Evaluations do not depend on the batch.
  """
  config = tiny(
    mesh=(8, 1, 1), stages=('rl',), rl__path='host', rl__parts=1,
    rl__prompts=8, rl__samples=4, rl__steps_per_dispatch=1,
  )  # fmt: skip

  def needs(phase, prompts):
    given = {'generate': prompts / 4, 'update': 4 + prompts / 16}
    return given.get(phase, 100.0)

  found, tried = largest(monkeypatch, config, needs, 8)
  # 15.75 GiB have room for 63 prompts of generation and 188 of the update.
  assert found == 56 and needs('update', 64) < 15.75 < needs('generate', 64)
  assert all(n % 8 == 0 for n in tried)


def test_a_setting_that_limits_the_batch_does_not_end_the_search(monkeypatch):
  config = tiny(
    mesh=(8, 1, 1), stages=('rl',), rl__prompts=8, rl__samples=4,
    rl__replay__rows=32, rl__replay__capacity=20, rl__old_logp='sampler',
  )  # fmt: skip
  found, tried = largest(monkeypatch, config, lambda _, n: n / 4, 8)
  assert found == 16  # groups of 24 prompts exceed the capacity
  assert all(n % 8 == 0 and n < 24 for n in tried)


def test_tries_of_batches_divide_over_both_meshes(monkeypatch):
  recipe = load_recipe(ROOT / 'tests' / 'tiny_recipe.py').get_config()
  config = config_lib.read(recipe).changed(
    stages=('rl',), mesh=(2, 1, 2), sampler_mesh=(4, 1, 1), rl__prompts=12,
    rl__steps_per_dispatch=1,
  )  # fmt: skip
  found, tried = largest(monkeypatch, config, lambda _, n: n / 2, 12)
  assert tried and all(n % 4 == 0 for n in [found, *tried])
  assert found == 28  # 31 have room


@pytest.mark.parametrize(
  'largest, phase, searches',
  [(True, 'step', 1), (False, 'step', 0), (True, 'sft', 0)],
)
def test_the_table_is_printed_before_the_search_for_a_batch(
  largest, phase, searches, monkeypatch
):
  printed = []

  class Fake:
    def __init__(self, *args, **kwargs):
      """Compiles nothing."""

    def plan(self):
      return {'prompts': 8, 'phases': [{'phase': phase}]}

    def largest(self, facts):
      printed.append('searched')
      return 64

  monkeypatch.setattr(plan, 'Planner', Fake)
  monkeypatch.setattr(plan.plan_table, 'table', lambda facts: 'table')
  monkeypatch.setattr(plan.advice, 'lines', lambda *_: [])
  given = dict(say=printed.append, show=printed.append, search=False)
  text, _ = plan.run(tiny(), 'v5e:1x1', largest=largest, **given)
  if searches:
    assert text == 'largest batch that fits: 64 prompts (the recipe has 8)'
    assert [printed[0], printed[-1]] == ['table', 'searched']
  else:
    assert (text, printed) == ('table', [])


def test_prompts_of_the_unit_pass_the_checks():
  config = tiny(rl__path='host', rl__parts=2, rl__micro_batches=8)
  unit = mesh_search.unit_of_prompts(config.rl, 4)
  assert unit == math.lcm(4 * 2, 4)
  shapes = mesh_search.meshes(tiny(rl__micro_batches=1), 8, kv_heads=4)
  assert {(1, 8, 1), (8, 1, 1), (1, 2, 4), (2, 1, 4)} <= set(shapes)


@pytest.mark.parametrize(
  'name, size',
  [
    ('Qwen/Qwen3-8B', 'qwen3-8b'),
    ('meta-llama/Meta-Llama-3-8B-Instruct', 'llama-3-8b'),
    ('Qwen/Qwen3-30B-A3B-Instruct-2507@main', 'qwen3-30b-a3b'),
    ('google/gemma-3-1b-it', 'gemma-3-1b'),
    ('mistralai/Ministral-3-8B-Instruct-2512', 'ministral-3-8b'),
    ('baidu/ERNIE-4.5-0.3B-Base-PT', 'ernie-4.5-0.3b'),
    ('tencent/Hunyuan-7B-Pretrain', 'hunyuan-7b'),
    ('rednote-hilab/dots.llm1.inst', 'dots.llm1'),
  ],
)
def test_a_model_on_the_hub_has_the_size_of_its_name(name, size):
  assert pretrained.size_of(name) == size
  assert size in zoo.ZOO


def test_configs_that_cannot_be_planned_are_named():
  with pytest.raises(ValueError, match='--model'):
    pretrained.size_of('someone/their-own')
  with pytest.raises(ValueError, match='--topology=v9:2x2'):
    chips.chip_of('v9:2x2')
  for topology in ('v5p:4x4', 'v5e:2x2x1', 'v6e:0x2', 'v5e:', 'v5e:2xx'):
    with pytest.raises(ValueError, match=f'{topology}.* has . dimensions'):
      chips.chip_of(topology)
  with pytest.raises(ValueError, match='--num_slices=0'):
    described.devices('v5e:2x2', 0)


def test_advice_depends_on_the_bound_of_a_phase():
  rl = {'rl': tiny(rl__micro_batches=4).rl}
  by = {'links of fsdp': 3.0, 'compute': 2.0, 'memory': 0.5}
  phase = {'phase': 'update', 'needs_gib': 1.0, 'bound_by': 'links of fsdp'}
  facts = {'hbm_gib': 16, 'step_seconds': 8.0}
  said = advice.lines(
    rl, 'full', facts | {'phases': [phase | {'seconds_by_bound': by}]}
  )
  saved = {'micro_batches': 2.25, 'remat=dots': 0.5, 'links of fsdp': 3}
  for line, (part, seconds) in zip(said, saved.items(), strict=True):
    assert part in line
    assert f'at most {seconds} s less of a step of 8 s' in line
  full = {'phase': 'update', 'needs_gib': 15.5, 'bound_by': 'compute'}
  (line,) = advice.lines(rl, 'full', {'hbm_gib': 16, 'phases': [full]})
  assert '97% of HBM' in line
  reads = {'phase': 'generate', 'needs_gib': 4.0, 'bound_by': 'memory'}
  reads |= {'seconds_by_bound': {'memory': 2.0, 'compute': 0.2}}
  reads |= {'peak_gib': 4.0, 'arguments_gib': 1.0}
  more, fewer = 'more prompts cost', 'at most 1.5 s less'
  for path, parts, want in (
    ('host', 1, more), ('host', 4, fewer), ('fused', 4, more),
  ):  # fmt: skip
    rl = {'rl': tiny(rl__path=path, rl__parts=parts).rl}
    (line,) = advice.lines(rl, 'none', facts | {'phases': [reads]})
    assert want in line


def test_advice_is_given_if_it_fits_and_saves_a_share_of_the_step():
  by = {'memory': 8.0, 'links of fsdp': 0.5}
  p = {'phase': 'generate', 'bound_by': 'memory', 'seconds_by_bound': by}
  p |= {'peak_gib': 5.0, 'arguments_gib': 1.0}
  rl = {'rl': tiny(rl__path='host', rl__parts=4).rl}
  for needs, want in (1.0, 1), (8.0, 2), (11.0, None):
    facts = {'hbm_gib': 16, 'step_seconds': 10.0}
    facts['phases'] = [p | {'needs_gib': needs}]
    found = advice.lines(rl, 'none', facts)
    assert len(found) == (want is not None)
    assert not want or f'rl.parts={want} in place of 4' in found[0]
  rl = {'rl': tiny(rl__micro_batches=4).rl}
  update = p | {'phase': 'update', 'needs_gib': 1.0}
  for links, n in (0.6, 0), (0.7, 1):  # 3 / 4 of them, of 10 s
    by = {'memory': 8.0, 'links of fsdp': links}
    facts['phases'] = [update | {'seconds_by_bound': by}]
    assert len(advice.lines(rl, 'none', facts)) == n


def test_filters_without_a_sort_equal_a_sort():
  """Compares with the definitions, with ties."""
  from jaxrl_reason import logits as logits_lib

  raw = jnp.round(jax.random.normal(L.ROOT, (64, 37)) * 3) / 2  # ties
  p = jax.nn.softmax(raw)
  settings = (5, 1, 0), (0, 0.6, 0), (0, 1, 0.2), (9, 0.8, 0.05), (5, 0.6, 0)
  for k, top_p, min_p in settings:
    s = logits_lib.Sampling.make(1.0, k, top_p, min_p)
    kept = logits_lib.shaped(raw, s) > logits_lib.OUT
    for row, got in zip(p.tolist(), kept.tolist()):
      order = sorted(row, reverse=True)
      kth = order[k - 1] if k else 0
      for x, stays in zip(row, got):
        mass = sum(y for y in row if y >= kth)  # of the tokens of top-k
        before = sum(y for y in row if y > x) / mass
        want = x >= kth and before < top_p and x >= min_p * order[0]
        assert stays == want or abs(before - top_p) < 1e-6


def test_messages_of_the_compiler_are_read():
  said = 'Ran out of memory in memory space hbm. Used 20.79G of 15.75G hbm.'
  assert described.out_of_memory(said) == (20.79 * 2**30, 15.75 * 2**30)
  said = 'temporaries (56.60G) exceeds available HBM (31.25G).'
  assert described.out_of_memory(said) == (56.60 * 2**30, 31.25 * 2**30)
  assert described.out_of_memory('anything else') is None


def test_copies_within_loops_are_counted():
  """A loop that writes a buffer in place copies nothing of the buffer's
  size.
  """
  text = """HloModule m
%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %p = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%p), index=1
  %c = f32[8,8]{1,0} copy(%x)
  %near = f32[8,8]{1,0:S(1)} copy(%c)
  ROOT %t = (s32[], f32[8,8]{1,0}) tuple(%i, %c)
}
%cond (p: (s32[], f32[8,8])) -> pred[] {
  %p = (s32[], f32[8,8]{1,0}) parameter(0)
  ROOT %b = pred[] constant(true)
}
ENTRY %e (a: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %a = (s32[], f32[8,8]{1,0}) parameter(0)
  ROOT %w = () while(%a), condition=%cond, body=%body, known_trip_count=5
}
"""
  cost = costs.of(text, sharding.make_mesh((8, 1, 1)))
  assert cost.total().copies == {256: 5}  # the other one is on the chip
  assert not cost.copies


def test_the_tpu_compilers_reduce_scatter_is_one():
  """A fusion of an all-reduce and a slice sends half of an all-reduce."""
  text = """HloModule m
%all-reduce-scatter.1 (i: f32[64,4]) -> f32[16,4] {
  %i = f32[64,4]{1,0} parameter(0)
  %r = f32[64,4]{1,0} all-reduce(%i), replica_groups={{0,1,2,3},{4,5,6,7}}
  ROOT %s = f32[16,4]{1,0} slice(%r), slice={[0:16], [0:4]}
}
ENTRY %e (a: f32[64,4]) -> f32[16,4] {
  %a = f32[64,4]{1,0} parameter(0)
  ROOT %f = f32[16,4]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1
}
"""
  mesh = sharding.make_mesh((2, 4, 1))
  ((found, times),) = costs.of(text, mesh).total().collectives.items()
  assert (found.kind, found.axes, times) == ('reduce-scatter', ('fsdp',), 1)
  assert found.sent == 64 * 4 * 4 * 3 / 4


SPARSE_CORES = """HloModule m
%gathered (p: f32[16384,64]) -> f32[65536,64] {
  %p = f32[16384,64]{1,0} parameter(0)
  ROOT %g = f32[65536,64]{1,0} all-gather(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}
ENTRY %e (a: f32[16384,64], b: f32[2048,2048]) -> f32[65536,64] {
  %a = f32[16384,64]{1,0} parameter(0)
  %b = f32[2048,2048]{1,0} parameter(1)
  %s = ((f32[16384,64]{1,0}, token[]), f32[65536,64]{1,0}) call-start(%a), async_execution_thread="sparsecore", to_apply=%gathered
  %c = f32[2048,2048]{1,0} dot(%b, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %d = f32[65536,64]{1,0} call-done(%s)
}
"""  # noqa: E501


def test_an_exchange_by_sparse_cores_overlaps_other_operations():
  """It counts once, and its waiting time is reduced by the time of independent
  products.
  """
  mesh = sharding.make_mesh((2, 4, 1))
  machine = roofline.Machine(chips.CHIPS['v6e'], (2, 4))
  cost = costs.of(SPARSE_CORES, mesh)
  ((found, times),) = cost.total().collectives.items()
  assert (found.kind, found.axes, times) == ('all-gather', ('fsdp',), 1)
  assert found.sent == 65536 * 64 * 4 * 3 / 4
  product = 3 * 2048**2 * 4
  assert cost.total().bytes == product + (16384 + 65536) * 64 * 4
  lines = SPARSE_CORES.splitlines()
  alone = costs.of('\n'.join(x for x in lines if ' dot(' not in x), mesh)
  (beside, less), (_, whole) = (
    roofline.ordered(c, machine) for c in (cost, alone)
  )
  assert whole == pytest.approx(machine.exchange(found))
  # The product is bound by memory.
  assert less == pytest.approx(whole - product / machine.chip.bandwidth)
  assert beside == pytest.approx(whole)


@pytest.mark.parametrize(
  'changes, names',
  [
    ({'rl__algorithm': 'remax'}, 'evaluate generate greedy score update'),
    (
      {'rl__algorithm': 'ppo', 'rl__minibatches': 2},
      'evaluate generate score update',
    ),
    (
      {'model__experts': 4, 'model__experts_per_token': 2},
      'evaluate generate update',
    ),
  ],
)
def test_every_pass_of_a_step_is_a_phase(changes, names):
  config = tiny(
    mesh=(1, 4, 2), stages=('rl',), rl__path='host',
    rl__steps_per_dispatch=1, **changes,
  )  # fmt: skip
  parts = abstract.shapes(config, sharding.make_mesh(config.mesh))
  made = phases.phases(parts)
  assert ' '.join(p.name for p in made) == names
  assert made[-1].lower(parts.mesh).as_text()


@pytest.mark.parametrize(
  'stage, trained',
  [('', ['sft', 'step']), ('short', ['step']), ('sft', ['sft'])],
)
def test_a_stage_of_a_list_is_planned_with_its_settings(
  monkeypatch, stage, trained
):
  monkeypatch.setattr(described, 'devices', lambda *_: jax.devices())
  config, seen, said = stage_recipe.get_config(), {}, []
  config.rl.prompts = 8

  def measured(phase, mesh, experts):
    seen[phase.name] = phase.decode_trips
    cost = work(phase.flops / mesh.size)
    return described.Measured(phase, 1, 1, 1, 0, cost, 0, 0, 0.0)

  monkeypatch.setattr(described, 'measure', measured)
  options = dict(slices=1, model='', search=False, largest=False)
  plan.run(config, 'v5e:2x4', say=said.append, stage=stage, **options)
  assert [n for n in seen if n != phases.EVALUATE] == trained
  # Tokens of a completion: the recipe's, or those of the stage.
  assert seen.get('step') == {'': (8,), 'short': (6,), 'sft': None}[stage]
  others = 'stages sft#2, again; --stage=NAME plans another: sft, short, long'
  assert (others in said) is not bool(stage)
  with pytest.raises(ValueError, match="'shrot'.*Did you mean 'short'"):
    plan.run(config, 'v5e:2x4', say=said.append, stage='shrot', **options)


def test_the_command_prints_the_largest_batch(monkeypatch):
  """Runs the command on CPU devices, for a chip with room for four times the
  recipe's rows.
  """
  monkeypatch.setattr(described, 'devices', lambda *_: jax.devices())
  config = tiny(
    mesh=(4, 2, 1), stages=('rl',), rl__path='host', rl__parts=1,
    rl__prompts=8, rl__samples=4, rl__steps_per_dispatch=1,
  )  # fmt: skip
  asked, said = [], []

  def measured(phase, mesh, experts):
    rows = phase.args[2].tokens.shape[0]
    asked.append(rows)
    needs = 2**30 * rows // 8
    if needs > 2**35:
      raise described.DoesNotFit(phase.name, needs, 2**34)
    room = needs, needs, needs, 0
    cost = work(phase.flops / mesh.size)
    return described.Measured(phase, *room, cost, 0, 0, 0.0)

  def without_code(make, args, phase, mesh, experts):
    if not asked:  # another process lowers the same program
      same = make(*args).as_text(), phase.lower(mesh).as_text()
      assert same[0] == same[1] and 'module' in same[0]
    return measured(phase, mesh, experts)

  monkeypatch.setattr(compiled_buffers, 'measure', without_code)
  text, facts = plan.run(
    config, 'v5e:2x4', say=said.append, slices=1, model='',
    only=('update',), search=False, largest=True,
  )  # fmt: skip
  # 126 rows fit into 15.75 GiB: 31 prompts of 4 samples, or 24 as a multiple
  # of 8.
  assert facts['largest_prompts'] == 24 and 'fits: 24 prompts' in text
  assert facts['prompts'] == 8 and asked[0] == 32
  assert any('does not fit' in line for line in said)
  (phase,) = facts['phases']
  assert phase['flops_over_model'] == pytest.approx(1)


def searched(monkeypatch, prompts: int, only=(), **changes) -> tuple[str, dict]:
  """Runs the command on CPU devices. The update needs 32 GiB divided by the
  number of micro-batches, and a quarter of that with remat=full. Scoring needs
  32 GiB divided by the size of fsdp.
  """
  monkeypatch.setattr(described, 'devices', lambda *_: jax.devices())
  config = tiny(
    mesh=(8, 1, 1), stages=('rl',), rl__path='host', rl__parts=1,
    rl__prompts=prompts, rl__samples=4, rl__steps_per_dispatch=1, **changes,
  )  # fmt: skip

  def measured(phase, mesh, experts):
    needs, flops = 2**30, 1e12 * mesh.shape['tensor']
    if phase.name == 'score':
      needs = 2**35 // mesh.shape['fsdp']
    if phase.name == 'update':
      learner = phase.args[0]
      needs = 2**35 // learner.micro_batches
      if learner.model.hidden.args[0].remat == 'full':
        needs, flops = needs // 4, flops * 1.3
    room = needs, needs, needs, 0
    return described.Measured(phase, *room, work(flops), 0, 0, 0.0)

  def without_code(make, args, *given):
    return measured(*given)

  monkeypatch.setattr(compiled_buffers, 'measure', without_code)
  return plan.run(
    config, 'v5e:2x4', say=lambda text: None, slices=1, model='',
    only=only, search=True, largest=True,
  )  # fmt: skip


def test_the_command_finds_settings(monkeypatch):
  text, facts = searched(monkeypatch, 16)
  meshes = [tuple(f['mesh'].values())[:3] for f in facts['meshes']]
  assert sorted(meshes) == sorted(
    [(8, 1, 1), (1, 8, 1), (4, 1, 2), (1, 4, 2), (2, 1, 4), (1, 2, 4)]
  )
  best = facts['meshes'][0]
  # With four micro-batches 32 GiB become 8. With two they would be 16, which
  # exceeds 15.75.
  assert 'micro_batches=4' in best['recipe'] and "'dots'" in best['recipe']
  assert best['mesh']['tensor'] == 1 and best['recipe'] in text
  seconds = [f['serial_seconds'] for f in facts['meshes']]
  assert seconds == sorted(seconds)
  assert facts['fits']
  with pytest.raises(ValueError, match='no mesh of 8 devices; change rl.prom'):
    searched(monkeypatch, 7)
  with pytest.raises(
    ValueError, match='only=score: --search fits generate and'
  ):
    searched(monkeypatch, 16, only=('score',))
  monkeypatch.setattr(settings, 'fitting', lambda *_: None)
  text, facts = searched(monkeypatch, 16)
  assert not facts['fits'] and 'does not fit' in text
  assert plan.misfits(facts) == '--search: the recipe fits none of these meshes'


def test_the_fastest_mesh_is_the_limit_of_later_ones(monkeypatch):
  fitting, limits, seconds = settings.fitting, [], []

  def limited(planner, config, limit):
    limits.append(limit)
    if len(limits) == 6:
      raise settings.TooSlow('generation alone takes 9 s')
    made = fitting(planner, config, limit)
    seconds.append(made.seconds)
    return made

  monkeypatch.setattr(settings, 'fitting', limited)
  text, facts = searched(monkeypatch, 16)
  assert limits == [min(seconds[:n], default=math.inf) for n in range(6)]
  why = 'generation alone takes 9 s'
  assert facts['meshes'][-1]['why'] == why and why in text


def test_a_search_counts_scoring(monkeypatch):
  """It takes as long as generation and the update here."""
  shapes = [(1, 2, 4), (1, 8, 1)]
  monkeypatch.setattr(mesh_search, 'meshes', lambda *_: shapes)
  text, facts = searched(monkeypatch, 16, rl__loss__kl_coef=0.01)
  best, other = facts['meshes']
  why = 'score does not fit: needs 16.0 of 15.8 GiB a chip'
  assert other == {'mesh': (1, 2, 4), 'why': why} and why in text
  assert [p['phase'] for p in best['phases']] == ['generate', 'score', 'update']
  seconds = {p['phase']: p['serial_seconds'] for p in best['phases']}
  assert best['serial_seconds'] == sum(seconds.values())
  assert seconds['score'] == seconds['generate'] > 0


CALLS = """HloModule m

ENTRY %e (a: s32[1,5,5], q: bf16[2,4,640,64], k: bf16[2,1,640,64]) -> f32[] {
  %a = s32[1,5,5]{2,1,0} parameter(0)
  %b = s32[1,5,2]{2,1,0} parameter(1)
  %c = s32[1,2,5]{2,1,0} parameter(2)
  %q = bf16[2,4,640,64]{3,2,1,0} parameter(3)
  %q1 = bf16[8,640,64]{2,1,0} parameter(7)
  %k1 = bf16[1,640,64]{2,1,0} parameter(8)
  %k = bf16[2,1,640,64]{3,2,1,0} parameter(4)
  %x = bf16[2560,256]{1,0} parameter(5)
  %w = bf16[8,256,128]{2,1,0} parameter(6)
  %splash_mha_fwd_segmented.1 = (f32[2,128,64]{2,1,0}) custom-call(%a, %a, %q, %k, %k), custom_call_target="tpu_custom_call"
  %splash_mha_dq_segmented.1 = (f32[2,128,64]{2,1,0}) custom-call(%b, %b, %q, %k, %k), custom_call_target="tpu_custom_call"
  %splash_mha_dkv_segmented.1 = (f32[2,128,64]{2,1,0}) custom-call(%c, %c, %q, %k, %k), custom_call_target="tpu_custom_call"
  %a2 = s32[1,2,5]{2,1,0} parameter(9)
  %q2 = bf16[2,4,256,64]{3,2,1,0} parameter(10)
  %splash_mha_fwd_segmented.3 = (f32[2,128,64]{2,1,0}) custom-call(%a2, %a2, %q2, %k, %k), custom_call_target="tpu_custom_call"
  %splash_mha_fwd_segmented.2 = (f32[2,128,64]{2,1,0}) custom-call(%a, %a, %q1, %k1, %k1), custom_call_target="tpu_custom_call"
  %ragged-dot-none.1 = bf16[2560,128]{1,0} custom-call(%x, %w), custom_call_target="tpu_custom_call"
  %cached_attention.1 = f32[8,640,64]{2,1,0} custom-call(%q1, %k1), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"cost_estimate":{"flops":"700","transcendentals":"5","bytes_accessed":"900"}}}
  ROOT %tgmm.1 = f32[8,256,128]{2,1,0} custom-call(%x, %x), custom_call_target="tpu_custom_call"
}
"""  # noqa: E501


@pytest.mark.parametrize('experts, share', [(0, 1), (8, 1), (64, 1 / 8)])
def test_kernels_called_by_name_are_counted(experts, share):
  """Kernels are counted by their shapes: the causal scores of a whole grid,
  the blocks of a window, the rows of one of 8 experts. One kernel has its own
  cost estimate.
  """
  ops = hlo.parse(CALLS).computations['e']
  scores = 2 * 2 * 4 * 640 * 640 * 64  # one product of all of them
  want = {
    'splash_mha_fwd_segmented.1': 2 * scores / 2,
    'splash_mha_fwd_segmented.2': 2 * scores / 2,
    # The last 256 of 640 tokens see 384 and half of their own.
    'splash_mha_fwd_segmented.3': 2 * scores * 256 * (384 + 128) / 640**2,
    'splash_mha_dq_segmented.1': 3 * scores * 2 / 5,
    'splash_mha_dkv_segmented.1': 4 * scores * 2 / 5,
    'ragged-dot-none.1': 2 * 2560 * 256 * 128 * share,
    'tgmm.1': 2 * 2560 * 256 * 128 * share,
    'cached_attention.1': 700,
  }
  got = {o.name: kernels.flops(ops, o, experts) for o in ops.values()}
  assert {k: v for k, v in got.items() if v} == want
  told = ops['cached_attention.1']
  mesh = sharding.make_mesh((8, 1, 1))
  reader = costs._Reader(hlo.parse(CALLS), mesh, experts)
  assert reader._bytes(ops, told) == 900
  rows = ops['ragged-dot-none.1']
  assert reader._bytes(ops, rows) == 2 * (2560 * 384 + 8 * 256 * 128)


def test_a_ranking_shows_every_mesh():
  mesh = dict(zip(sharding.AXES, (1, 2, 2, 1)))
  found = [
    {
      'mesh': mesh,
      'step_seconds': 12.34,
      'serial_seconds': 23.45,
      'mfu': 0.25,
      'phases': [{'needs_gib': 1.0}, {'needs_gib': 3.25}],
      'recipe': 'c.mesh = (1, 2, 2)',
    },
    {'mesh': (4, 1, 1), 'why': 'does not fit'},
  ]
  _, first, second, *_, last = plan.ranking(found).splitlines()
  assert first.split() == ['1', '2', '2', '12.3', '23.4', '0.25', '3.2']
  assert second.split() == ['4', '1', '1', 'does', 'not', 'fit']
  assert last == 'c.mesh = (1, 2, 2)'


@pytest.mark.parametrize(
  'asked, model, at',
  [
    (True, 'qwen3-8b', (2, 3, 4)),
    (False, 'llama-3.1-70b', (80,)),
  ],
)
def test_a_deep_model_can_be_planned_from_a_few_layers(asked, model, at):
  planner = types.SimpleNamespace(by_depth=asked)
  assert plan.Planner._depths(planner, zoo.ZOO[model]) == at


SLICED = """HloModule m
%copied (i: s8[24,64,128]) -> s8[24,64,128] {
  %i = s8[24,64,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  ROOT %c = s8[24,64,128]{2,1,0:T(8,128)(4,1)} copy(%i)
}
%layer (w: s8[24,64,128], n: s32[]) -> s8[1,64,128] {
  %w = s8[24,64,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %n = s32[]{:S(6)} parameter(1)
  %z = s32[] constant(0)
  %f = s8[24,64,128]{2,1,0:T(8,128)(4,1)} fusion(%w), kind=kLoop, calls=%copied
  ROOT %s = s8[1,64,128]{2,1,0} dynamic-slice(%f, %n, %z, %z), dynamic_slice_sizes={1,64,128}
}
ENTRY %e (w: s8[24,64,128], n: s32[], x: s8[32,64]) -> s32[32,128] {
  %w = s8[24,64,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %n = s32[]{:S(6)} parameter(1)
  %x = s8[32,64]{1,0:S(1)} parameter(2)
  %a = s8[1,64,128]{2,1,0:S(1)} fusion(%w, %n), kind=kLoop, calls=%layer
  %b = s8[64,128]{1,0:S(1)} bitcast(%a)
  ROOT %d = s32[32,128]{1,0:S(1)} dot(%x, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""  # noqa: E501


def test_a_slice_of_a_copy_in_another_layout_reads_the_slice():
  """The copy is inside the fusion, so that it is made of the slice alone."""
  total = costs.of(SLICED, sharding.make_mesh((8, 1, 1))).total()
  assert total.bytes == 64 * 128


def test_products_of_int8_numbers_take_half_the_time_on_some_chips(monkeypatch):
  mesh = sharding.make_mesh((8, 1, 1))
  one = costs.of(SLICED, mesh).total().flops
  assert one == 2 * 32 * 64 * 128
  monkeypatch.setattr(chips, 'int8_speed', lambda device: 2)
  assert costs.of(SLICED, mesh).total().flops == one / 2
  mixed = SLICED.replace('s8[32,64]', 'bf16[32,64]')
  assert costs.of(mixed, mesh).total().flops == one


@pytest.mark.parametrize(
  'kind, speed',
  [('TPU v4', 1), ('TPU v5 lite', 2), ('TPU v6 lite', 2), ('', 1)],
)
def test_chips_after_v4_multiply_int8_numbers_twice_as_fast(kind, speed):
  assert chips.int8_speed(types.SimpleNamespace(device_kind=kind)) == speed
