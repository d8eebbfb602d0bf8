"""Samples completions step by step, each step chosen by a tree search.

A step of a completion is a number of tokens, or the tokens up to a token that
ends a step. A node of the tree is a beginning of a completion, an action is one
of K candidates for its next step, which the policy samples, and the value of a
node is the judge's probability that the completion will be correct, or the
score of a verifier. The search is Gumbel MuZero (Danihelka et al. 2022, "Policy
improvement by planning with Gumbel",
https://openreview.net/forum?id=bERaNdoegnO) from the library mctx. Its
candidates are samples of the policy, so their prior is uniform, as in Sampled
MuZero (https://arxiv.org/abs/2104.06303), and the chosen step is the one with
the highest value, without more noise.

simulation: select a node and a candidate -> sample the candidate -> judge it
step: S simulations from the beginning so far -> append the chosen candidate

A candidate is sampled if a simulation selects it. The prompt and the beginning
are prefilled again for each simulation, so a node holds its tokens and no
cache: S + 1 nodes of 16 C + 17 bytes for each completion.

The noise of a token depends only on (key, row id, the candidates chosen before
it, index in the completion), and the first candidate continues with the noise
of its parent. So if all chosen candidates are first ones, the completion is the
one that the sampler samples for this row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model, Params, Rollout, Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.names import install
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts.draw import NONE, Draw

GENERATED = 'generated'  # of a Rollout's views
# Input of the judge of a candidate. BEGINNING: the beginning that ends with the
# candidate. CONTINUED: this beginning and a sampled rest of the completion.
# ENDED: completions that have ended; the value of others is 0.
BEGINNING, CONTINUED, ENDED = 'beginning', 'continued', 'ended'
# Names of the leaves whose judge is a verifier, in flags and keys.
LEAVES = {'verifier': CONTINUED, 'verifier_at_end': ENDED}


@dataclasses.dataclass(frozen=True)
class Search:
  """The settings of a search.

  Attributes:
    simulations: S, candidates that are sampled and judged for each step.
    candidates: K, candidates for the next step of a node; at most S.
    tokens: largest number of tokens of a step.
    ends: tokens that also end a step.
    leaf: input of the judge: BEGINNING, CONTINUED or ENDED. The last two are
      for judges that score only whole completions.
  """

  simulations: int
  candidates: int
  tokens: int
  ends: tuple[int, ...] = ()
  leaf: str = BEGINNING


@struct.dataclass
class Node:
  """The beginnings of N completions.

  Attributes:
    values: arrays [N,C] of the tokens by name, 0 after the beginning.
    length: i32 [N], tokens of the beginning.
    over: bool [N], the completion has ended.
    key: u32 [N,...], data of the key of the tokens that follow.
    generated: i32 [N], tokens sampled for the node.
  """

  values: dict[str, jax.Array]
  length: jax.Array
  over: jax.Array
  key: jax.Array
  generated: jax.Array


def library() -> Any:
  """Imports mctx.

  Raises:
    ImportError: it is not installed.
  """
  try:
    import mctx
  except ImportError as e:
    raise ImportError(f'a search needs mctx: {install("mctx")}') from e
  return mctx


@dataclasses.dataclass(frozen=True)
class _Searcher:
  """Functions on nodes. `draw` has all N rows; their keys are in the nodes."""

  how: Search
  draw: Draw
  params: Params
  prompts: jax.Array  # int [N,P]
  valid: jax.Array  # bool [N,P]
  judge: Callable[[Rows], jax.Array]
  columns: int  # C

  def move(self, node: Node) -> Node:
    """Appends the chosen candidate to each beginning."""
    mctx, how, rows = library(), self.how, jnp.arange(len(node.length))
    zero = jnp.zeros(len(rows))
    found = mctx.gumbel_muzero_policy(
      (),
      jax.random.key(0),  # for the noise, which gumbel_scale=0 removes
      # No choice depends on the value of the root: the search visits all its
      # candidates once before it continues from one of them.
      mctx.RootFnOutput(prior_logits=self._prior(), value=zero, embedding=node),
      self._simulate,
      how.simulations,
      max_num_considered_actions=how.candidates,
      gumbel_scale=0.0,
    )
    tree = found.search_tree
    child = tree.children_index[rows, tree.ROOT_INDEX, found.action]
    chosen = jax.tree.map(lambda x: x[rows, child], tree.embeddings)
    made = tree.embeddings.generated[:, 1:].sum(axis=1)
    return jax.tree.map(
      sharding.rows, chosen.replace(generated=node.generated + made)
    )

  def _prior(self) -> jax.Array:
    return jnp.zeros((len(self.prompts), self.how.candidates))

  def _simulate(self, params, key, action: jax.Array, node: Node):
    """Samples and judges a candidate (`mctx.RecurrentFn`); action: int [N]."""
    del params, key
    new, judged = self._extend(node, action)
    zero, columns = jnp.zeros(len(action)), jnp.arange(self.columns)
    value = self.judge(
      Rows(
        jnp.concatenate([self.prompts, judged.values['tokens']], axis=1),
        jnp.concatenate([self.valid, columns < judged.length[:, None]], axis=1),
      )
    )
    if self.how.leaf == ENDED:
      value = jnp.where(judged.over, value, 0.0)
    out = library().RecurrentFnOutput(
      reward=zero,
      discount=zero + 1,
      prior_logits=self._prior(),
      value=value,
    )
    return out, new

  def _extend(self, node: Node, action: jax.Array) -> tuple[Node, Node]:
    """Samples candidate number action [N] of each node.

    Returns:
      (the beginnings with the candidate, the beginnings that are judged).
    """
    keys = jax.random.wrap_key_data(node.key)
    folded = jax.vmap(jax.random.fold_in)(keys, action)
    key = jnp.where(
      (action == 0)[:, None], node.key, jax.random.key_data(folded)
    )
    node = node.replace(key=key)
    drawn = self._drawn(node)
    there = drawn['tokens'] != NONE
    index = jnp.arange(there.shape[1])
    there &= index < self.columns - node.length[:, None]
    separators = jnp.asarray(self.how.ends, jnp.int32)
    ended = there & jnp.isin(drawn['tokens'], separators)
    before = jnp.cumsum(ended, axis=1) - ended  # ends of steps before a token
    step = there & (index < self.how.tokens) & (before == 0)
    new = self._appended(node, drawn, step.sum(axis=1))
    new = new.replace(generated=there.sum(axis=1))
    if self.how.leaf != CONTINUED:
      return new, new
    return new, self._appended(node, drawn, there.sum(axis=1))

  def _drawn(self, node: Node) -> dict[str, jax.Array]:
    """Samples tokens after the beginnings, arrays [N,room] by name."""
    stop, room = self.draw.stop, self.columns
    if self.how.leaf != CONTINUED:
      room = self.how.tokens
      stop = jnp.concatenate([stop, jnp.asarray(self.how.ends, stop.dtype)])
    draw = dataclasses.replace(
      self.draw,
      stop=stop,
      keys=jax.random.wrap_key_data(node.key),
      first=node.length,
    )
    tokens, valid = self._before(node)
    hidden, cache = draw.model.prefill(
      self.params, tokens, valid, 1, room, room
    )
    shape = len(tokens), 1, room
    slots = sampler.begin(draw, hidden, cache, None, (tokens, valid), shape)
    slots = slots.replace(over=slots.over | node.over)
    out = sampler.loop(draw, None, room - 1, slots).out
    token = jnp.where(node.over[:, None], NONE, out['tokens'])
    return out | {'tokens': token}

  def _before(self, node: Node) -> tuple[jax.Array, jax.Array]:
    """Returns prompts with their beginnings, left-padded: [N,P+C]."""
    tokens = jnp.concatenate([self.prompts, node.values['tokens']], axis=1)
    valid = jnp.pad(self.valid, ((0, 0), (0, self.columns)), constant_values=1)
    at = jnp.arange(tokens.shape[1]) - (self.columns - node.length[:, None])
    some = jnp.maximum(at, 0)
    valid = (at >= 0) & jnp.take_along_axis(valid, some, axis=1)
    tokens = jnp.take_along_axis(tokens, some, axis=1)
    return sharding.rows(jnp.where(valid, tokens, 0)), sharding.rows(valid)

  def _appended(self, node: Node, drawn: dict, count: jax.Array) -> Node:
    """Appends the first count [N] of the drawn tokens."""
    at = jnp.arange(self.columns) - node.length[:, None]
    own = (at >= 0) & (at < count[:, None])
    room = drawn['tokens'].shape[1]
    values = {}
    for name, old in node.values.items():
      new = jnp.take_along_axis(drawn[name], jnp.clip(at, 0, room - 1), axis=1)
      values[name] = jnp.where(own, new, old)
    over = node.over | jnp.any(own & self.draw.ends(values['tokens']), axis=1)
    length = node.length + count
    return node.replace(
      values=values, length=length, over=over | (length == self.columns)
    )


def generate(
  how: Search,
  model: Model,
  params: Params,
  prompts: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
  *,
  judge: Callable[[Rows], jax.Array],
  n_samples: int,
  max_new: int,
  row_ids: jax.Array,
) -> Rollout:
  """Searches for n_samples completions of every prompt. The other arguments are
  those of `sampler.generate`.

  Args:
    sampling: settings for sampling candidates, without penalties. At
      temperature 0, all candidates of a row are equal.
    judge: (rows [N,P+C]) -> f32 [N], higher is better.

  Returns:
    Rollout of B*G rows. The view GENERATED is the number of tokens that were
    sampled for each completion, i32 [N].

  Raises:
    ImportError: mctx is not installed.
  """
  (b, _), c = prompts.shape, max_new
  n = b * n_samples
  rows = [sharding.rows(jnp.repeat(x, n_samples, 0)) for x in (prompts, valid)]
  weights = model.decode_params(params)
  told = True, True  # log-probs of the policy, entropies
  draw = Draw.make(model, weights, key, row_ids, sampling, stop, *told)
  rest = how, draw, params, *rows, judge, c
  names = dict.fromkeys(('logp', 'policy_logp', 'entropy'), jnp.float32)
  values = {k: jnp.zeros((n, c), x) for k, x in names.items()}
  start = Node(
    values=values | {'tokens': jnp.zeros((n, c), jnp.int32)},
    length=jnp.zeros(n, jnp.int32),
    over=jnp.zeros(n, bool),
    key=jax.random.key_data(draw.keys),
    generated=jnp.zeros(n, jnp.int32),
  )
  steps = -(-c // how.tokens) if not how.ends else c
  with trees.at_most('steps', steps):
    node = jax.lax.while_loop(
      lambda node: ~jnp.all(node.over), _Searcher(*rest).move, start
    )
  return _rollout(draw, node, n_samples)


def _rollout(draw: Draw, node: Node, n_samples: int) -> Rollout:
  """Returns the Rollout of completions that have ended."""
  values = node.values
  drawn = jnp.arange(values['tokens'].shape[1]) < node.length[:, None]
  ends = drawn & draw.ends(values['tokens'])
  return Rollout(
    **values,
    sampled=drawn,
    length=node.length,
    truncated=~jnp.any(ends, axis=1),
    temperature=draw.sampling.temperature,
    version=jnp.zeros_like(values['tokens']),
    turn=drawn.astype(jnp.int32),
    node=sampler.nodes(drawn, n_samples),
    views={GENERATED: node.generated},
  )
