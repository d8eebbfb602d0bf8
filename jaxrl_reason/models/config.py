"""Shape and numerics of a model of any family, as one flat record."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_reason import names
from jaxrl_reason.models import shape_checks
from jaxrl_reason.models.parts import layers
from jaxrl_reason.models.parts.rope import Rope
from jaxrl_reason.models.shape_checks import NUMERICS, PREFILL

# Stacks: layers with experts or dense ones, with attention or a state.
LAYERS, DENSE = 'layers', 'dense_layers'
DELTA, DENSE_DELTA = 'delta_layers', 'dense_delta_layers'
# Stacks of layers without an indexer of their own.
INDEXLESS, DENSE_INDEXLESS = 'indexless_layers', 'dense_indexless_layers'
DELTAS, WITHOUT_INDEXER = (DELTA, DENSE_DELTA), (INDEXLESS, DENSE_INDEXLESS)
ALL_DENSE = DENSE, DENSE_DELTA, DENSE_INDEXLESS
ALONE = 'mlp_layers'  # the stack of layers that are an mlp alone
# Stacks of attention with other heads, without keys of its own, and with both.
WIDE, READING, WIDE_READING = 'wide_layers', 'reading_layers', 'wide_reading'
WIDES, READINGS = (WIDE, WIDE_READING), (READING, WIDE_READING)
STACKS = (LAYERS, DENSE, *WITHOUT_INDEXER, *DELTAS, ALONE, WIDE, *READINGS)
Runs = tuple[tuple[str, slice], ...]  # (stack, slice of its layers)


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
  # The layers of training and prompts (`models.scans`) and of decoding
  # (`models.stretches`): auto | scan | unroll.
  train_layers: str = 'auto'
  decode_layers: str = 'auto'
  # Kernel for whole rows (`parts.attention`); auto: by platform.
  attention: str = 'auto'
  o_bias: bool = False  # on the attention's output
  mlp_bias: bool = False  # on gate, up and down
  activation: str = 'silu'  # of gates; xielu, relu2: of an mlp without gates
  # pre: norms before attention and mlp; post: after them (OLMo 2); sandwich:
  # both (Gemma); parallel: one norm before attention and mlp, which both read
  # (Cohere).
  norm_place: str = 'pre'
  norm_centered: bool = False  # norms subtract the mean (Cohere)
  norm_offset: float = 0.0  # added to norm weights: 1 in Gemma
  # head; own head: with weights for each head (Cohere); projection: all heads
  # (OLMo 2); rotated: after rotation (Hunyuan).
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
  # Keys that each query attends to, chosen by an indexer (`parts.indexer`; 0:
  # all keys), the indexer's heads and their width, and whether it rotates pairs
  # of neighbours.
  index_topk: int = 0
  index_heads: int = 0
  index_dim: int = 0
  index_interleaved: bool = False
  # Layers without an indexer, by index (GLM-5.2). Each attends to the keys that
  # the nearest earlier layer with an indexer chose.
  indexless_layers: tuple[int, ...] = ()
  sinks: bool = False  # a learned score per head without a value (gpt-oss)
  # Attention's output is multiplied by sigmoids of extra features of q.
  out_gate: bool = False
  # Layers with the gated delta rule in place of attention (`parts.delta`):
  # their indices, heads of queries and keys, heads of values for each of those,
  # widths, and the taps of the convolution. Keys of width 0: a short
  # convolution alone (LFM2).
  delta_layers: tuple[int, ...] = ()
  delta_heads: int = 0
  delta_groups: int = 0
  delta_key_dim: int = 0
  delta_value_dim: int = 0
  delta_taps: int = 0
  delta_split: bool = False  # a projection for each input (Qwen3.5)
  delta_rule: str = 'delta'  # or mamba2
  # Every layer has a state and attention. Both read one norm, and their outputs
  # are added (Falcon-H1).
  delta_beside: bool = False
  delta_norm: bool = True  # of the output of Mamba-2
  # Factors of the projections z, v, k, q and step of Mamba-2 and of its output.
  delta_scales: tuple[float, ...] = ()
  attention_scale: float = 1.0  # of the output of attention
  mlp_scales: tuple[float, ...] = ()  # of the mlp's gate and output
  logit_cap: float = 0.0  # soft cap of logits; 0: none
  embed_scale: float = 1.0  # of embeddings
  embed_rounded: bool = False  # the scale has the compute dtype (Gemma)
  residual_scale: float = 1.0  # of the outputs of attention and mlp (Granite)
  logit_divisor: float = 1.0
  ropes: tuple[Rope, ...] = ()  # rotary tables; (): one with rope_theta
  rope_interleaved: bool = False  # rotates pairs of neighbours, not of halves
  rope_of_layer: tuple[int, ...] = ()  # each layer's table, or NOPE
  # Tokens each layer attends to, itself included; 0: all; -n: those of its
  # chunk of n tokens (`parts.windows`).
  windows: tuple[int, ...] = ()
  experts: int = 0  # 0: one mlp for all tokens
  experts_per_token: int = 0
  expert_norm: bool = False  # the chosen experts' weights sum to 1
  expert_inputs: bool = False  # weights multiply the experts' inputs (Llama 4)
  expert_scale: float = 1.0  # of the chosen experts' weights, after that
  expert_bias: bool = False  # on the router and on experts' gate, up and down
  mlp_limit: float = 0.0  # of experts' gates and ups (`layers.gate`); 0: none
  router: str = 'softmax'  # over all scores, or sigmoid of each
  choice_bias: bool = False  # added to scores for the choice of experts only
  expert_groups: int = 1  # experts are chosen within the best groups
  groups_per_token: int = 1
  shared_mlp: int = 0  # width of an mlp for all tokens beside experts; 0: none
  shared_gate: bool = False  # the shared mlp is multiplied by sigmoid(x w)
  dense_layers: tuple[int, ...] = ()  # layers with one mlp and no experts
  dense_mlp: int = 0  # width of their mlp
  # Layers that are an mlp (or experts) alone, by index; the others then have no
  # mlp (Nemotron-H).
  mlp_layers: tuple[int, ...] = ()
  # Layers with other heads (Gemma 4), by index: their width, and the number of
  # heads of keys and values.
  wide_layers: tuple[int, ...] = ()
  wide_head_dim: int = 0
  wide_kv_heads: int = 0
  # Values of the wide layers are their keys before norm and rotation.
  keys_as_values: bool = False
  value_norm: bool = False  # values are divided by their root mean square
  # The last `reading_layers` layers have no keys and values. Each reads those
  # of the nearest earlier layer that has its own, with the same heads and
  # window.
  # `reading_mlp` is the width of their mlp; 0: that of the other layers.
  reading_layers: int = 0
  reading_mlp: int = 0
  # Width of a second embedding of tokens, another one in each layer; 0: none.
  layer_inputs: int = 0
  # Tokens with a row of its table, later tokens have the first row; 0: all.
  layer_inputs_vocab: int = 0
  layer_factor: bool = (
    False  # the output of a layer is multiplied by a constant
  )
  # Experts and the mlp beside them have norms of their own, and the router
  # reads its input before these (Gemma 4).
  expert_norms: bool = False
  streams: int = 0  # of residuals (`parts.residuals`); 0: one
  low_rank: int = 0  # rank of a second residual of attention; 0: none
  # Share of each layer's gates that is zero if they are normally distributed
  # (`layers.sparse`); 0: of this layer, all gates count.
  mlp_sparsity: tuple[float, ...] = ()

  def __post_init__(self):
    shape_checks.check(self)

  @functools.cached_property
  def ops(self) -> Any:
    """Returns the module with the operations of `numerics`."""
    return NUMERICS[self.numerics]

  @functools.cached_property
  def activate(self) -> Callable:
    """Returns the activation of the mlp."""
    return self.ops.ACTIVATIONS[self.activation]

  @functools.cached_property
  def gated(self) -> bool:
    """Returns whether the mlp multiplies by activated gates."""
    return self.activation not in layers.UNGATED

  @functools.cached_property
  def rotary_dim(self) -> int:
    """Returns the number of features of a head that rotary tables may
    rotate.
    """
    return self.rope_dim or self.head_dim

  def heads_of(self, stack: str) -> tuple[int, int]:
    """Returns the number of heads of keys and the width of heads of a stack."""
    if stack in WIDES:
      return self.wide_kv_heads, self.wide_head_dim
    return self.kv_heads, self.head_dim

  def cached(self, stack: str) -> tuple[tuple[int, int], ...]:
    """Returns (heads, width) of each array that the cache of a layer of the
    stack stores per token: keys and values, or one latent row for all heads
    and the key of an indexer if the layer has one; () if the layer has no keys
    of its own.
    """
    if stack in (*DELTAS, ALONE, *READINGS):
      return ()
    if self.kv_rank:
      row = 1, self.kv_rank + self.rope_dim
      if not self.index_topk or stack in WITHOUT_INDEXER:
        return (row,)
      return row, (1, self.index_dim)
    return (self.heads_of(stack),) * 2

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
    """Returns the window of each layer, see `parts.windows`."""
    return self.windows or (0,) * self.layers

  @functools.cached_property
  def rope_widths(self) -> tuple[int, ...]:
    """Returns, for each rotary table, the width of the heads that it
    rotates.
    """
    wide = {self.layer_ropes[i] for i in self.wide_layers}
    return tuple(
      self.wide_head_dim if i in wide else self.rotary_dim
      for i in range(len(self.rope_tables))
    )

  @functools.cached_property
  def readers(self) -> dict[tuple[str, int], tuple[str, ...]]:
    """Returns {(stack, index in it) of a layer: stacks of later layers that
    read its keys and values, or attend to the keys that its indexer chose}.
    """
    out = {}
    for reading, own in zip(READINGS, (LAYERS, WIDE)):
      if reading in self.stacks:
        out[own, len(self.stacks[own]) - 1] = (reading,)
    stacks = tuple(name for name in WITHOUT_INDEXER if name in self.stacks)
    for before, after in itertools.pairwise(self.stack_of_layer):
      if after[0] in stacks and before[0] not in stacks:
        out[before] = stacks
    return out

  def is_delta(self, i: int) -> bool:
    """Returns whether layer i has a state in place of attention."""
    return i in self.delta_layers and not self.delta_beside

  @functools.cached_property
  def stacks(self) -> dict[str, tuple[int, ...]]:
    """Returns the layers of each stack, by the stack's name."""
    out = dict.fromkeys(STACKS, ())
    for i in range(self.layers):
      out[self._stack_of(i)] += (i,)
    return {name: layers for name, layers in out.items() if layers}

  def _stack_of(self, i: int) -> str:
    if i in self.mlp_layers:
      return ALONE
    wide = i in self.wide_layers
    if i >= self.layers - self.reading_layers:
      return READINGS[wide]
    if wide:
      return WIDE
    names = DELTAS if self.is_delta(i) else (LAYERS, DENSE)
    names = WITHOUT_INDEXER if i in self.indexless_layers else names
    return names[i in self.dense_layers]

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
    if not self.experts:
      return ()
    dense = {*self.dense_layers}
    return self.mlp_layers or tuple(
      i for i in range(self.layers) if i not in dense
    )

  @functools.cached_property
  def routed_stacks(self) -> tuple[str, ...]:
    """Returns the stacks whose layers have experts."""
    names = [name for name in self.stacks if name not in ALL_DENSE]
    names = [ALONE] if self.mlp_layers else names
    return tuple(names) if self.experts else ()

  def runs_of(self, n: int) -> Runs:
    """Returns (stack, slice of it) of each run of adjacent layers of one stack,
    among the first n layers and in their order. A layer of `readers` is a run
    of its own.
    """
    first = [(*place, place in self.readers) for place in self.stack_of_layer]
    groups = itertools.groupby(first[:n], operator.itemgetter(0, 2))
    runs = [(name, [i for _, i, _ in layers]) for (name, _), layers in groups]
    return tuple((name, slice(at[0], at[-1] + 1)) for name, at in runs)

  def periods_of(self, n: int) -> tuple[tuple[int, Runs], ...]:
    """Returns the runs of the first n layers with repetitions merged:
    (repetitions, the runs of the first one), in the order of layers.
    """
    runs, readers = self.runs_of(n), self.readers
    sizes = [
      (name, at.stop - at.start, readers.get((name, at.start), ()))
      for name, at in runs
    ]
    out, i = [], 0
    while i < len(sizes):
      times, long = self.repeated(sizes[i:])
      out.append((times, runs[i : i + long]))
      i += times * long
    return tuple(out)

  @staticmethod
  def repeated(items: Sequence[tuple]) -> tuple[int, int]:
    """Returns (repetitions, length) of the initial period that covers most
    items, which begin with their stack; (1, 1) if no period repeats. A period
    has the indexer whose choice its layers use, so it begins with one, and so
    does what follows the repetitions.
    """
    best = 1, 1
    if items[0][0] in WITHOUT_INDEXER:
      return best
    for long in range(1, len(items) // 2 + 1):
      n = 1
      while items[n * long : (n + 1) * long] == items[:long]:
        n += 1
      if n * long < len(items) and items[n * long][0] in WITHOUT_INDEXER:
        n -= 1
      if n > 1 and n * long > best[0] * best[1]:
        best = n, long
    return best
