"""Recipes compiled by the real TPU compiler for chips that are not here: they
fit, donate, and exchange no more than they should. `python -m
jaxrl_reason.plan` in a process of its own, since the other tests run on
virtual CPU devices.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest
from small import ROOT

pytestmark = [
  pytest.mark.tpu_compile,
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason="needs libtpu: pip install 'jaxrl_reason[tpu]'",
  ),
]
# Of conftest.py; the command needs none of them.
OURS = ('XLA_FLAGS', 'JAX_PLATFORMS', 'JAX_COMPILATION_CACHE_DIR')
GSM8K = 'grpo_gsm8k_qwen3_1p7b.py'
# 64 problems x 8 samples, 1,024 + 4,096 tokens.
LONG = (
  '--config.data.prompt_len=1024',
  '--config.data.completion_len=4096',
  '--config.rl.prompts=64',
  '--config.rl.parts=1',
  '--config.model.remat=full',
)


def planned(tmp_path, recipe, topology, *flags, ok=True):
  """The facts of a plan; with ok=False what it prints instead."""
  out = tmp_path / 'plan.json'
  env = {k: v for k, v in os.environ.items() if k not in OURS}
  path = os.pathsep.join([str(ROOT), env.get('PYTHONPATH', '')])
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'jaxrl_reason.plan', '--nolargest'),
      f'--config={ROOT / "configs" / recipe}',
      f'--topology={topology}',
      f'--json={out}',
      *flags,
    ],
    env=env | {'PYTHONPATH': path},
    capture_output=True,
    text=True,
  )
  assert (done.returncode == 0) is ok, done.stderr[-3000:]
  return json.loads(out.read_text()) if ok else done.stderr


def check(facts, *, rows: int, columns: int, vocab: int):
  """What holds of every plan.

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
  facts = planned(
    tmp_path, 'arithmetic_tiny.py', 'v5e:2x2', '--config.mesh=(1,4,1)'
  )
  assert [p['phase'] for p in facts['phases']] == ['sft', 'step']
  assert facts['parameters'] == 331_520
  # A vocabulary of 24 is smaller than the width: whole logits of all rows.
  check(facts, rows=512, columns=37, vocab=24)


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


def check_long(tmp_path, topology, model, parameters, *flags, rows):
  """Plans GSM8K with long completions on 64 chips, and checks the facts."""
  model = f'--model={model}', '--only=generate,update'
  facts = planned(tmp_path, GSM8K, topology, *LONG, *model, *flags)
  assert facts['parameters'] == pytest.approx(parameters, rel=0.01)
  check(facts, rows=rows, columns=4096, vocab=151_936)


def test_qwen3_8b_on_64_chips(tmp_path):
  flags = '--config.mesh=(1,16,4)', '--config.rl.micro_batches=16'
  check_long(tmp_path, 'v5p:4x4x4', 'qwen3-8b', 8.19e9, *flags, rows=32)


def test_qwen3_1p7b_on_16_chips(tmp_path):
  facts = planned(
    tmp_path,
    GSM8K,
    'v5e:4x4',
    '--only=generate,update',
    '--config.mesh=(1,16,1)',
    '--config.rl.parts=2',
    '--config.model.remat=full',
  )
  check(facts, rows=16, columns=1024, vocab=151_936)


@pytest.mark.slow
def test_qwen3_30b_a3b_on_64_chips(tmp_path):
  flags = '--config.mesh=(1,64,1)', '--config.rl.micro_batches=8'
  check_long(tmp_path, 'v6e:8x8', 'qwen3-30b-a3b', 30.5e9, *flags, rows=64)


def test_what_does_not_fit_is_said(tmp_path):
  said = planned(
    tmp_path,
    'arithmetic_tiny.py',
    'v5e:2x2',
    '--only=sft',
    '--config.sft.rows=4194304',
    ok=False,
  )
  assert 'sft does not fit: needs' in said and 'Traceback' not in said
  said = planned(tmp_path, GSM8K, 'v5e:3x5', ok=False)
  assert '--topology=v5e:3x5' in said and 'Traceback' not in said
