"""SmolLM3: every fourth layer has no positions."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts.rope import NOPE
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'SmolLM3ForCausalLM'
DEFAULTS = keys.BASE | {
  'rope_theta': 2_000_000.0,
  'num_key_value_heads': 4,
  'tie_word_embeddings': True,
  'no_rope_layer_interval': 4,
}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  every = h['no_rope_layer_interval']
  layers = range(h['num_hidden_layers'])
  has = h.get('no_rope_layers') or [int((i + 1) % every != 0) for i in layers]
  out = {'mlp_bias': bool(h.get('mlp_bias'))}
  if not all(has):
    out['rope_of_layer'] = tuple(0 if x else NOPE for x in has)
  if h.get('use_sliding_window'):
    out |= keys.windows(h, [keys.FULL if x else keys.SLIDING for x in has])
  return out | keys.biases(h) | ropes.fields(h)


def write(c: Config) -> dict:
  return (
    keys.write_biases(c)
    | keys.write_windows(c)
    | {
      'no_rope_layers': [
        int(c.layer_ropes[i] != NOPE) for i in range(c.layers)
      ],
      'use_sliding_window': bool(c.windows),
    }
    | ({'mlp_bias': True} if c.mlp_bias else {})
  )
