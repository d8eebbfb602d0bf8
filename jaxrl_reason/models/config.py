"""The shape and numerics of a model, of any family, as one flat record."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Sequence

import jax

from jaxrl_reason.models.parts import attention, layers
from jaxrl_reason.models.parts.rope import Rope, rotary_width

# Stacks of layers with equal weights.
LAYERS, DENSE, DELTA = 'layers', 'dense_layers', 'delta_layers'


def gelu_quick(x: jax.Array) -> jax.Array:
  """Computes x sigmoid(1.702 x) (https://arxiv.org/abs/1606.08415)."""
  return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS = {
  'silu': jax.nn.silu,
  'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
  'gelu_quick': gelu_quick,
}
NOPE = -1  # in Config.rope_of_layer: a layer without positions
CHOICES = {
  'dtype': ('float32', 'bfloat16'),
  'cache_dtype': ('model', 'bfloat16', 'int8'),
  'remat': ('none', *layers.REMAT),
  'decode_layers': ('auto', 'scan', 'unroll'),
  'attention': ('auto', *attention.KERNELS),
  'activation': tuple(ACTIVATIONS),
  'norm_place': ('pre', 'post', 'sandwich'),
  'qk_norm_over': ('head', 'projection'),
  'router': ('softmax', 'sigmoid'),
}
PREFILL = 'buckets', 'chunks'  # kinds of `prefill` besides whole


def sized_choice(key: str, value: str, kinds: Sequence[str]) -> tuple[str, int]:
  """Reads 'whole', or one of the kinds and its size, 'kind:size'.

  Args:
    key: of the configuration, for the message.

  Returns:
    (kind, size); ('whole', 1).

  Raises:
    ValueError: names the key and what it may be.
  """
  kind, _, size = value.partition(':')
  if value == 'whole':
    return value, 1
  if kind not in kinds or not size.isdecimal() or not int(size):
    choices = ' or '.join(f'{kind}:N' for kind in kinds)
    raise ValueError(
      f'{key}={value!r}: choose whole, {choices}; N is at least 1'
    )
  return kind, int(size)


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape and numerics of a model; the keys of `config.model` are among them.

  The defaults are those of a Llama; `models.families` fills the rest from a
  config.json. Tuples of layers are empty where all layers are alike.
  """

  vocab: int
  layers: int
  width: int
  mlp: int
  heads: int
  kv_heads: int
  head_dim: int
  rope_theta: float = 10_000.0  # unless `ropes` says more
  rope_scale: float = 1.0  # of a folder's table (`published.ropes.stretched`)
  norm_eps: float = 1e-6
  qk_norm: bool = False
  bias: bool = False  # on q, k, v, as in Qwen2
  tied: bool = True  # the head is the embedding, transposed
  dtype: str = 'float32'  # of computation; parameters are float32
  cache_dtype: str = 'model'  # of decoding: that of computation, or less
  # whole | buckets:N widths of prompts in a program | chunks:N columns a time
  prefill: str = 'whole'
  remat: str = 'none'  # none | dots | full
  scan: bool = True  # over layers in training; False unrolls
  # The same in decoding (`models.stretches`): auto | scan | unroll.
  decode_layers: str = 'auto'
  # Kernel over whole rows (`models.attention`); auto: by platform.
  attention: str = 'auto'
  o_bias: bool = False  # on the attention's output
  mlp_bias: bool = False  # on gate, up and down
  activation: str = 'silu'
  # pre: norms before attention and mlp; post: after them (OLMo 2); sandwich:
  # both (Gemma).
  norm_place: str = 'pre'
  norm_offset: float = 0.0  # added to norm weights: 1 in Gemma
  qk_norm_over: str = 'head'  # or the whole projection (OLMo 2)
  query_scale: float = 0.0  # of attention scores; 0: head_dim**-0.5
  attention_cap: float = 0.0  # scores become cap * tanh(scores / cap)
  # Latent attention (`parts.latent`): ranks of what keys and values, and
  # queries, are projected from (0: not latent, from all of x), features of a
  # head that turn (0: all, or by the table), width of values (0: of heads).
  kv_rank: int = 0
  q_rank: int = 0
  rope_dim: int = 0
  value_dim: int = 0
  sinks: bool = False  # a learned score per head that is nobody's (gpt-oss)
  # Attention's output is multiplied by sigmoids of more features of q.
  out_gate: bool = False
  # Layers of the gated delta rule in place of attention (`parts.delta`): which,
  # heads of queries and keys, of values for each, widths, the convolution's
  # taps.
  delta_layers: tuple[int, ...] = ()
  delta_heads: int = 0
  delta_groups: int = 0
  delta_key_dim: int = 0
  delta_value_dim: int = 0
  delta_taps: int = 0
  logit_cap: float = 0.0  # the same for logits
  embed_scale: float = 1.0  # of embeddings, rounded to the compute dtype
  residual_scale: float = 1.0  # of what attention and mlp add (Granite)
  logit_divisor: float = 1.0
  ropes: tuple[Rope, ...] = ()  # tables; (): one of rope_theta
  rope_interleaved: bool = False  # pairs of neighbours turn, not of halves
  rope_of_layer: tuple[int, ...] = ()  # each layer's table, or NOPE
  windows: tuple[
    int, ...
  ] = ()  # tokens each layer sees, itself included; 0: all
  experts: int = 0  # 0: one mlp for all tokens
  experts_per_token: int = 0
  expert_norm: bool = False  # the chosen experts' weights sum to 1
  expert_scale: float = 1.0  # of the chosen experts' weights, after that
  expert_bias: bool = False  # on the router and on experts' gate, up and down
  mlp_limit: float = 0.0  # of experts' gates and ups (`layers.gate`); 0: none
  router: str = 'softmax'  # of all scores, or sigmoid of each
  choice_bias: bool = False  # added to the scores that experts are chosen by
  expert_groups: int = 1  # experts are chosen within the best of so many groups
  groups_per_token: int = 1
  shared_mlp: int = 0  # width of an mlp of all tokens beside experts; 0: none
  shared_gate: bool = False  # which is multiplied by sigmoid(x w)
  dense_layers: int = 0  # the first layers, which have one mlp and no experts
  dense_mlp: int = 0  # its width

  def __post_init__(self):
    if self.heads % self.kv_heads:
      raise ValueError(
        f'model.heads={self.heads} is no multiple of '
        f'model.kv_heads={self.kv_heads}'
      )
    if not self.score_scale > 0:
      raise ValueError(f'model.query_scale={self.query_scale}: more than 0')
    for name, choices in CHOICES.items():
      value = getattr(self, name)
      if value not in choices:
        raise ValueError(
          f'model.{name}={value!r}: choose one of {", ".join(choices)}'
        )
    attention.check(self.attention, self)
    sized_choice('model.prefill', self.prefill, PREFILL)
    self._check_layers()
    if self.mlp_bias and self.experts:
      raise ValueError('model.mlp_bias: experts have no biases')
    least = min(self.experts, 1)
    if not least <= self.experts_per_token <= self.experts:
      raise ValueError(
        f'model.experts_per_token={self.experts_per_token} of '
        f'model.experts={self.experts}'
      )
    self._check_experts()

  def _check_experts(self):
    if not self.experts:
      for name in ('expert_bias', 'mlp_limit', 'choice_bias', 'shared_mlp'):
        if getattr(self, name):
          raise ValueError(f'model.{name} is of experts: model.experts=0')
      if self.dense_layers:
        raise ValueError('model.dense_layers are beside experts, of which: 0')
      return
    n, used = self.expert_groups, self.groups_per_token
    if n < 1 or self.experts % n or not 1 <= used <= n:
      raise ValueError(
        f'model.groups_per_token={used} of model.expert_groups={n}, which '
        f'divide model.experts={self.experts}'
      )
    if self.experts_per_token > used * (self.experts // n):
      raise ValueError(
        f'model.experts_per_token={self.experts_per_token}: there are '
        f'{used * (self.experts // n)} in model.groups_per_token={used}'
      )
    if n > 1 and self.experts // n < 2:
      raise ValueError(
        f'model.expert_groups={n}: groups go by the sum of their best two'
      )
    if not 0 <= self.dense_layers < self.layers or (
      bool(self.dense_layers) != bool(self.dense_mlp)
    ):
      raise ValueError(
        f'model.dense_layers={self.dense_layers} of model.layers='
        f'{self.layers}, model.dense_mlp={self.dense_mlp} wide'
      )

  def _check_layers(self):
    for name in ('rope_of_layer', 'windows'):
      n = len(getattr(self, name))
      if n not in (0, self.layers):
        raise ValueError(f'model.{name} has {n} of {self.layers} layers')
    if min(self.layer_windows, default=0) < 0:
      raise ValueError(f'model.windows={self.windows}: 0 (none) or more tokens')
    used = {i for i in self.layer_ropes if i != NOPE}
    if not used <= set(range(len(self.rope_tables))):
      raise ValueError(f'model.rope_of_layer={self.rope_of_layer} of tables')
    self._check_latent()
    self._check_delta()
    widths = {rotary_width(r, self.rotary_dim) for r in self.rope_tables}
    if len(widths) > 1 or min(widths) % 2:
      # One even width, since layers select their table inside a scan.
      raise ValueError(
        f'model.ropes rotate {sorted(widths)} of model.head_dim='
        f'{self.head_dim} features: one number of them, in pairs'
      )
    n = min(widths) // 2
    for r in self.rope_tables:
      if r.kind == 'longrope' and (len(r.short), len(r.long)) != (n, n):
        raise ValueError(
          f'model.ropes: longrope divides {len(r.short)} and {len(r.long)} '
          f'frequencies (short_factor, long_factor), and heads rotate {n}'
        )

  def _check_latent(self):
    if not self.kv_rank:
      for name in ('q_rank', 'rope_dim', 'value_dim'):
        if getattr(self, name):
          raise ValueError(f'model.{name} is of latent attention: kv_rank=0')
      return
    if not 0 < self.rope_dim < self.head_dim or self.value_dim < 1:
      raise ValueError(
        f'model.rope_dim={self.rope_dim} of model.head_dim={self.head_dim}, '
        f'model.value_dim={self.value_dim} wide'
      )
    if self.kv_heads != self.heads or any(self.layer_windows) or self.sinks:
      raise ValueError(
        'model.kv_rank: latent attention with fewer heads of keys, windows or '
        'sinks is not there'
      )

  def _check_delta(self):
    sizes = {
      name: getattr(self, f'delta_{name}')
      for name in ('heads', 'groups', 'key_dim', 'value_dim', 'taps')
    }
    if not self.delta_layers:
      given = [name for name, n in sizes.items() if n]
      if given:
        raise ValueError(
          f'model.delta_{given[0]} is of model.delta_layers, of which: 0'
        )
      return
    wrong = next((k for k, n in sizes.items() if n < 1 + (k == 'taps')), None)
    if wrong:
      raise ValueError(f'model.delta_{wrong}={sizes[wrong]}: too few')
    which = self.delta_layers
    if list(which) != sorted({*which} & {*range(self.layers)}):
      raise ValueError(
        f'model.delta_layers={which}: rising numbers of model.layers='
        f'{self.layers}'
      )
    if len(which) == self.layers:
      raise ValueError('model.delta_layers: no layer with attention is left')
    if self.dense_layers or self.kv_rank or self.rope_of_layer:
      raise ValueError(
        'model.delta_layers: beside layers without experts, latent attention '
        'or several rotary tables the delta rule is not there'
      )
    if any(self.layer_windows):
      raise ValueError('model.delta_layers: windows beside them are not there')

  @functools.cached_property
  def rotary_dim(self) -> int:
    """Counts the features of a head that rotary tables may turn."""
    return self.rope_dim or self.head_dim

  @functools.cached_property
  def cached(self) -> tuple[tuple[int, int], ...]:
    """Returns (heads, width) of what a cache keeps of a token: keys and values,
    or one row for all heads.
    """
    if self.kv_rank:
      return ((1, self.kv_rank + self.rope_dim),)
    return ((self.kv_heads, self.head_dim),) * 2

  @functools.cached_property
  def prefill_sizes(self) -> dict[str, int]:
    """Returns widths of prompts in a program (buckets) or columns computed at a
    time (chunks), whichever is chosen.
    """
    return dict([sized_choice('model.prefill', self.prefill, PREFILL)])

  @functools.cached_property
  def rope_tables(self) -> tuple[Rope, ...]:
    return self.ropes or (Rope(theta=self.rope_theta),)

  @functools.cached_property
  def score_scale(self) -> float:
    return self.query_scale or self.head_dim**-0.5

  @functools.cached_property
  def layer_ropes(self) -> tuple[int, ...]:
    """Returns the rotary table of every layer, or NOPE."""
    return self.rope_of_layer or (0,) * self.layers

  @functools.cached_property
  def layer_windows(self) -> tuple[int, ...]:
    """Counts the tokens that queries of every layer see, their own included; 0:
    all.
    """
    return self.windows or (0,) * self.layers

  @functools.cached_property
  def stacks(self) -> dict[str, tuple[int, ...]]:
    """Returns the layers whose weights lie stacked, by the stack's name."""
    others = range(self.dense_layers, self.layers)
    out = {LAYERS: tuple(i for i in others if i not in self.delta_layers)}
    if self.dense_layers:
      out[DENSE] = tuple(range(self.dense_layers))
    if self.delta_layers:
      out[DELTA] = self.delta_layers
    return out

  @functools.cached_property
  def stack_of_layer(self) -> tuple[tuple[str, int], ...]:
    """Returns every layer's stack, and its place there."""
    found = {
      i: (name, at)
      for name, stack in self.stacks.items()
      for at, i in enumerate(stack)
    }
    return tuple(found[i] for i in range(self.layers))

  @functools.cached_property
  def routed_layers(self) -> tuple[int, ...]:
    """Returns the layers that have experts."""
    return tuple(range(self.dense_layers, self.layers)) if self.experts else ()

  @functools.cached_property
  def routed_stacks(self) -> tuple[str, ...]:
    """Returns the stacks whose layers have experts."""
    names = [name for name in self.stacks if name != DENSE]
    return tuple(names) if self.experts else ()

  @functools.cached_property
  def runs(self) -> tuple[tuple[str, slice], ...]:
    """Returns the stacks in the order of layers, and which of each follow on
    one another.
    """
    groups = itertools.groupby(self.stack_of_layer, operator.itemgetter(0))
    runs = [(name, [i for _, i in layers]) for name, layers in groups]
    return tuple((name, slice(at[0], at[-1] + 1)) for name, at in runs)

  @functools.cached_property
  def periods(self) -> tuple[tuple[int, tuple[tuple[str, slice], ...]], ...]:
    """Returns the runs with those that repeat told once: (how often, the runs
    of the first time), in the order of layers.
    """
    sizes = [(name, at.stop - at.start) for name, at in self.runs]
    out, i = [], 0
    while i < len(sizes):
      n, long = repeated(sizes[i:])
      out.append((n, self.runs[i : i + long]))
      i += n * long
    return tuple(out)


def repeated(items: Sequence) -> tuple[int, int]:
  """Returns (how often, how many) of the items at the beginning that repeat and
  cover most; (1, 1) where none do.
  """
  best = 1, 1
  for long in range(1, len(items) // 2 + 1):
    n = 1
    while items[n * long : (n + 1) * long] == items[:long]:
      n += 1
    if n > 1 and n * long > best[0] * best[1]:
      best = n, long
  return best
