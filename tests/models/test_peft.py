"""Exported adapters are the same in `peft`, beside every family."""

import dataclasses
import json

import hf_models
import jax
import numpy as np
import pytest
from hf_models import torch, transformers
from small import small_model

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import hf
from jaxrl_reason.models import adapters, families, spec, transformer, weights
from jaxrl_reason.models.adapters import lora

peft = pytest.importorskip('peft')
pytestmark = pytest.mark.parity
LORA = lora.Lora(rank=2, alpha=3.0)


def adapted(base, params, settings):
  """Returns a Model with adapters, and parameters with effective ones."""
  model = adapters.attach(base, lora=settings)
  ab = spec.init(model.specs[lora.KEY], jax.random.key(7))
  return model, params | {lora.KEY: jax.tree.map(lambda x: x + 0.05, ab)}


def logits(model, params, tokens):
  hidden = model.hidden(params, tokens, tokens >= 0)
  return np.asarray(model.unembed(params, hidden))


@pytest.mark.parametrize('rslora', [False, True])
def test_peft_reads_the_adapters(tmp_path, rslora):
  c, base, params = small_model(qk_norm=False)
  settings = dataclasses.replace(LORA, rslora=rslora)
  model, params = adapted(base, params, settings)
  hf.save(tmp_path / 'base', lora.base_of(params), c, dtype='float32')
  table = families.FAMILIES['qwen2'].TENSORS
  lora.save_peft(tmp_path / 'peft', params, settings, table, model.specs)
  theirs = peft.PeftModel.from_pretrained(
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'base'),
    tmp_path / 'peft',
  )
  tokens = np.arange(10).reshape(2, 5)
  with torch.no_grad():
    wanted = theirs(torch.tensor(tokens)).logits.numpy()
  found = logits(model, params, tokens)
  np.testing.assert_allclose(found, wanted, atol=1e-4)
  config = json.loads((tmp_path / 'peft' / 'adapter_config.json').read_text())
  assert config['target_modules'] == sorted(
    f'{m}_proj' for m in 'q k v o gate up down'.split()
  )


def peft_targets(c, table) -> str:
  """Returns a regex of all weights whose adapters `peft` reads."""
  known = {leaf for row in table for leaf in row.leaves}
  flat = trees.flatten(weights.specs(c), spec.is_spec)
  found = [
    path
    for path in sorted(known & flat.keys())
    if path.rpartition('/')[2] in weights.N_INPUTS
    and '/index/' not in path
    and weights.split(path, flat[path])[0] == 1  # not of each expert
  ]
  return '|'.join(found)


def check_peft(theirs, folder, tmp_path):
  """Compares logits with adapters that `peft` reads beside a saved model."""
  h = hf.read_config(folder)
  c, table = families.from_hf(h), families.adapted_of(h)
  base, params = transformer.build(c), hf.load(folder, c)
  settings = dataclasses.replace(LORA, targets=peft_targets(c, table))
  model, params = adapted(base, params, settings)
  to = tmp_path / 'peft'
  lora.save_peft(to, params, settings, table, model.specs, '', c.stacks)
  tokens = np.arange(10).reshape(2, 5)
  valid = np.ones(tokens.shape, bool)
  rows = torch.tensor(tokens), torch.tensor(valid)
  with torch.no_grad():
    bare = hf_models.logits(theirs, *rows).numpy()
    theirs = peft.PeftModel.from_pretrained(theirs, to)
    wanted = hf_models.logits(theirs, *rows).numpy()
  found = logits(model, params, tokens)
  np.testing.assert_allclose(found, wanted, atol=1e-4)
  assert np.abs(wanted - bare).max() > 1e-2


# Families with fused tensors or stacks of their own.
FAST = 'phi3 lfm2 granite4 nemotron_h falcon_h1 gemma3n gemma4_e2b llama4'
FAST = f'{FAST} cohere deepseek_v3'.split()
SLOW = [
  pytest.param(name, marks=pytest.mark.slow)
  for name in hf_models.CASES
  if name not in FAST
]


@pytest.mark.parametrize('name', [*FAST, *SLOW])
def test_peft_reads_the_adapters_of_a_family(name, tmp_path):
  theirs = hf_models.make(name)
  theirs.save_pretrained(tmp_path / 'base')
  check_peft(theirs, tmp_path / 'base', tmp_path)


@pytest.mark.slow
def test_peft_reads_the_adapters_of_a_model_with_images(tmp_path):
  theirs = hf_models.make_with_images()
  theirs.save_pretrained(tmp_path / 'base')
  check_peft(theirs, tmp_path / 'base', tmp_path)


def test_no_adapter_is_exported_that_peft_takes_for_an_expert():
  of_peft = pytest.importorskip('peft.utils.transformers_weight_conversion')
  kinds = of_peft._MODEL_TO_CONVERSION_PATTERN
  mixtures = {
    name: of_peft._MOE_TARGET_MODULE_MAPPING[kinds[name]]
    for name in families.FAMILIES
    if kinds.get(name) in of_peft._MOE_TARGET_MODULE_MAPPING
  }
  assert len(mixtures) > 8
  for name, targets in mixtures.items():
    for row in families.adapted_of({'model_type': name}):
      module, _, leaf = row.name.removesuffix('.weight').rpartition('.')
      if leaf in targets and 'experts.{}' not in module:  # refused as experts
        assert row.leaves[0].rpartition('/')[2] not in weights.N_INPUTS, row
