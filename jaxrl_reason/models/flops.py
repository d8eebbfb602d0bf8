"""Operations of a model's forward pass, counted from its Config."""

from jaxrl_reason.models.config import (
  ALONE,
  DELTAS,
  READINGS,
  WIDES,
  WITHOUT_INDEXER,
  Config,
)
from jaxrl_reason.models.parts.delta import MAMBA


def flops_per_token(c: Config, context: float) -> float:
  """Returns the forward FLOPs of one token that attends to `context` tokens:
  two per weight that multiplies it, and four per attended feature.
  """
  n_delta, n_alone = len(c.delta_layers), len(c.mlp_layers)
  weights, seen = c.width * c.vocab + n_delta * _delta_weights(c), 0.0
  for i, (stack, _) in enumerate(c.stack_of_layer):
    if stack not in (*DELTAS, ALONE):
      of_layer, features = _attention_weights(c, stack)
      weights += of_layer
      most = abs(c.layer_windows[i])
      seen += min(context, most or context, c.index_topk or context) * features
      if c.index_topk and stack not in WITHOUT_INDEXER:
        weights += _index_weights(c)
        seen += context * c.index_heads * c.index_dim / 2  # q . k, no values
  mlp = (2 + c.gated) * c.width
  n_mlps = n_alone or c.layers - len(c.dense_layers)
  own = c.mlp * (c.experts_per_token or 1) + c.shared_mlp
  weights += n_mlps * (mlp * own + c.width * c.experts)
  weights += len(c.dense_layers) * 3 * c.width * c.dense_mlp
  if c.reading_mlp:
    usual = c.shared_mlp if c.experts else c.mlp
    weights += c.reading_layers * mlp * (c.reading_mlp - usual)
  # The projection of the inputs, their gate, and the projection back.
  weights += 3 * c.layers * c.width * c.layer_inputs
  weights += 2 * c.layers * c.width * c.low_rank
  if c.streams:
    n = c.streams
    # Routers before and after a layer, and their coefficients.
    weights += c.layers * (2 * c.width * n + n**3 + n * n)
    weights += 2 * (n - 1) * c.width**2
  return 2 * weights + 4 * seen


def _attention_weights(c: Config, stack: str) -> tuple[float, float]:
  """Returns (weights of attention, features of keys and values per attended
  token, halved) of a layer.
  """
  k, h = c.heads_of(stack)
  if not c.kv_rank:
    own = (2 - (stack in WIDES and c.keys_as_values)) * (stack not in READINGS)
    heads = c.heads * (2 + c.out_gate) + k * own
    return c.width * h * heads, c.heads * h
  queries = c.heads * c.head_dim
  out = c.width * (c.kv_rank + c.rope_dim + c.heads * c.value_dim)
  out += c.kv_rank * c.heads * (c.head_dim - c.rope_dim + c.value_dim)
  out += c.q_rank * (c.width + queries) if c.q_rank else c.width * queries
  return out, c.heads * (c.head_dim + c.value_dim) / 2


def _index_weights(c: Config) -> float:
  """Returns the weights of an indexer."""
  own = c.index_heads * (c.q_rank * c.index_dim + c.width)
  return own + c.width * c.index_dim


def _delta_weights(c: Config) -> float:
  """Returns the weights and state entries that multiply a token in a layer of
  the delta rule: projections, and three products of a head with its state, of
  Mamba-2 two.
  """
  values = c.delta_heads * c.delta_groups * c.delta_value_dim
  if not c.delta_key_dim:
    return values * (4 * c.width + c.delta_taps)
  mixed = 2 * c.delta_heads * c.delta_key_dim + values
  projections = c.width * (mixed + 2 * values)
  n = 2 if c.delta_rule == MAMBA else 3
  projections += c.width * (n - 1) * c.delta_heads * c.delta_groups
  return projections + mixed * c.delta_taps + n * values * c.delta_key_dim
