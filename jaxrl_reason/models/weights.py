"""The spec tree of a Config: every weight's shape, logical axes and initial
values. Layers are stacked on a leading axis.
"""

from jaxrl_reason.models import spec
from jaxrl_reason.models.config import Config

# Name of a projection -> how many of its dimensions, after those of layers and
# experts, are inputs; the rest are outputs.
N_INPUTS = {'q': 1, 'k': 1, 'v': 1, 'o': 2, 'gate': 1, 'up': 1, 'down': 1}


def split(path: str, s: spec.Spec) -> tuple[int, int]:
  """Returns (stacked dimensions, inputs after them) of the projection at a
  path.
  """
  return spec.n_stacked(s), N_INPUTS[path.rpartition('/')[2]]


def _norm(c: Config, axis: str | None, n: int) -> spec.Spec:
  """A norm that begins as multiplication by 1."""
  return spec.Spec((n,), (axis,), 'zeros' if c.norm_offset else 'ones')


def _attention(c: Config, depth: float) -> dict:
  d, q, k, h = c.width, c.heads, c.kv_heads, c.head_dim
  attn = {
    'q': spec.Spec((d, q, h), ('embed', 'heads', None), fan_in=d),
    'k': spec.Spec((d, k, h), ('embed', 'kv_heads', None), fan_in=d),
    'v': spec.Spec((d, k, h), ('embed', 'kv_heads', None), fan_in=d),
    'o': spec.Spec(
      (q, h, d), ('heads', None, 'embed'), scale=depth * (q * h) ** -0.5
    ),
  }
  if c.bias:
    for name, heads, axis in (
      ('q', q, 'heads'),
      ('k', k, 'kv_heads'),
      ('v', k, 'kv_heads'),
    ):
      attn[name + '_bias'] = spec.Spec((heads, h), (axis, None), 'zeros')
  if c.o_bias:
    attn['o_bias'] = spec.Spec((d,), (None,), 'zeros')
  if c.qk_norm:
    over = c.qk_norm_over == 'projection'
    attn |= {
      'q_norm': _norm(c, None, q * h if over else h),
      'k_norm': _norm(c, None, k * h if over else h),
    }
  return attn


def _mlp(c: Config, depth: float) -> dict:
  d, f = c.width, c.mlp
  # Expert weights are split by expert, so not by width as well.
  lead, axes = ((c.experts,), ('expert',)) if c.experts else ((), ())
  embed = None if c.experts else 'embed'
  mlp = {
    'gate': spec.Spec((*lead, d, f), (*axes, embed, 'mlp'), fan_in=d),
    'up': spec.Spec((*lead, d, f), (*axes, embed, 'mlp'), fan_in=d),
    'down': spec.Spec(
      (*lead, f, d), (*axes, 'mlp', embed), scale=depth * f**-0.5
    ),
  }
  if c.mlp_bias:
    for name, n, axis in (
      ('gate', f, 'mlp'),
      ('up', f, 'mlp'),
      ('down', d, None),
    ):
      mlp[name + '_bias'] = spec.Spec((n,), (axis,), 'zeros')
  if c.experts:
    mlp['router'] = spec.Spec((d, c.experts), ('embed', None), fan_in=d)
  return mlp


def specs(c: Config) -> dict:
  """Makes the spec tree: shapes, logical axes and initial values."""
  d = c.width
  # Residual outputs start smaller with depth (GPT-2), so that the sum of 2L
  # of them has the scale of one.
  depth = (2 * c.layers) ** -0.5
  layer = {'attn': _attention(c, depth), 'mlp': _mlp(c, depth)}
  for name in ('attn', 'mlp'):
    if c.norm_place != 'post':
      layer[name + '_norm'] = _norm(c, None, d)
    if c.norm_place != 'pre':
      layer[name + '_post_norm'] = _norm(c, None, d)
  tree = {
    # Unit inputs, unless the same weights also make the logits.
    'embed': spec.Spec(
      (c.vocab, d),
      ('vocab', 'embed'),
      scale=d**-0.5 if c.tied else 1.0,
    ),
    'layers': spec.stack(layer, c.layers),
    'final_norm': _norm(c, None, d),
  }
  if not c.tied:
    tree['head'] = spec.Spec((d, c.vocab), ('embed', 'vocab'), fan_in=d)
  return tree


def flops_per_token(c: Config, context: float) -> float:
  """Counts the forward FLOPs of one token that attends to `context` tokens: two
  per weight that multiplies it, and four per attended feature.
  """
  attn = c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads)
  mlp = 3 * c.width * c.mlp * (c.experts_per_token or 1)
  router = c.width * c.experts
  weights = c.layers * (attn + mlp + router) + c.width * c.vocab
  seen = sum(
    min(context, c.layer_windows[i] or context) for i in range(c.layers)
  )
  return 2 * weights + 4 * seen * c.heads * c.head_dim
