"""The spec tree of a Config: shape, logical axes and initializer of every
weight. Layers are stacked on a leading axis.
"""

from jaxrl_reason.models import spec
from jaxrl_reason.models.config import (
  ALL_DENSE,
  ALONE,
  DELTAS,
  READINGS,
  WIDES,
  WITHOUT_INDEXER,
  Config,
)
from jaxrl_reason.models.parts.delta import MAMBA
from jaxrl_reason.models.parts.layers import LEARNED

# Number of input dimensions of each projection, after those of layers and
# experts; the remaining dimensions are outputs.
N_INPUTS = {'q': 1, 'k': 1, 'v': 1, 'o': 2, 'gate': 1, 'up': 1, 'down': 1}
N_INPUTS |= {'q_down': 1, 'q_up': 1, 'kv_down': 1, 'kv_up': 1, 'qkvz': 1}
N_INPUTS |= {'z': 1}
INDEX = 'index'  # subtree of an indexer, whose weights have no gradient

# Path endings of small weights that are read as float32.
EXACT = (
  *('norm', 'sinks', 'choice_bias', 'conv', 'log_decay', 'step_bias'),
  *('positive', 'negative', 'conv_bias', 'skip', 'router_scale'),
  *('expert_scale', 'factor', 'active_scale', 'norm_bias', 'head_weights'),
)

BEFORE, AFTER = ('attn_norm', 'mlp_norm'), ('attn_post_norm', 'mlp_post_norm')
# Norms of a layer, by Config.norm_place.
NORMS = {
  'pre': BEFORE,
  'post': AFTER,
  'sandwich': (*BEFORE, *AFTER),
  'parallel': BEFORE[:1],
}


def split(path: str, s: spec.Spec) -> tuple[int, int]:
  """Returns (stacked dimensions, input dimensions) of the projection at a
  path.
  """
  return spec.n_stacked(s), N_INPUTS[path.rpartition('/')[2]]


def _norm(c: Config, axis: str | None, n: int) -> spec.Spec:
  """Returns the spec of a norm that is initially a multiplication by 1."""
  return spec.Spec((n,), (axis,), 'zeros' if c.norm_offset else 'ones')


def _latent(c: Config, depth: float, stack: str) -> dict:
  """Returns the specs of the weights of `parts.latent`."""
  d, q, h, u = c.width, c.heads, c.head_dim, c.value_dim

  def down(name: str, rank: int, beside: int) -> dict:
    shape = d, rank + beside
    out = {
      name: spec.Spec(shape, ('embed', None), fan_in=d),
      f'{name}_norm': _norm(c, None, rank),
    }
    if c.bias:
      out[f'{name}_bias'] = spec.Spec((shape[1],), (None,), 'zeros')
    return out

  def up(rank: int, width: int) -> spec.Spec:
    return spec.Spec((rank, q, width), (None, 'heads', None), fan_in=rank)

  attn = down('kv_down', c.kv_rank, c.rope_dim)
  attn['kv_up'] = up(c.kv_rank, h - c.rope_dim + u)
  if c.q_rank:
    attn |= down('q_down', c.q_rank, 0) | {'q_up': up(c.q_rank, h)}
  else:
    attn['q'] = spec.Spec((d, q, h), ('embed', 'heads', None), fan_in=d)
  attn['o'] = spec.Spec(
    (q, u, d), ('heads', None, 'embed'), scale=depth * (q * u) ** -0.5
  )
  if c.o_bias:
    attn['o_bias'] = spec.Spec((d,), (None,), 'zeros')
  own = c.index_topk and stack not in WITHOUT_INDEXER
  return attn | ({INDEX: _index(c)} if own else {})


def _index(c: Config) -> dict:
  """Returns the specs of the weights of `parts.indexer`."""
  d, j, i = c.width, c.index_heads, c.index_dim
  return {
    'q': spec.Spec((c.q_rank, j, i), (None, 'heads', None), fan_in=c.q_rank),
    'k': spec.Spec((d, i), ('embed', None), fan_in=d),
    'k_norm': spec.Spec((i,), (None,), 'ones'),
    'k_norm_bias': spec.Spec((i,), (None,), 'zeros'),
    'head_weights': spec.Spec((d, j), ('embed', 'heads'), fan_in=d),
  }


def _delta(c: Config, depth: float) -> dict:
  """Returns the specs of the weights of `parts.delta`."""
  d, k, g = c.width, c.delta_heads, c.delta_groups
  h, u = c.delta_key_dim, c.delta_value_dim
  axes, out = ('embed', 'heads', None), k * g * u
  if not h:
    return _convolution(c, depth)
  parts = {'qkvz': 2 * h + 2 * g * u, 'ba': 2 * g}
  if c.delta_split:
    parts = {'q': h, 'k': h, 'v': g * u, 'z': g * u, 'share': g, 'step': g}
  own, n_norm = {}, u
  if c.delta_rule == MAMBA:
    parts = {'q': h, 'k': h, 'v': g * u, 'z': g * u, 'step': g}
    # Most models have one head of keys, which no axis divides.
    axes, n_norm = ('embed', None, None), out
    own = {
      'conv_bias': spec.Spec((2 * k * h + out,), (None,), 'zeros'),
      'skip': spec.Spec((k * g,), (None,), 'ones'),
    }
  if c.delta_norm:
    own['out_norm'] = spec.Spec((n_norm,), (None,), 'ones')
  return own | {
    **{name: spec.Spec((d, k, n), axes, fan_in=d) for name, n in parts.items()},
    'conv': spec.Spec(
      (2 * k * h + out, c.delta_taps), (None, None), fan_in=c.delta_taps
    ),
    'log_decay': spec.Spec((k * g,), (None,), 'zeros'),
    'step_bias': spec.Spec((k * g,), (None,), 'ones'),
    'o': spec.Spec(
      (k * g, u, d), ('heads', None, 'embed'), scale=depth * out**-0.5
    ),
  }


def _convolution(c: Config, depth: float) -> dict:
  """Returns the specs of the weights of `parts.delta` without keys."""
  d, k, u = c.width, c.delta_heads, c.delta_value_dim
  part = spec.Spec((d, k, u), ('embed', 'heads', None), fan_in=d)
  shape = k * u, c.delta_taps
  return {
    **dict.fromkeys(('k', 'z', 'v'), part),
    'conv': spec.Spec(shape, (None, None), fan_in=c.delta_taps),
    'o': spec.Spec(
      (k, u, d), ('heads', None, 'embed'), scale=depth * (k * u) ** -0.5
    ),
  }


def _attention(c: Config, depth: float, stack: str) -> dict:
  (k, h), d, q = c.heads_of(stack), c.width, c.heads
  of_q = 2 * h if c.out_gate else h  # a head's queries, then its gates
  attn = {
    'q': spec.Spec((d, q, of_q), ('embed', 'heads', None), fan_in=d),
    'k': spec.Spec((d, k, h), ('embed', 'kv_heads', None), fan_in=d),
    'v': spec.Spec((d, k, h), ('embed', 'kv_heads', None), fan_in=d),
    'o': spec.Spec(
      (q, h, d), ('heads', None, 'embed'), scale=depth * (q * h) ** -0.5
    ),
  }
  if c.bias:
    for name, heads, axis, n in (
      ('q', q, 'heads', of_q),
      ('k', k, 'kv_heads', h),
      ('v', k, 'kv_heads', h),
    ):
      attn[name + '_bias'] = spec.Spec((heads, n), (axis, None), 'zeros')
  if c.o_bias:
    attn['o_bias'] = spec.Spec((d,), (None,), 'zeros')
  if c.sinks:
    attn['sinks'] = spec.Spec((q,), ('heads',), 'zeros')
  if c.qk_norm:
    attn |= _qk_norms(c, (q, k), h)
  absent = ('k', 'v') if stack in READINGS else ()
  if stack in WIDES and c.keys_as_values:
    absent = *absent, 'v'
  return {k: s for k, s in attn.items() if k.partition('_')[0] not in absent}


def _qk_norms(c: Config, heads: tuple[int, int], h: int) -> dict:
  """Returns the specs of the norms of queries and keys."""
  out = {}
  for n, axis in zip(heads, ('heads', 'kv_heads')):
    over = c.qk_norm_over == 'projection'
    norm = _norm(c, None, n * h if over else h)
    if c.qk_norm_over == 'own head':
      norm = spec.Spec((n, h), (axis, None), norm.init)
    out['q_norm' if axis == 'heads' else 'k_norm'] = norm
  return out


def _mlp(c: Config, depth: float, f: int, experts: int = 0) -> dict:
  d = c.width
  # Expert weights are split by expert, so not also by width.
  lead, axes = ((experts,), ('expert',)) if experts else ((), ())
  embed = None if experts else 'embed'
  mlp = {
    'gate': spec.Spec((*lead, d, f), (*axes, embed, 'mlp'), fan_in=d),
    'up': spec.Spec((*lead, d, f), (*axes, embed, 'mlp'), fan_in=d),
    'down': spec.Spec(
      (*lead, f, d), (*axes, 'mlp', embed), scale=depth * f**-0.5
    ),
  }
  if c.expert_bias if experts else c.mlp_bias:
    for name, n, axis in (
      ('gate', f, 'mlp'),
      ('up', f, 'mlp'),
      ('down', d, None),
    ):
      mlp[name + '_bias'] = spec.Spec((*lead, n), (*axes, axis), 'zeros')
  if not c.gated:
    mlp = {k: x for k, x in mlp.items() if not k.startswith('gate')}
    for name in LEARNED.get(c.activation, ()):
      mlp[name] = spec.Spec((1,), (None,), 'zeros')
  return mlp | (_router(c) if experts else {})


def _router(c: Config) -> dict:
  router = spec.Spec((c.width, c.experts), ('embed', None), fan_in=c.width)
  out = {'router': router}
  bias = spec.Spec((c.experts,), (None,), 'zeros')
  if c.expert_bias:
    out['router_bias'] = bias
  if c.choice_bias:
    out['choice_bias'] = bias
  if c.expert_norms:
    out['router_scale'] = spec.Spec((c.width,), (None,), 'ones')
    out['expert_scale'] = spec.Spec((c.experts,), (None,), 'ones')
  return out


def _layer(c: Config, depth: float, stack: str) -> dict:
  """Returns the specs of one layer of a stack."""
  layer = {}
  if stack in DELTAS:
    layer['attn'] = _delta(c, depth)
  elif stack != ALONE:
    latent = _latent(c, depth, stack) if c.kv_rank else None
    layer['attn'] = latent or _attention(c, depth, stack)
  if c.delta_beside:
    layer['state'] = _delta(c, depth)
  if stack == ALONE or not c.mlp_layers:
    layer |= _mlps(c, depth, stack)
  for name in NORMS[c.norm_place]:
    if name.partition('_')[0] in layer:
      layer[name] = _norm(c, None, c.width)
  if c.layer_factor:
    layer['factor'] = spec.Spec((1,), (None,), 'ones')
  norm = _norm(c, None, c.width)
  if c.low_rank:
    own = _narrow(c, depth, 'down', c.low_rank)
    layer |= {'low_rank': own, 'low_rank_norm': norm}
  if c.layer_inputs:
    own = _narrow(c, depth, 'gate', c.layer_inputs)
    layer |= {'inputs': own, 'inputs_post_norm': norm}
  return layer | ({'streams': _streams(c)} if c.streams else {})


def _narrow(c: Config, depth: float, name: str, n: int) -> dict:
  """Returns the specs of the named projection to n features and of the one
  back.
  """
  d = c.width
  return {
    name: spec.Spec((d, n), ('embed', None), fan_in=d),
    'up': spec.Spec((n, d), (None, 'embed'), scale=depth * n**-0.5),
  }


def _streams(c: Config) -> dict:
  """Returns the specs of the streams of a layer. Initially every stream is
  predicted as it is, and changes as the first one.
  """
  d, n = c.width, c.streams
  return {
    'router': spec.Spec((d, n), ('embed', None), fan_in=d),
    'router_norm': _norm(c, None, d),
    'predict': spec.Spec((n, n * n), (None, None), 'zeros'),
    'correct': spec.Spec((n, n), (None, None), 'zeros'),
    'active_scale': spec.Spec((d,), (None,), 'ones'),
  }


def _mlps(c: Config, depth: float, stack: str) -> dict:
  """Returns the specs of the mlp or experts of one layer of a stack."""
  if stack in ALL_DENSE:
    return {'mlp': _mlp(c, depth, c.dense_mlp)}
  mlp, beside = c.mlp, c.shared_mlp
  if stack in READINGS and c.reading_mlp:
    mlp, beside = (mlp, c.reading_mlp) if c.experts else (c.reading_mlp, 0)
  layer = {'mlp': _mlp(c, depth, mlp, c.experts)}
  if c.expert_norms:
    norms = 'expert_norm', 'expert_post_norm', 'shared_post_norm'
    layer |= {name: _norm(c, None, c.width) for name in norms}
  if beside:
    layer['shared_mlp'] = _mlp(c, depth, beside)
  if c.shared_gate:
    shape = c.width, 1
    part = spec.Spec(shape, ('embed', None), fan_in=c.width)
    layer['shared_mlp']['part'] = part
  return layer


def specs(c: Config) -> dict:
  """Builds the spec tree: shapes, logical axes and initializers."""
  d = c.width
  # Residual outputs are initialized smaller with depth (GPT-2), so that the sum
  # of 2L of them has the scale of one.
  depth = (2 * c.layers) ** -0.5
  tree = {
    # Standard deviation 1, unless the same weights also compute the logits.
    'embed': spec.Spec(
      (c.vocab, d),
      ('vocab', 'embed'),
      scale=d**-0.5 if c.tied else 1.0,
    ),
    **{
      name: spec.stack(_layer(c, depth, name), len(layers))
      for name, layers in c.stacks.items()
    },
    'final_norm': _norm(c, None, d),
  }
  if c.layer_inputs:
    n, e = c.layers, c.layer_inputs
    tree |= {
      'inputs': spec.Spec((d, n, e), ('embed', None, None), fan_in=d),
      'inputs_embed': spec.Spec(
        (c.layer_inputs_vocab or c.vocab, n * e),
        ('vocab', 'embed'),
        scale=e**-0.5,
      ),
      'inputs_norm': _norm(c, None, e),
    }
  if c.streams:
    shape, axes = (c.streams - 1, d, d), ('layers', 'embed', None)
    of_others = spec.Spec(shape, axes, fan_in=d)
    tree |= dict.fromkeys(('streams_in', 'streams_out'), of_others)
  if not c.tied:
    tree['head'] = spec.Spec((d, c.vocab), ('embed', 'vocab'), fan_in=d)
  return tree
