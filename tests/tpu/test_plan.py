"""The TPU compiler compiles recipes for described chips: they fit, donate, and
exchange only the expected data. `jaxrl plan` runs in its own process, since the
other tests use virtual CPU devices.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest
from described_tpu import GSM8K, OURS, planned
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason.run.process import chips

pytestmark = [
  pytest.mark.tpu_compile,
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason="needs libtpu: pip install 'jaxrl_reason[tpu]'",
  ),
]
# 64 problems x 8 samples, 1,024 + 4,096 tokens.
LONG = (
  '--config.data.prompt_len=1024',
  '--config.data.completion_len=4096',
  '--config.rl.prompts=64',
  '--config.rl.parts=1',
  '--config.model.remat=full',
)

EIGHT_B = (
  *LONG,
  '--model=qwen3-8b',
  '--config.mesh=(1,16,4)',
  '--config.rl.micro_batches=16',
)


def check(facts, *, rows: int, columns: int, vocab: int):
  """Checks properties of every plan.

  Args:
    rows, columns: of a micro-batch that have logits.
  """
  for p in facts['phases']:
    assert 0 < p['needs_gib'] < facts['hbm_gib'], p['phase']
    # Attention computes masked scores too; remat repeats the forward pass.
    assert 0.95 < p['flops_over_model'] < 1.9, p['flops_over_model']
    whole = rows * columns * vocab * 4
    for c in p['collectives']:
      assert c['largest'] < whole, c
    if p['phase'] in ('update', 'step', 'sft'):
      assert p['donated_arrays'] == p['state_arrays']
      assert p['donated_gib'] > 0.99 * p['state_gib']
    if loop := p['token_loop']:
      # Activations of a token for each row, not the weights (bfloat16).
      share = loop['exchanged'] / (2 * facts['parameters'])
      assert share < 0.02, loop['collectives']
      # Caches are written in place. (Small models live in on-chip memory.)
      assert loop['largest_copy'] < max(loop['bytes'] / 100, 2**16)
  assert math.isfinite(facts['step_seconds']) and 0 < facts['mfu'] < 1


def test_the_tiny_recipe_on_four_chips(tmp_path):
  flags = '--config.mesh=(1,4,1)', '--code'
  facts = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *flags)
  assert [p['phase'] for p in facts['phases']] == ['evaluate', 'sft', 'step']
  assert facts['parameters'] == 331_520
  # A vocabulary of 24 is smaller than the width: whole logits of all rows.
  check(facts, rows=512, columns=37, vocab=24)


def test_buffers_have_the_figures_of_the_code(tmp_path):
  flags = '--config.mesh=(1,4,1)', '--only=sft'
  found = []
  for more in ((), ('--code',)):
    facts = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *flags, *more)
    (phase,) = facts['phases']
    # Temporaries with their holes are no part of the memory that is needed.
    del phase['compile_s'], phase['temporaries_gib']
    found.append(facts)
  assert found[0] == found[1]


def test_two_slices_share_the_data_axis(tmp_path):
  flags = '--num_slices=2', '--only=sft', '--config.mesh=(2,4,1)'
  facts = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *flags)
  check(facts, rows=512, columns=37, vocab=24)
  assert facts['mesh']['data'] == 2
  (phase,) = facts['phases']
  assert {'data', 'fsdp'} <= {c['axis'] for c in phase['collectives']}
  wrong = *flags[:2], '--config.mesh=(1,8,1)'
  said = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *wrong, ok=False)
  assert 'data 1 does not divide over the 2 slices' in said


@pytest.mark.slow
def test_seeds_side_by_side_on_a_chip(tmp_path):
  """A seed has as many operations as one seed alone, and at most twice its
  memory: little is padded to tiles, and nothing is copied.
  """
  facts = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:1x1', '--seeds=1,8')
  alone, eight = facts['seeds']
  assert (alone['seeds'], eight['seeds']) == (1, 8)
  assert eight['operations'] < 1.3 * alone['operations']
  assert 0 < alone['peak_gib'] < 1
  assert alone['peak_gib'] < eight['peak_gib'] < 2 * 8 * alone['peak_gib']
  assert alone['seconds'] > alone['roofline_s'] > 0


def test_seeds_that_are_not_numbers_are_refused(tmp_path):
  said = planned(
    tmp_path, 'arithmetic_tiny.py', 'v5e:1x1', '--seeds=1,0', ok=False
  )
  assert '--seeds=1,0: whole numbers from 1' in said


@pytest.mark.slow
def test_qwen3_8b_on_64_chips(tmp_path):
  flags = *EIGHT_B, '--only=generate,update'
  facts = planned(tmp_path, GSM8K, 'v5p:4x4x4', *flags)
  assert facts['parameters'] == pytest.approx(8.19e9, rel=0.01)
  check(facts, rows=32, columns=4096, vocab=151_936)


# 480 completions at a time, of 4,096 tokens: eight turns of 481 and 31.
GENERATED = (
  *EIGHT_B,
  '--config.model.dtype=bfloat16',
  '--only=evaluate',
)
TURNS = dict(most=8, tokens=481, observation=31)


@pytest.mark.slow
def test_eight_turns_read_as_many_bytes_as_one(tmp_path):
  """Compares bytes per sampled token, with observations. No cache is copied
  between turns.
  """
  turns = [f'--config.rl.turns.{k}={v}' for k, v in TURNS.items()]

  def phase(*flags):
    name = 'calculator_tiny.py'
    facts = planned(tmp_path, name, 'v5p:4x4x4', *GENERATED, *flags)
    assert facts['fits'] and 'depths' not in facts
    return facts['phases'][0]

  many, one = phase(*turns), phase('--config.rl.turns.env=')
  assert one['turn_loop'] is None and one['token_loop']['trips'] == 4096
  assert many['turn_loop']['trips'] == 8
  assert many['token_loop']['trips'] == TURNS['tokens'] - 1
  read = many['turn_loop']['bytes'] / TURNS['tokens']
  assert read < 1.2 * one['token_loop']['bytes']
  # Keys of a layer: 30 rows and 2 heads of a device, in bfloat16.
  cache = 30 * 2 * 8 * (481 + 31) * 128 * 2
  assert many['turn_loop']['largest_copy'] < cache / 1.5


ON_16 = (
  '--config.mesh=(1,16,1)',
  '--config.rl.parts=2',
  '--config.model.remat=full',
)


@pytest.mark.slow
@pytest.mark.parametrize('only', ['update', 'generate'])
def test_qwen3_1p7b_on_16_chips(tmp_path, only):
  facts = planned(tmp_path, GSM8K, 'v5e:4x4', f'--only={only}', *ON_16)
  check(facts, rows=16, columns=1024, vocab=151_936)


@pytest.mark.slow
def test_few_layers_give_the_figures_of_all(tmp_path):
  """Compiles every layer of the 8B model, and compares with the line through a
  few depths.
  """
  flags = *EIGHT_B, '--only=generate,update'
  few = planned(tmp_path, GSM8K, 'v5p:4x4x4', *flags, '--by_depth')
  all_ = planned(tmp_path, GSM8K, 'v5p:4x4x4', *flags)
  assert few['depths'] == [2, 3, 4] and few['layers'] == 36
  assert 'depths' not in all_
  check(all_, rows=32, columns=4096, vocab=151_936)
  assert few['parameters'] == all_['parameters']
  for a, b in zip(few['phases'], all_['phases']):
    for key in ('arguments_gib', 'needs_gib', 'flops', 'step_seconds'):
      assert a[key] == pytest.approx(b[key], rel=0.05), (a['phase'], key)


@pytest.mark.slow
def test_qwen3_30b_a3b_on_64_chips(tmp_path):
  facts = planned(
    tmp_path,
    GSM8K,
    'v6e:8x8',
    *LONG,
    '--model=qwen3-30b-a3b',
    '--only=generate,update',
    '--config.mesh=(1,64,1)',
    '--config.rl.micro_batches=8',
  )
  assert facts['parameters'] == pytest.approx(30.5e9, rel=0.01)
  check(facts, rows=64, columns=4096, vocab=151_936)


# Adapters beside frozen bf16 weights, 64 problems x 8 samples.
ADAPTERS = (
  '--only=generate,update',
  '--config.lora.rank=16',
  '--config.frozen_dtype=bfloat16',
  '--config.model.remat=full',
  '--config.rl.prompts=64',
  '--config.rl.parts=1',
)


@pytest.mark.slow
@pytest.mark.parametrize(
  'model, topology, mesh, billions',
  [
    ('gpt-oss-20b', 'v5e:4x4', (1, 16, 1), 20.9),
    ('gpt-oss-120b', 'v5p:2x4x4', (1, 32, 1), 116.8),
    ('deepseek-v3', 'v5p:4x4x4', (1, 64, 1), 671.0),
  ],
)
def test_mixtures_with_adapters(tmp_path, model, topology, mesh, billions):
  facts = planned(
    tmp_path,
    GSM8K,
    topology,
    *ADAPTERS,
    f'--model={model}',
    f'--config.mesh={mesh}',
    '--config.rl.micro_batches=8',
  )
  assert facts['fits']
  assert facts['parameters'] / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_plan_that_does_not_fit_is_reported(tmp_path):
  said = planned(
    tmp_path,
    'arithmetic_tiny.py',
    'v5e:2x2',
    '--only=sft',
    '--config.sft.rows=4194304',
    ok=False,
  )
  assert 'sft does not fit: needs' in said and 'Traceback' not in said
  # The table and the data are still written.
  assert '331,520 parameters' in said or 'no room' in said
  facts = json.loads((tmp_path / 'plan.json').read_text())
  assert not facts['fits'] and facts['phases'][0]['needs_gib'] > 15.75
  said = planned(tmp_path, GSM8K, 'v5e:3x5', ok=False)
  assert '--topology=v5e:3x5' in said and 'Traceback' not in said


@pytest.mark.slow
def test_a_search_finds_a_plan_that_fits(tmp_path):
  """Fewer micro-batches do not fit, and the printed settings give the same
  plan.
  """
  flags = '--only=sft', '--config.stages=sft', '--config.sft.rows=1048576'
  facts = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *flags, '--search')
  best = facts['meshes'][0]
  c = config_lib.default()
  exec(best['recipe'], {'c': c})
  settings = [
    f'--config.mesh={tuple(c.mesh)}',
    f'--config.model.remat={c.model.remat}',
    f'--config.sft.logprob_chunk={c.sft.logprob_chunk}',
  ]
  n, seconds = c.sft.micro_batches, best['serial_seconds']
  with_n = *flags, *settings, f'--config.sft.micro_batches={n}'
  again = planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *with_n)
  assert again['fits'] and again['serial_seconds'] == pytest.approx(seconds)
  fewer = *flags, *settings, f'--config.sft.micro_batches={n // 2}'
  assert n > 1
  planned(tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', *fewer, ok=False)


def ran(code: str) -> subprocess.CompletedProcess:
  """Returns the output of a program in its own process."""
  env = {k: v for k, v in os.environ.items() if k not in OURS}
  done = subprocess.run(
    [sys.executable, '-c', code],
    env=env | {'PYTHONPATH': str(ROOT)},
    capture_output=True,
    cwd=ROOT,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return done


PROBE = """
import jax, jax.numpy as jnp
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run.process import chips
SLICES = {'v4': '2x2x1', 'v5e': '1x1', 'v5p': '2x2x1', 'v6e': '1x1',
          'tpu7x': '2x2x1'}
for name, chip in chips.CHIPS.items():
  device = described.devices(f'{name}:{SLICES[name]}')[0]
  where = jax.sharding.SingleDeviceSharding(device)
  huge = jax.ShapeDtypeStruct((2**40,), jnp.float32, sharding=where)
  try:
    jax.jit(jnp.sin).lower(huge).compile()
  except jax.errors.JaxRuntimeError as e:
    print(name, described.out_of_memory(str(e))[1] == chip.hbm)
from jaxrl_reason import sharding
grid = sharding.make_mesh((1, 32, 2), described.devices('v5p:4x4x4')).devices
apart = {sum(abs(a - b) for a, b in zip(x.coords, y.coords))
         for x, y in grid.reshape(-1, 2)}
print('neighbours', apart == {1})
"""


def test_memory_of_a_chip_is_that_of_its_compiler():
  """This holds for a single chip too. A mesh axis may be a part of a dimension
  of the torus, with neighbouring devices.
  """
  done = ran(PROBE)
  assert done.stdout.split() == [
    word for name in (*chips.CHIPS, 'neighbours') for word in (name, 'True')
  ]


SUMS = """
import runpy
from jaxrl_reason import config
from jaxrl_reason.planning import planner as plan
from jaxrl_reason.run.process import chips
c = runpy.run_path('configs/arithmetic_tiny.py')['get_config']()
c.mesh = 1, 2, 2
c.model.update(width=1024, mlp=4096, heads=8, kv_heads=8, head_dim=128)
c.sft.rows = 8192
c = config.read(c)
def exposed():  # a planner compiles each setting once
  planner = plan.Planner(
    c, 'v5p:2x2x1', slices=1, model='', only=('sft',), code=True, say=str)
  return planner.plan()['exposed_seconds']
print(exposed())
chips.OVERLAP = dict.fromkeys(chips.CHIPS, {'xla_no_such_option': True})
print(exposed())
"""


def test_sums_over_the_tensor_axis_go_on_beside_products():
  """Training programs request it from their compiler. A compiler without
  support still compiles them.
  """
  done = ran(SUMS)
  beside, waited = map(float, done.stdout.split())
  assert 0 < beside < 0.8 * waited
  assert 'are waited for' in done.stderr and 'xla_no_such' in done.stderr
