"""Steering vectors are exported as biases if the family has them."""

import hf_models as H
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data import hf_folders
from etils import epath
from small import small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason.checkpoints import conversion, manager
from jaxrl_reason.evals import generation as generate
from jaxrl_reason.models import adapters
from jaxrl_reason.models.adapters import steering

pytestmark = pytest.mark.parity

SHAPE = dict(vocab=312, kv_heads=4, tied=False, layers=2)
VECTORS = jax.random.normal(jax.random.key(4), (2, 16))


def run_of(folder, shape: dict):
  """Returns a run's workdir with a tokenizer and a checkpoint with vectors.

  Returns:
    (Model, its parameters), with vectors of its layers.
  """
  c, base, params = small_model(**SHAPE, **shape)
  params |= {steering.KEY: VECTORS}
  config = config_lib.default()
  config.model.update({k: getattr(c, k) for k in config.model})
  (folder / 'hf').mkdir(parents=True)
  hf_folders.byte_level(folder / 'hf')
  (folder / 'config.json').write_text(config.to_json_best_effort())
  checkpoints = manager.Checkpoints(epath.Path(folder), 1)
  checkpoints.save(1, {'params': params}, {'stage': 0})
  checkpoints.wait()
  checkpoints.close()
  return adapters.attach(base, steering=True), params


def ask(folder) -> list[int]:
  g = generate.load(
    str(folder),
    None,
    False,
    n_samples=1,
    max_new=5,
    sampling={'temperature': 0.0},
  )
  return g([[5, 9, 2]], [0])[0][0][0]


def logits(model, params, tokens):
  def f(params):
    return model.unembed(params, model.hidden(params, tokens, tokens >= 0))

  return jax.jit(f)(params)


@pytest.mark.parametrize('bias', [True, False], ids=['qwen2', 'llama'])
def test_an_export_has_the_vectors_as_biases(tmp_path, bias):
  model, params = run_of(tmp_path / 'run', dict(qk_norm=False, bias=bias))
  conversion.convert(tmp_path / 'run', tmp_path / 'out')
  theirs = H.transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  assert type(theirs).__name__ == 'LlamaForCausalLM'
  tokens = jnp.arange(14).reshape(2, 7) * 19 % 312
  with H.torch.no_grad():
    want = theirs(H.torch.tensor(np.asarray(tokens))).logits.numpy()
  got = logits(model, params, tokens)
  np.testing.assert_allclose(got, want, atol=1e-4)
  off = logits(model, model.adapters_off(params), tokens)
  assert np.abs(off - want).max() > 0.1
  assert ask(tmp_path / 'run') == ask(tmp_path / 'out')


def test_without_biases_generate_still_works(tmp_path):
  """The error names `generate`."""
  model, params = run_of(tmp_path / 'run', dict(qk_norm=True, bias=False))
  with pytest.raises(ValueError, match='qwen3 has none.*generate reads it'):
    conversion.convert(tmp_path / 'run', tmp_path / 'out')
  with pytest.raises(ValueError, match='leave --format=peft out'):
    conversion.convert(tmp_path / 'run', tmp_path / 'out', form='peft')
  drawn = ask(tmp_path / 'run')
  tokens = jnp.array([[5, 9, 2, *drawn]])
  best = jnp.argmax(logits(model, params, tokens), -1)
  assert best[0, 2:-1].tolist() == drawn
  plain = jnp.argmax(logits(model, model.adapters_off(params), tokens), -1)
  assert plain[0, 2:-1].tolist() != drawn
