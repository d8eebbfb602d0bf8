"""Every type and every callable signature of the data flow, with shapes.

Letters: B prompts, G samples per prompt, N = B*G rows, P prompt length, C
completion length, T = P + C, V vocabulary, D width, R reward parts. Index t of
a [N,T] array is about token t: logp[:, t] = log p(token_t | tokens before t),
and logp[:, 0] = 0; the shift happens once, in `models.logprobs`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import struct

Params = Any  # a pytree of arrays
Metrics = dict[str, jax.Array]  # scalars by name


@dataclasses.dataclass(frozen=True)
class Model:
  """A policy as functions of its weights: what samplers and steps call.

  Attributes:
    specs: tree of `models.spec.Spec`.
    hidden: (params, tokens [N,T], valid bool [N,T]) -> [N,T,D]; valid may be
      segment ids of packed rows (`models.attention.describe`), which
      `packing` asks for.
    unembed: (params, hidden [...,D]) -> logits f32 [...,V].
    decode_params: params -> weights as `decode` reads them.
    prefill: (params, tokens [B,P], valid [B,P], n_samples, max_new, columns of
      the cache at first) -> (hidden of the last token [B,D], cache).
    decode: (decode_params, tokens [S], cache, t [] or [S], step) -> (hidden
      [S,D], cache); see `transformer.decode`.
    grow: (cache, columns) -> cache.
    gapped: (cache of no completion yet, columns) -> cache whose rows may hold
      gaps; None, with extend and fork: no turns.
    extend: (decode_params, tokens [S,O], cache, t [S,O], column) -> (hidden of
      each row's last token [S,D], experts used, cache); see `decoding.extend`.
    fork: (cache, t [S], n) -> cache of S*n rows; see `cache.fork`.
    flops_per_token: forward FLOPs of a token after `context` others.
    hidden_routed: of a mixture of experts, (params, tokens, valid, routes
      [N,T,L,k] or None) -> (hidden, {'routes', 'load_balance'}).
    hidden_shared: (params, tokens [N,T], valid, `models.shared.Layout`, routes
      or None) -> (hidden [N,C,D], load balance or None), each prompt computed
      once; None: every row computes its own.
    sampled_routes: cache -> int (of prompts [B,P,L,k], of the tokens decoded
      last [S,L,k]), the experts used.
    adapters_off: of a model with adapters, params -> those without them, which
      the other functions take as well.
  """

  specs: Any
  hidden: Callable
  unembed: Callable
  decode_params: Callable
  prefill: Callable
  decode: Callable
  grow: Callable
  flops_per_token: Callable[[float], float]
  gapped: Callable | None = None
  extend: Callable | None = None
  fork: Callable | None = None
  hidden_routed: Callable | None = None
  hidden_shared: Callable | None = None
  sampled_routes: Callable | None = None
  adapters_off: Callable | None = None


@struct.dataclass
class Prompts:
  """B problems, as the data pipeline gives them."""

  tokens: jax.Array  # i32 [B,P], left-padded; what is sampled under
  valid: jax.Array  # bool [B,P], real tokens (from lengths, never from ids)
  prompt_id: jax.Array  # i32 [B], stable name of the problem
  answer: dict[str, jax.Array]  # [B,...] what device kernels compare with
  train_tokens: jax.Array | None = None  # i32 [B,P]; None: as sampled under
  train_valid: jax.Array | None = None  # bool [B,P]
  forced: jax.Array | None = None  # bool [B,P], of a hint, to be learnt too
  demo: jax.Array | None = None  # i32 [B,C], reference solution, stop included
  demo_length: jax.Array | None = None  # i32 [B], tokens of it


def left_padded(ids: list[int], length: int) -> dict[str, np.ndarray]:
  """Makes a row of `Prompts`: tokens and valid [P], of at most P=length ids."""
  padding = length - len(ids)
  valid = np.arange(length) >= padding
  return {'tokens': np.array([*[0] * padding, *ids], np.int32), 'valid': valid}


@struct.dataclass
class Rollout:
  """N completions, rows of one prompt adjacent."""

  tokens: jax.Array  # i32 [N,C], 0 after the stop token
  # bool [N,C], what counts as the policy's own words: drawn by it, or of a
  # demonstration in their place; false for padding. Rewards read these only.
  sampled: jax.Array
  length: jax.Array  # i32 [N], tokens sampled, stop token included
  logp: jax.Array  # f32 [N,C], of the distribution sampled from
  truncated: jax.Array  # bool [N], ran out of room before a stop token
  temperature: jax.Array  # f32 [N]
  version: jax.Array  # i32 [N,C], updates behind the weights that drew a token
  # i32 [N,C], the turn of a token, from 1; an observation has that of the call
  # it answers. 0: padding, the only place that is no token.
  turn: jax.Array
  # i32 [N,C], the node of a token in its prompt's tree of samples, from 1;
  # rows that share a node have the same tokens there. 0: padding.
  node: jax.Array
  policy_logp: jax.Array | None = None  # f32 [N,C], untempered, unfiltered
  entropy: jax.Array | None = None  # f32 [N,C], nats, untempered, unfiltered
  is_demo: jax.Array | None = None  # bool [N], a reference solution
  # int8 or 16 [N,T,L,k], experts each token used (`models.moe.UNKNOWN`).
  routes: jax.Array | None = None
  views: dict[str, jax.Array] | None = None  # what rewards read besides text
  episode: 'Episode | None' = None  # what an environment said

  @property
  def valid(self) -> jax.Array:
    """Marks, bool [N,C], a row's tokens, its own or an environment's."""
    return self.turn > 0


@struct.dataclass
class Episode:
  """What an environment said of N rows, S turns at most."""

  reward: jax.Array  # f32 [N,S], of each turn; NaN where there was none
  done: jax.Array  # bool [N], the environment ended it, not the room
  events: dict[str, jax.Array]  # i32 [N] by name, see `rollouts.turns.EVENTS`


@struct.dataclass
class Reward:
  """What verification says of N completions."""

  total: jax.Array  # f32 [N]
  parts: jax.Array  # f32 [N,R], in the order of the config's rewards
  valid: jax.Array  # bool [N]; false: the verifier failed, not the answer
  # i32 [N], equal for equal final answers; -1: there is none.
  answer_id: jax.Array | None = None


@struct.dataclass
class Outcomes:
  """What came of N completions, as statistics read it; names as of a Batch."""

  reward: jax.Array  # f32 [N]
  reward_parts: jax.Array  # f32 [N,R]
  reward_valid: jax.Array  # bool [N]
  group: jax.Array  # i32 [N]
  truncated: jax.Array  # bool [N]
  length: jax.Array  # i32 [N], tokens sampled
  prompt_id: jax.Array | None = None  # i32 [N]
  answer_id: jax.Array | None = None  # i32 [N]
  is_demo: jax.Array | None = None  # bool [N], a reference solution


@struct.dataclass
class Account:
  """What a source tells where not all it generated, or more, is learnt from."""

  seen: Outcomes  # [rounds at most,N]: all that was generated in this step
  rounds: jax.Array  # i32 [], rounds of generation that ran, the first ones
  control: dict  # what the source remembers, for TrainState.control
  metrics: Metrics


@struct.dataclass
class Trajectories:
  """What a source of rollouts gives: questions, answers and their verdicts."""

  prompts: Prompts
  rollout: Rollout
  reward: Reward
  greedy: Reward | None = None  # [B], of the likeliest completions
  group: jax.Array | None = None  # i32 [B], equal for one problem; None: 0..B-1
  account: Account | None = None  # None: these rows are all there was


@struct.dataclass
class Rows:
  """What a forward pass reads of N rows; a Batch has these fields too."""

  tokens: jax.Array  # i32 [N,T]
  valid: jax.Array  # bool [N,T], real tokens
  temperature: jax.Array | float = 1.0  # f32 [N] or []
  routes: jax.Array | None = None  # int8 or 16 [N,T,L,k], experts to replay


@struct.dataclass
class Batch:
  """N rows to train on. Optional fields are None when nothing needs them."""

  tokens: jax.Array  # i32 [N,T], prompt then completion
  valid: jax.Array  # bool [N,T], real tokens
  mask: jax.Array  # bool [N,T], tokens the policy sampled (stop included)
  reward: jax.Array  # f32 [N]
  reward_parts: jax.Array  # f32 [N,R]
  reward_valid: jax.Array  # bool [N]
  group: jax.Array  # i32 [N], rows with one id share a baseline
  truncated: jax.Array  # bool [N]
  temperature: jax.Array  # f32 [N]
  sampler_logp: jax.Array  # f32 [N,T], of the distribution sampled from
  old_logp: jax.Array | None = None  # f32 [N,T]; None: on-policy
  ref_logp: jax.Array | None = None  # f32 [N,T]
  entropy: jax.Array | None = None  # f32 [N,T], nats, before the update
  values: jax.Array | None = None  # f32 [N,T], a critic's
  process_reward: jax.Array | None = None  # f32 [N,T], a reward model's
  greedy_reward: jax.Array | None = None  # f32 [N], of the greedy completion
  old_mean_logp: jax.Array | None = None  # f32 [N,T], over the vocabulary
  is_offpolicy: jax.Array | None = None  # bool [N,T]
  forced: jax.Array | None = None  # bool [N,T], of a hint, learnt off-policy
  version: jax.Array | None = None  # i32 [N,T], of the weights that sampled
  turn: jax.Array | None = None  # i32 [N,T], 0 outside completions
  node: jax.Array | None = None  # i32 [N,T], of one group only; 0 outside
  episode: Episode | None = None  # rewards in the unit of `reward`
  routes: jax.Array | None = None  # int8 or 16 [N,T,L,k], experts to replay
  prompt_id: jax.Array | None = None  # i32 [N], of the problem (`Prompts`)
  prompt_index: jax.Array | None = None  # i32 [N], equal: one prompt's tokens
  answer_id: jax.Array | None = None  # i32 [N], see Reward


@struct.dataclass
class TrainState:
  """What an update reads and writes, and what a checkpoint holds."""

  step: jax.Array  # i32 [], updates done since the run began
  params: Params
  opt_state: Any
  # What is trained, as it was; only when the loss reads a reference that is
  # not the model with its adapters off.
  ref_params: Params | None = None
  critic: Any = None  # critics.CriticState, only when the loss reads one
  coefs: dict | None = None  # loss coefficients that follow the run
  # What sources and rewards remember of the stage, by name; None: nothing.
  control: dict | None = None


# A device reward: (completion bytes u8 [N,W], lengths i32 [N], answers) ->
# f32 [N], inside jit.
DeviceReward = Callable[[jax.Array, jax.Array, dict[str, jax.Array]], jax.Array]
# A host reward: (completion text, example) -> float or rewards.Verdict.
HostReward = Callable[[str, dict], Any]
