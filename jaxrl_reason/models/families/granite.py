"""Granite 3: multipliers of embeddings, scores, residuals and logits."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'GraniteForCausalLM'
DEFAULTS = keys.BASE | {
  'embedding_multiplier': 1.0,
  'attention_multiplier': 1.0,
  'residual_multiplier': 1.0,
  'logits_scaling': 1.0,
}
TENSORS = tensors.LLAMA


def read(h: dict) -> dict:
  return (
    {
      'embed_scale': float(h['embedding_multiplier']),
      'query_scale': float(h['attention_multiplier']),
      'residual_scale': float(h['residual_multiplier']),
      'logit_divisor': float(h['logits_scaling']),
      'mlp_bias': bool(h.get('mlp_bias')),
    }
    | keys.biases(h)
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return (
    keys.write_biases(c)
    | {
      'embedding_multiplier': c.embed_scale,
      'attention_multiplier': c.score_scale,
      'residual_multiplier': c.residual_scale,
      'logits_scaling': c.logit_divisor,
    }
    | ({'mlp_bias': True} if c.mlp_bias else {})
  )
