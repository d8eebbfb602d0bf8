"""Every type and every callable signature of the data flow, with shapes.

Letters: B prompts, G samples per prompt, N = B*G rows, P prompt length, C
completion length, T = P + C, V vocabulary, D width, R reward parts. Index t of
a [N,T] array is about token t: logp[:, t] = log p(token_t | tokens before t),
and logp[:, 0] = 0; the shift happens once, in `models.logprobs`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from flax import struct

Params = Any  # a pytree of arrays
Cache = Any  # a pytree of arrays that `decode` reads and writes
Metrics = dict[str, jax.Array]  # scalars by name


class HiddenFn(Protocol):
  """Computes hidden states [N,T,D] of tokens [N,T].

  valid: bool [N,T], true at real tokens; or segment ids of packed rows
  (`models.parts.attention.describe`), which `update.packing` passes.
  """

  def __call__(
    self, params: Params, tokens: jax.Array, valid: jax.Array, /
  ) -> jax.Array: ...


class RoutedHiddenFn(Protocol):
  """Computes hidden states of a mixture of experts.

  routes: the experts to use, int [N,T,L,k]; None: the router's own choice. The
  dictionary has the experts used, 'routes', and 'load_balance', f32 [].
  """

  def __call__(
    self,
    params: Params,
    tokens: jax.Array,
    valid: jax.Array,
    routes: jax.Array | None,
    /,
  ) -> tuple[jax.Array, dict[str, jax.Array]]: ...


class SharedHiddenFn(Protocol):
  """Computes hidden states [N,C,D] of completions, each prompt only once.

  layout: which rows have one prompt (`models.shared.Layout`). The second result
  is the load balance of experts, f32 [], or None.
  """

  def __call__(
    self,
    params: Params,
    tokens: jax.Array,
    valid: jax.Array,
    layout: Any,
    routes: jax.Array | None,
    /,
  ) -> tuple[jax.Array, jax.Array | None]: ...


class UnembedFn(Protocol):
  """Computes logits, f32 [...,V], of hidden states [...,D]."""

  def __call__(self, params: Params, hidden: jax.Array, /) -> jax.Array: ...


class PrefillFn(Protocol):
  """Runs prompts [B,P] once and makes a cache for B*n_samples completions.

  max_new: C, tokens of a completion at most; columns: completion tokens that
  the cache has room for until `grow` adds more. Returns the hidden state of
  each prompt's last token, [B,D], and the cache.
  """

  def __call__(
    self,
    params: Params,
    tokens: jax.Array,
    valid: jax.Array,
    n_samples: int,
    max_new: int,
    columns: int,
    /,
  ) -> tuple[jax.Array, Cache]: ...


class DecodeFn(Protocol):
  """Runs one token of each of S rows, tokens [S], and writes to the cache.

  params: from `decode_params`; t: int [] or [S], the tokens' index in their
  completions; step: int [], decode steps before this one, or the cache column
  of a cache with gaps. Returns hidden states [S,D] and the cache.
  """

  def __call__(
    self,
    params: Params,
    tokens: jax.Array,
    cache: Cache,
    t: jax.Array,
    step: jax.Array | None,
    /,
  ) -> tuple[jax.Array, Cache]: ...


class ExtendFn(Protocol):
  """Runs O given tokens of each of S rows in one pass, tokens [S,O].

  params: from `decode_params`; t: int [S,O], index in the completion, -1 at
  gaps; column: int [], the first cache column to write, or None: column t.
  Returns the hidden state of each row's last token, [S,D], the experts used or
  None, and the cache.
  """

  def __call__(
    self,
    params: Params,
    tokens: jax.Array,
    cache: Cache,
    t: jax.Array,
    column: jax.Array | None,
    /,
  ) -> tuple[jax.Array, jax.Array | None, Cache]: ...


class ResizeFn(Protocol):
  """Returns a cache with room for `columns` completion tokens."""

  def __call__(self, cache: Cache, columns: int, /) -> Cache: ...


class ForkFn(Protocol):
  """Returns a cache in which each of S rows has n children, S*n rows.

  t: int [S], or [S,n] for each child, the index of the last token that a child
  shares with its row.
  """

  def __call__(self, cache: Cache, t: jax.Array, n: int, /) -> Cache: ...


@dataclasses.dataclass(frozen=True)
class Model:
  """A policy as pure functions of its weights.

  `from_apply`, `from_linen` and `from_nnx` build one from any causal model.

  Attributes:
    specs: tree of `models.spec.Spec`, one for each weight.
    decode_params: converts weights to the form that `decode` reads.
    flops_per_token: forward FLOPs of a token that attends to so many others.
    grow, renew: add columns to a cache; replace prompts (`models.cache`).
    gapped: converts the cache of `prefill` to one whose rows may have gaps, for
      several turns. None, as for `extend` and `fork`: no turns.
    hidden_routed: None for a model without experts.
    sampled_routes: experts of prompts [B,P,L,k] and of last tokens [S,L,k].
    hidden_shared: None if the model cannot share the computation of prompts.
    hidden_after: (params, tokens, valid, layer) -> [N,T,D]; None: no layers.
    adapters_off: removes the adapters from weights; None: there are none.
  """

  specs: Any
  hidden: HiddenFn
  unembed: UnembedFn
  decode_params: Callable[[Params], Params]
  prefill: PrefillFn
  decode: DecodeFn
  grow: ResizeFn
  flops_per_token: Callable[[float], float]
  gapped: ResizeFn | None = None
  extend: ExtendFn | None = None
  fork: ForkFn | None = None
  renew: Callable[..., Cache] | None = None
  hidden_routed: RoutedHiddenFn | None = None
  hidden_shared: SharedHiddenFn | None = None
  hidden_after: Callable[..., jax.Array] | None = None
  decode_after: Callable[..., tuple] | None = None  # with states of layers
  sampled_routes: Callable[[Cache], tuple[jax.Array, jax.Array]] | None = None
  adapters_off: Callable[[Params], Params] | None = None
  sums: Any = None  # `logits.Sums` over the vocabulary; None: the default


@struct.dataclass
class Prompts:
  """B problems, encoded by the data pipeline."""

  tokens: jax.Array  # i32 [B,P], left-padded; for sampling
  valid: jax.Array  # bool [B,P], real tokens (from lengths, never from ids)
  prompt_id: jax.Array  # i32 [B], stable name of the problem
  answer: dict[str, jax.Array]  # [B,...] encoded answers, for device kernels
  train_tokens: jax.Array | None = None  # i32 [B,P]; None: `tokens`
  train_valid: jax.Array | None = None  # bool [B,P]
  forced: jax.Array | None = None  # bool [B,P], hint tokens that are trained on
  demo: jax.Array | None = None  # i32 [B,C], reference solution, stop included
  demo_length: jax.Array | None = None  # i32 [B], tokens of it
  # i32 [B], tokens of it before its answer is marked; None: all but the last.
  hint_limit: jax.Array | None = None
  is_hinted: jax.Array | None = None  # bool [B], ends with tokens of a hint
  # i32 [B,Q], left-padded, the prompt of a teacher; None: that of the training
  # rows. `teacher_valid` is i8 if it has conditions (`data.informed_prompts`).
  teacher_tokens: jax.Array | None = None
  teacher_valid: jax.Array | None = None  # bool or i8 [B,Q]
  pass_rate: jax.Array | None = None  # f32 [B], of the reference (A*-PO)


def left_padded(ids: list[int], length: int) -> dict[str, np.ndarray]:
  """Makes a row of `Prompts`: tokens and valid [P], of at most P=length ids."""
  padding = length - len(ids)
  valid = np.arange(length) >= padding
  return {'tokens': np.array([*[0] * padding, *ids], np.int32), 'valid': valid}


@struct.dataclass
class Rollout:
  """N completions, rows of one prompt adjacent."""

  tokens: jax.Array  # i32 [N,C], 0 after the stop token
  # bool [N,C], sampled tokens, or those of a demonstration; rewards read these.
  sampled: jax.Array
  length: jax.Array  # i32 [N], tokens sampled, stop token included
  logp: jax.Array  # f32 [N,C], under the sampling distribution
  truncated: jax.Array  # bool [N], reached the token limit before a stop token
  temperature: jax.Array  # f32 [N]
  version: jax.Array  # i32 [N,C], updates of the weights that sampled a token
  # i32 [N,C], the turn of a token, from 1; an observation has that of the call
  # it answers. 0: padding, the only place that is no token.
  turn: jax.Array
  # i32 [N,C], the node of a token in its prompt's tree of samples, from 1;
  # rows that share a node have the same tokens there. 0: padding.
  node: jax.Array
  policy_logp: jax.Array | None = None  # f32 [N,C], untempered, unfiltered
  entropy: jax.Array | None = None  # f32 [N,C], nats, untempered, unfiltered
  is_demo: jax.Array | None = None  # bool [N], a reference solution
  routes: jax.Array | None = None  # int8 or 16 [N,T,L,k], experts used
  views: dict[str, jax.Array] | None = None  # arrays that rewards read
  episode: 'Episode | None' = None  # rewards and events of an environment
  role: jax.Array | None = None  # int8 [N], whose adapters; None: no roles

  @property
  def valid(self) -> jax.Array:
    """Marks the tokens of rows, sampled or observed, bool [N,C]."""
    return self.turn > 0


@struct.dataclass
class Episode:
  """The environment's rewards and events of N rows, S turns at most."""

  reward: jax.Array  # f32 [N,S], of each turn; NaN if the turn does not exist
  done: jax.Array  # bool [N], ended by the environment, not by the token limit
  events: dict[str, jax.Array]  # i32 [N] by name, see `rollouts.turns.EVENTS`


@struct.dataclass
class Reward:
  """The rewards of N completions."""

  total: jax.Array  # f32 [N]
  parts: jax.Array  # f32 [N,R], in the order of the config's rewards
  valid: jax.Array  # bool [N]; false: the verifier failed, not the answer
  answer_id: jax.Array | None = None  # i32 [N], by the final answer; -1: none
  detail: jax.Array | None = None  # i32 [N,M], tokens of its message, then -1


@struct.dataclass
class Outcomes:
  """The outcomes of N completions for statistics; names as in a Batch."""

  reward: jax.Array  # f32 [N]
  reward_parts: jax.Array  # f32 [N,R]
  reward_valid: jax.Array  # bool [N]
  group: jax.Array  # i32 [N]
  truncated: jax.Array  # bool [N]
  length: jax.Array  # i32 [N], tokens sampled
  prompt_id: jax.Array | None = None  # i32 [N]
  answer_id: jax.Array | None = None  # i32 [N]
  is_demo: jax.Array | None = None  # bool [N], a reference solution
  is_hinted: jax.Array | None = None  # bool [N], began with a hint
  is_excluded: jax.Array | None = None  # bool [N], not in statistics

  @property
  def own(self) -> jax.Array:
    """Marks the verified completions, bool [...,N], that the policy sampled
    without a hint or a demonstration. Solve rates count only these.
    """
    own = self.reward_valid
    for other in (self.is_demo, self.is_hinted, self.is_excluded):
      own = own if other is None else own & ~other
    return own


@struct.dataclass
class Account:
  """Statistics of every generated completion, trained on or not."""

  seen: Outcomes  # [r,N], r rounds at most; zeros for rounds that did not run
  ran: jax.Array  # bool [r], rounds that were run
  control: dict  # memories of kinds of rounds, for TrainState.control
  metrics: Metrics

  @property
  def rounds(self) -> jax.Array:
    """Counts the rounds that were run, i32 []."""
    return self.ran.sum(dtype=np.int32)


@struct.dataclass
class Trajectories:
  """Prompts, completions and rewards of one step or round."""

  prompts: Prompts
  rollout: Rollout
  reward: Reward
  greedy: Reward | None = None  # [B], of the likeliest completions
  demo: Reward | None = None  # [B], of the reference solutions
  group: jax.Array | None = None  # i32 [B], equal for one problem; None: 0..B-1
  row: jax.Array | None = None  # i32 [N], in its step; -1: an earlier step
  account: Account | None = None  # None: these rows are all generated rows


@struct.dataclass
class Rows:
  """The inputs of a forward pass over N rows; a Batch has these fields too."""

  tokens: jax.Array  # i32 [N,T]
  valid: jax.Array  # bool [N,T], real tokens
  temperature: jax.Array | float = 1.0  # f32 [N] or []
  routes: jax.Array | None = None  # int8 or 16 [N,T,L,k], experts to replay
  role: jax.Array | None = None  # int8 [N], see Rollout


@struct.dataclass
class Batch:
  """N rows to train on. Optional fields are None if nothing reads them."""

  tokens: jax.Array  # i32 [N,T], prompt then completion
  valid: jax.Array  # bool [N,T], real tokens
  mask: jax.Array  # bool [N,T], tokens the policy sampled (stop included)
  reward: jax.Array  # f32 [N]
  reward_parts: jax.Array  # f32 [N,R]
  reward_valid: jax.Array  # bool [N]
  group: jax.Array  # i32 [N], rows with one id share a baseline
  truncated: jax.Array  # bool [N]
  temperature: jax.Array  # f32 [N]
  sampler_logp: jax.Array | None  # f32 [N,T], of the sampler; None: no sampler
  old_logp: jax.Array | None = None  # f32 [N,T]; None: on-policy
  ref_logp: jax.Array | None = None  # f32 [N,T]
  teacher_logp: jax.Array | None = None  # f32 [N,T]
  teacher_top: Any = None  # `logprobs.Top` [N,T], a stored teacher's
  teacher_tokens: jax.Array | None = None  # i32 [N,Q], see Prompts
  teacher_valid: jax.Array | None = None  # bool [N,Q]
  pass_rate: jax.Array | None = None  # f32 [N], see Prompts
  entropy: jax.Array | None = None  # f32 [N,T], nats, before the update
  values: jax.Array | None = None  # f32 [N,T], a critic's
  process_reward: jax.Array | None = None  # f32 [N,T], a reward model's
  greedy_reward: jax.Array | None = None  # f32 [N], of the greedy completion
  old_mean_logp: jax.Array | None = None  # f32 [N,T], over the vocabulary
  sum_p_squared: jax.Array | None = None  # f32 [N,T], over the vocabulary
  is_offpolicy: jax.Array | None = None  # bool [N,T]
  token_weight: jax.Array | None = None  # f32 [N,T], of the policy's loss
  step_label: jax.Array | None = None  # f32 [N,T], 1: the step is correct
  forced: jax.Array | None = None  # bool [N,T], trained hint tokens
  version: jax.Array | None = None  # i32 [N,T], of the weights that sampled
  age: jax.Array | None = None  # i32 [N,T], updates since that version
  observed: jax.Array | None = None  # bool [N,T], written by an environment
  turn: jax.Array | None = None  # i32 [N,T], 0 outside completions
  node: jax.Array | None = None  # i32 [N,T], of one group only; 0 outside
  episode: Episode | None = None  # rewards in the unit of `reward`
  routes: jax.Array | None = None  # int8 or 16 [N,T,L,k], experts to replay
  prompt_id: jax.Array | None = None  # i32 [N], of the problem (`Prompts`)
  prompt_index: jax.Array | None = None  # i32 [N], equal: the same prompt
  answer_id: jax.Array | None = None  # i32 [N], see Reward
  detail: jax.Array | None = None  # i32 [N,M], see Reward
  row: jax.Array | None = None  # i32 [N], see Trajectories
  is_hinted: jax.Array | None = None  # bool [N], began with a hint
  views: dict[str, jax.Array] | None = None  # [N,...], that parts read
  role: jax.Array | None = None  # int8 [N], see Rollout


@struct.dataclass
class TrainState:
  """The state that an update reads and writes, in a checkpoint."""

  step: jax.Array  # i32 [], updates done since the run began
  params: Params
  opt_state: Any
  ref_params: Params | None = None  # trained weights of a reference
  teacher_params: Params | None = None  # of another model than the policy
  reward_params: Params | None = None  # of a reward model that rewards read
  critic: Any = None  # critics.CriticState, only when the loss reads one
  coefs: dict | None = None  # loss coefficients that change during the run
  control: dict | None = None  # memories of parts and kinds of rounds, by name
