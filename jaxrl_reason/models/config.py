"""Shape and numerics of a model of any family, as one flat record."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_reason import names
from jaxrl_reason.models.parts import attention, exact_layers, layers
from jaxrl_reason.models.parts.rope import Rope, rotary_width

LAYERS, DENSE, DELTA = 'layers', 'dense_layers', 'delta_layers'  # stacks

# The operations of a forward pass, by `numerics`.
NUMERICS = {'fast': layers, 'exact': exact_layers}
NOPE = -1  # in Config.rope_of_layer: a layer without rotary positions
CHOICES = {
  'dtype': ('float32', 'bfloat16'),
  'cache_dtype': ('model', 'bfloat16', 'int8'),
  'remat': ('none', *layers.REMAT),
  'decode_layers': ('auto', 'scan', 'unroll'),
  'attention': ('auto', *attention.KERNELS),
  'activation': tuple(layers.ACTIVATIONS),
  'numerics': tuple(NUMERICS),
  'norm_place': ('pre', 'post', 'sandwich'),
  'qk_norm_over': ('head', 'projection', 'rotated'),
  'router': ('softmax', 'sigmoid'),
}
SIZES = 'vocab layers width mlp heads kv_heads head_dim'.split()
PREFILL = 'buckets', 'chunks'  # kinds of `prefill` besides whole


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape and numerics of a model; includes the keys of `config.model`.

  The defaults are those of a Llama; `models.families` fills the others from a
  config.json. Per-layer tuples are empty if all layers are alike.
  """

  vocab: int
  layers: int
  width: int
  mlp: int
  heads: int
  kv_heads: int
  head_dim: int
  rope_theta: float = 10_000.0  # unless `ropes` is set
  rope_scale: float = 1.0  # of a folder's table (`published.ropes.stretched`)
  norm_eps: float = 1e-6
  qk_norm: bool = False
  bias: bool = False  # on q, k, v, as in Qwen2
  tied: bool = True  # the head is the embedding, transposed
  dtype: str = 'float32'  # of computation; parameters are float32
  # fast, or exact: sampler and trainer compute the same numbers
  # (`parts.exact_layers`).
  numerics: str = 'fast'
  cache_dtype: str = 'model'  # of decoding's cache; model: as `dtype`
  # whole; buckets:N, N compiled prompt widths; chunks:N, N columns at a time.
  prefill: str = 'whole'
  remat: str = 'none'  # none | dots | attention | full (`models.remat`)
  scan: bool = True  # over layers in training; False unrolls
  # The same for decoding (`models.stretches`): auto | scan | unroll.
  decode_layers: str = 'auto'
  # Kernel for whole rows (`parts.attention`); auto: by platform.
  attention: str = 'auto'
  o_bias: bool = False  # on the attention's output
  mlp_bias: bool = False  # on gate, up and down
  activation: str = 'silu'
  # pre: norms before attention and mlp; post: after them (OLMo 2); sandwich:
  # both (Gemma).
  norm_place: str = 'pre'
  norm_offset: float = 0.0  # added to norm weights: 1 in Gemma
  # head; projection: all heads (OLMo 2); rotated: after rotation (Hunyuan).
  qk_norm_over: str = 'head'
  query_scale: float = 0.0  # of attention scores; 0: head_dim**-0.5
  attention_cap: float = 0.0  # scores become cap * tanh(scores / cap)
  # Latent attention (`parts.latent`): rank of keys and values (0: ordinary
  # attention), rank of queries (0: projected from all of x), rotated features
  # of a head (0: as the rotary table has), width of values (0: of heads).
  kv_rank: int = 0
  q_rank: int = 0
  rope_dim: int = 0
  value_dim: int = 0
  sinks: bool = False  # a learned score per head without a value (gpt-oss)
  # Attention's output is multiplied by sigmoids of extra features of q.
  out_gate: bool = False
  # Layers with the gated delta rule in place of attention (`parts.delta`):
  # their indices, heads of queries and keys, heads of values for each of those,
  # widths, and the taps of the convolution.
  delta_layers: tuple[int, ...] = ()
  delta_heads: int = 0
  delta_groups: int = 0
  delta_key_dim: int = 0
  delta_value_dim: int = 0
  delta_taps: int = 0
  delta_split: bool = False  # a projection for each input (Qwen3.5)
  logit_cap: float = 0.0  # soft cap of logits; 0: none
  embed_scale: float = 1.0  # of embeddings, rounded to the compute dtype
  residual_scale: float = 1.0  # of the outputs of attention and mlp (Granite)
  logit_divisor: float = 1.0
  ropes: tuple[Rope, ...] = ()  # rotary tables; (): one with rope_theta
  rope_interleaved: bool = False  # rotates pairs of neighbours, not of halves
  rope_of_layer: tuple[int, ...] = ()  # each layer's table, or NOPE
  # Tokens each layer attends to, itself included; 0: all.
  windows: tuple[int, ...] = ()
  experts: int = 0  # 0: one mlp for all tokens
  experts_per_token: int = 0
  expert_norm: bool = False  # the chosen experts' weights sum to 1
  expert_scale: float = 1.0  # of the chosen experts' weights, after that
  expert_bias: bool = False  # on the router and on experts' gate, up and down
  mlp_limit: float = 0.0  # of experts' gates and ups (`layers.gate`); 0: none
  router: str = 'softmax'  # over all scores, or sigmoid of each
  choice_bias: bool = False  # added to scores for the choice of experts only
  expert_groups: int = 1  # experts are chosen within the best groups
  groups_per_token: int = 1
  shared_mlp: int = 0  # width of an mlp for all tokens beside experts; 0: none
  shared_gate: bool = False  # the shared mlp is multiplied by sigmoid(x w)
  dense_layers: int = 0  # number of first layers with one mlp and no experts
  dense_mlp: int = 0  # width of their mlp

  def __post_init__(self):
    small = [name for name in SIZES if getattr(self, name) < 1]
    if small:
      raise ValueError(f'model.{small[0]} must be at least 1')
    if self.heads % self.kv_heads:
      raise ValueError(
        f'model.heads={self.heads} must be a multiple of '
        f'model.kv_heads={self.kv_heads}'
      )
    if not self.score_scale > 0:
      raise ValueError(
        f'model.query_scale={self.query_scale} must be more than 0'
      )
    for name, choices in CHOICES.items():
      value = getattr(self, name)
      if value not in choices:
        raise ValueError(names.choice(f'model.{name}', value, choices))
    attention.check(self.attention, self)
    if self.numerics == 'exact':
      exact_layers.check(self)
    names.sized_choice('model.prefill', self.prefill, PREFILL)
    self._check_layers()
    if self.mlp_bias and self.experts:
      raise ValueError('model.mlp_bias must be False if model.experts is set')
    least = min(self.experts, 1)
    if not least <= self.experts_per_token <= self.experts:
      raise ValueError(
        f'model.experts_per_token={self.experts_per_token} must be between '
        f'{least} and model.experts={self.experts}'
      )
    self._check_experts()

  def _check_experts(self):
    if not self.experts:
      for name in ('expert_bias', 'mlp_limit', 'choice_bias', 'shared_mlp'):
        if getattr(self, name):
          raise ValueError(f'model.{name} has no effect: model.experts=0')
      if self.dense_layers:
        raise ValueError(
          f'model.dense_layers={self.dense_layers} has no effect: '
          'model.experts=0'
        )
      return
    n, used = self.expert_groups, self.groups_per_token
    if n < 1 or self.experts % n or not 1 <= used <= n:
      raise ValueError(
        f'model.expert_groups={n} must divide model.experts={self.experts}, '
        f'and model.groups_per_token={used} must be between 1 and that'
      )
    if self.experts_per_token > used * (self.experts // n):
      raise ValueError(
        f'model.experts_per_token={self.experts_per_token} must be at most '
        f'{used * (self.experts // n)}, the number of experts in '
        f'model.groups_per_token={used} groups'
      )
    if n > 1 and self.experts // n < 2:
      raise ValueError(
        f'model.expert_groups={n}: every group needs two experts or more, '
        'because groups are ranked by the sum of their best two'
      )
    if not 0 <= self.dense_layers < self.layers or (
      bool(self.dense_layers) != bool(self.dense_mlp)
    ):
      raise ValueError(
        f'model.dense_layers={self.dense_layers} must be less than '
        f'model.layers={self.layers}, and needs a model.dense_mlp (now '
        f'{self.dense_mlp})'
      )

  def _check_layers(self):
    for name in ('rope_of_layer', 'windows'):
      n = len(getattr(self, name))
      if n not in (0, self.layers):
        raise ValueError(
          f'model.{name} has {n} entries, model.layers={self.layers}'
        )
    if min(self.layer_windows, default=0) < 0:
      raise ValueError(
        f'model.windows={self.windows} must be 0 (no window) or more tokens'
      )
    used = {i for i in self.layer_ropes if i != NOPE}
    if not used <= set(range(len(self.rope_tables))):
      raise ValueError(
        f'model.rope_of_layer={self.rope_of_layer} must be indices of the '
        f'{len(self.rope_tables)} tables of model.ropes, or {NOPE}'
      )
    self._check_latent()
    self._check_delta()
    widths = {rotary_width(r, self.rotary_dim) for r in self.rope_tables}
    if len(widths) > 1 or min(widths) % 2:
      # One even width, because layers select their table inside a scan.
      raise ValueError(
        f'model.ropes rotate {sorted(widths)} of model.head_dim='
        f'{self.head_dim} features: all tables must rotate the same even number'
      )
    n = min(widths) // 2
    for r in self.rope_tables:
      if r.kind == 'longrope' and (len(r.short), len(r.long)) != (n, n):
        raise ValueError(
          f'model.ropes: longrope has {len(r.short)} short_factor and '
          f'{len(r.long)} long_factor values; heads need {n} of each'
        )

  def _check_latent(self):
    if not self.kv_rank:
      for name in ('q_rank', 'rope_dim', 'value_dim'):
        if getattr(self, name):
          raise ValueError(f'model.{name} has no effect: model.kv_rank=0')
      return
    if not 0 < self.rope_dim < self.head_dim or self.value_dim < 1:
      raise ValueError(
        f'model.rope_dim={self.rope_dim} must be between 1 and '
        f'{self.head_dim - 1} (model.head_dim - 1), and model.value_dim='
        f'{self.value_dim} at least 1'
      )
    grown = [r.growth for r in self.rope_tables]
    if self.kv_heads != self.heads or any((*self.windows, *grown, self.sinks)):
      raise ValueError(
        'model.kv_rank: latent attention does not support kv_heads other than '
        'heads, windows, sinks or growing queries'
      )

  def _check_delta(self):
    sizes = {
      name: getattr(self, f'delta_{name}')
      for name in ('heads', 'groups', 'key_dim', 'value_dim', 'taps')
    }
    if not self.delta_layers:
      unused = [name for name, n in sizes.items() if n]
      unused += ['split'] if self.delta_split else []
      if unused:
        raise ValueError(
          f'model.delta_{unused[0]} has no effect: model.delta_layers is empty'
        )
      return
    wrong = next((k for k, n in sizes.items() if n < 1 + (k == 'taps')), None)
    if wrong:
      raise ValueError(
        f'model.delta_{wrong}={sizes[wrong]} must be at least '
        f'{1 + (wrong == "taps")}'
      )
    which = self.delta_layers
    if list(which) != sorted({*which} & {*range(self.layers)}):
      raise ValueError(
        f'model.delta_layers={which} must be rising indices below model.layers='
        f'{self.layers}'
      )
    if len(which) == self.layers:
      raise ValueError('model.delta_layers must leave a layer with attention')
    if self.dense_layers or self.kv_rank or self.rope_of_layer:
      raise ValueError(
        'model.delta_layers cannot be combined with dense_layers, latent '
        'attention (kv_rank) or rope_of_layer'
      )
    if any(self.layer_windows):
      raise ValueError('model.delta_layers cannot be combined with windows')

  @functools.cached_property
  def ops(self) -> Any:
    """Returns the module with the operations of `numerics`."""
    return NUMERICS[self.numerics]

  @functools.cached_property
  def activate(self) -> Callable:
    """Returns the activation of the mlp."""
    return self.ops.ACTIVATIONS[self.activation]

  @functools.cached_property
  def rotary_dim(self) -> int:
    """Returns the number of features of a head that rotary tables may
    rotate.
    """
    return self.rope_dim or self.head_dim

  @functools.cached_property
  def cached(self) -> tuple[tuple[int, int], ...]:
    """Returns (heads, width) of each array that the cache stores per token:
    keys and values, or one latent row for all heads.
    """
    if self.kv_rank:
      return ((1, self.kv_rank + self.rope_dim),)
    return ((self.kv_heads, self.head_dim),) * 2

  @functools.cached_property
  def prefill_sizes(self) -> dict[str, int]:
    """Returns {kind: size} of `prefill`: number of prompt widths (buckets), or
    columns computed at a time (chunks).
    """
    return dict([names.sized_choice('model.prefill', self.prefill, PREFILL)])

  @functools.cached_property
  def rope_tables(self) -> tuple[Rope, ...]:
    return self.ropes or (Rope(theta=self.rope_theta),)

  @functools.cached_property
  def score_scale(self) -> float:
    return self.query_scale or self.head_dim**-0.5

  @functools.cached_property
  def layer_ropes(self) -> tuple[int, ...]:
    """Returns the index of the rotary table of every layer, or NOPE."""
    return self.rope_of_layer or (0,) * self.layers

  @functools.cached_property
  def layer_windows(self) -> tuple[int, ...]:
    """Returns the number of tokens that each layer's queries attend to, their
    own included; 0: all.
    """
    return self.windows or (0,) * self.layers

  @functools.cached_property
  def stacks(self) -> dict[str, tuple[int, ...]]:
    """Returns the layers of each stack, by the stack's name."""
    others = range(self.dense_layers, self.layers)
    out = {LAYERS: tuple(i for i in others if i not in self.delta_layers)}
    if self.dense_layers:
      out[DENSE] = tuple(range(self.dense_layers))
    if self.delta_layers:
      out[DELTA] = self.delta_layers
    return out

  @functools.cached_property
  def stack_of_layer(self) -> tuple[tuple[str, int], ...]:
    """Returns each layer's stack and its index there."""
    places = {
      i: (name, at)
      for name, stack in self.stacks.items()
      for at, i in enumerate(stack)
    }
    return tuple(places[i] for i in range(self.layers))

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
    """Returns (stack, slice of it) of each run of adjacent layers of one stack,
    in the order of layers.
    """
    groups = itertools.groupby(self.stack_of_layer, operator.itemgetter(0))
    runs = [(name, [i for _, i in layers]) for name, layers in groups]
    return tuple((name, slice(at[0], at[-1] + 1)) for name, at in runs)

  @functools.cached_property
  def periods(self) -> tuple[tuple[int, tuple[tuple[str, slice], ...]], ...]:
    """Returns the runs with repetitions merged: (repetitions, the runs of the
    first one), in the order of layers.
    """
    sizes = [(name, at.stop - at.start) for name, at in self.runs]
    out, i = [], 0
    while i < len(sizes):
      n, long = repeated(sizes[i:])
      out.append((n, self.runs[i : i + long]))
      i += n * long
    return tuple(out)


def repeated(items: Sequence) -> tuple[int, int]:
  """Returns (repetitions, length) of the initial period that covers most items;
  (1, 1) if no period repeats.
  """
  best = 1, 1
  for long in range(1, len(items) // 2 + 1):
    n = 1
    while items[n * long : (n + 1) * long] == items[:long]:
      n += 1
    if n > 1 and n * long > best[0] * best[1]:
      best = n, long
  return best
