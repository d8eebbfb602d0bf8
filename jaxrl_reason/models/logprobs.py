"""Log-probabilities of given tokens under a model, for the trainer.

They are computed a chunk of columns at a time, so that logits [N,T,V] never
exist at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import logits as logits_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Model, Params, Rows
from jaxrl_reason.models import shared
from jaxrl_reason.models.adapters import lora


class Other(NamedTuple):
  """A second model that computes logits of the same rows.

  Attributes:
    model: its functions; params: its weights.
    rows: with other prompts and the same completions, in the last columns;
      None: the same rows.
  """

  model: Model
  params: Params
  rows: Rows | None = None


@struct.dataclass
class Top:
  """The likeliest tokens of a stored distribution over the tokens of rows.

  Attributes:
    ids: i32 [N,T,k]; logp: f32 [N,T,k+1], see `losses.likeliest`.
  """

  ids: jax.Array
  logp: jax.Array


def score(
  model: Model,
  params: Params,
  rows: Rows | Batch,
  sampling: logits_lib.Sampling,
  packed: Any = None,
  *,
  start: int = 1,
  chunk: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Computes log p(token_t | tokens before t), and entropies.

  Args:
    sampling: settings of the distribution; temperatures are those of the rows.
      Neutral settings describe the policy itself.
    rows, packed, start, chunk: see `over_columns`.

  Returns:
    (logp [N,T], entropy [N,T] in nats), float32, 0 before `start`, and the load
    balance of `forward`. Values at invalid tokens are finite and meaningless.
  """
  (logp, entropy, _), balance = score_beside(
    model, params, rows, sampling, packed, start=start, chunk=chunk
  )
  return logp, entropy, balance


def score_beside(
  model: Model,
  params,
  rows: Rows | Batch,
  sampling: logits_lib.Sampling,
  packed: Any = None,
  *,
  other: Other | Top | None = None,
  compare: Callable[..., jax.Array] | None = None,
  **columns: int,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array | None], jax.Array | None]:
  """Computes `score`, and compares the distributions of two models.

  Args:
    other: the second model, or its stored distributions, or None.
    compare: (logits, logits of the other) [N,c,V] at the rows' temperatures,
      unfiltered -> [N,c]. With stored distributions the arguments are (logits,
      ids, logp).
    columns: start and chunk, see `over_columns`. The logits of both models are
      computed a chunk at a time.

  Returns:
    ((logp, entropy, comparison or None) [N,T], load balance or None).
  """
  shape, beside = shaping(model, rows, sampling, packed, **columns)
  n_others, n_read = int(isinstance(other, Other)), 1 + len(beside)
  stored = (other.ids, other.logp) if isinstance(other, Top) else ()

  def part(logits, *rest):
    others, rest = rest[:n_others], rest[n_others:]
    read, top = rest[:n_read], rest[n_read:]
    targets, temperature, *_ = read
    shaped = shape(logits, *read)
    logp = logits_lib.token_logp(shaped, targets, model.sums)
    compared = None
    if others or top:
      plain = logits_lib.Sampling(temperature)
      both = [logits_lib.shaped(x, plain) for x in (logits, *others)]
      compared = compare(*both, *top)
    return logp, logits_lib.entropy(shaped), compared

  second = other if n_others else None
  columns |= dict(packed=packed, other=second)
  return over_columns(model, params, rows, part, *beside, *stored, **columns)


def shaping(
  model: Model,
  rows: Rows | Batch,
  sampling: logits_lib.Sampling,
  packed: Any = None,
  *,
  start: int = 1,
  chunk: int = 0,
) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
  """Returns a function that computes the logits of the sampling distribution
  from the model's, and the arrays [N,T] that it reads, for `over_columns`:
  (logits [N,c,V], targets [N,c], columns of the arrays) -> [N,c,V].

  Args:
    packed, start, chunk: see `over_columns`.

  Raises:
    ValueError: penalties, and rows that are packed.
  """
  del chunk
  t, sums = rows.tokens.shape, model.sums
  temperature = jnp.reshape(rows.temperature, (-1, 1))  # [N,1] or [1,1]
  read = {'temperature': jnp.broadcast_to(temperature, t)}
  whole = packed is None or (_is_shared(packed) and packed.own is None)
  if sampling.penalties is not None and whole:  # `shaped` refuses packed rows
    read['column'] = jnp.broadcast_to(jnp.arange(t[1]), t)
  if sampling.automaton is not None:
    read['state'] = _states(rows, start, sampling.automaton)

  def shape(logits, targets, *columns):
    of = dict(zip(read, columns))
    seen = logits_lib.Seen(state=of.get('state'))
    if 'column' in of:
      given = rows, start, of['column'], targets, logits.shape[-1]
      seen = _counted(seen, *given)
    how = sampling.replace(temperature=of['temperature'])
    return logits_lib.shaped(logits, how, targets, sums, seen)

  return shape, tuple(read.values())


def _is_shared(packed: Any) -> bool:
  return isinstance(packed, shared.Layout)


def _states(rows: Rows, start: int, automaton) -> jax.Array:
  """Returns the state [N,T] before each token of a completion, which begins at
  column `start`.
  """
  tokens = rows.tokens[:, start:]

  def step(state, token):
    return automaton.next(state, token), state

  _, states = jax.lax.scan(step, jnp.zeros_like(tokens[:, 0]), tokens.T)
  return _widened(states.T, start, 0)


def _counted(seen, rows: Rows, start: int, column, targets, vocab: int):
  """Counts the tokens before each of c adjacent columns, as [N,1 or c,V].

  Args:
    start: first column of completions.
    column: int [N,c], the numbers of the columns; targets: their tokens.
  """
  at = jnp.arange(rows.tokens.shape[1])
  prompt = logits_lib.counts(rows.tokens, rows.valid & (at < start), vocab) > 0
  before = rows.valid & (at >= start) & (at < column[:, :1])
  before = logits_lib.counts(rows.tokens, before, vocab)
  # A product of matrices counts the tokens inside of the c columns; each is
  # exact, since factors are 0 and 1.
  c = targets.shape[1]
  earlier = jnp.tril(jnp.ones((c, c), jnp.float32), -1)
  inside = jax.nn.one_hot(targets, vocab)  # [N,c,V]
  inside = jnp.einsum('ij,njv->niv', earlier, inside)
  counts = before[:, None] + inside
  return seen.replace(prompt=prompt[:, None], counts=counts)


def forward(
  model: Model, params, rows: Rows | Batch, packed: Any = None
) -> tuple[jax.Array, jax.Array | None]:
  """Computes hidden states [N,T,D] and the load balance of experts (f32 []).

  Args:
    rows: the rows. Their routes are replayed; None: the router chooses.
    packed: `update.packing.Packed`, the place of each row's tokens in packed
      rows [R,L]: computes hidden states [R,L,D]. `shared.Layout`, the rows of
      each prompt: computes the hidden states from which completions were drawn.
      None: computes the rows as they are.

  Returns:
    (hidden, load balance or None without experts).
  """
  tokens, valid, routes = rows.tokens, rows.valid, rows.routes
  if rows.role is not None:
    role = rows.role
    if packed is not None:
      role = packed.pack(jnp.broadcast_to(role[:, None], tokens.shape))
    params = lora.of_rows(params, role)
  if _is_shared(packed):
    return model.hidden_shared(params, tokens, valid, packed, routes)
  if packed is not None:
    tokens, valid = packed.pack(tokens), packed.segments
    routes = None if routes is None else packed.pack(routes)
  if model.hidden_routed is None:
    return model.hidden(params, tokens, valid), None
  hidden, aux = model.hidden_routed(params, tokens, valid, routes)
  return hidden, aux['load_balance']


def over_columns(
  model: Model,
  params,
  rows: Rows | Batch,
  part: Callable[..., Any],
  *beside: jax.Array,
  packed: Any = None,
  start: int = 1,
  chunk: int = 0,
  other: Other | None = None,
) -> tuple[Any, jax.Array | None]:
  """Applies `part` to the logits from which each token was drawn.

    Args:
    part: (logits f32 [N,c,V], those of `other` if there is one, the c tokens
      drawn from them [N,c], columns of `beside`) -> tree of [N,c,...], column
      by column.
    beside: arrays [N,T,...] about the tokens, passed to `part`.
    packed: see `forward`.
    start: first column to compute, at least 1. Columns before it are prompts in
      every row and need no logits.
    chunk: columns of logits in memory at a time (recomputed in the backward
      pass); 0: all of them.
    other: a second model without gradient; its routers choose for themselves.

  Returns:
    The tree of [N,T,...], 0 before `start` and at packed padding; and the load
    balance of `forward`.
  """
  hidden, balance = forward(model, params, rows, packed)
  models = [Other(model, params)]
  hidden = [hidden]
  if other is not None:
    models.append(other._replace(params=jax.lax.stop_gradient(other.params)))
    hidden.append(_hidden_of(models[1], rows, packed, start))
  read, first = (rows.tokens, *beside), start
  joined = _is_shared(packed)
  moved = packed is not None and not joined
  if moved:
    # A packed row may have another sequence's prompt anywhere.
    read, first = tuple(map(packed.pack, read)), 1
  if not joined:
    hidden = [x[:, first - 1 : -1] for x in hidden]
  read = tuple(x[:, first:] for x in read)
  # Under prompts of its own, the second model may differ between rows.
  one_prompt = other is None or other.rows is None
  own = packed.own if joined and one_prompt else None
  if own is not None:  # a token of several rows is drawn from one distribution
    hidden, read = jax.tree.map(own.gather, (hidden, read))
    chunk *= own.place.shape[1]

  def of(hidden, read):
    hidden, read = jax.tree.map(sharding.tokens, (hidden, read))
    logits = [m.model.unembed(m.params, x) for m, x in zip(models, hidden)]
    return part(*logits, *read)

  at_once = not 0 < chunk < hidden[0].shape[1]
  if not at_once:
    models = [m._replace(params=_head_once(*m[:2])) for m in models]
  out = of(hidden, read) if at_once else _by_chunk(of, (hidden, read), chunk)
  if own is not None:
    out = jax.tree.map(own.spread, out)
  out = jax.tree.map(lambda x: _widened(x, first, 0), out)
  if moved:
    wanted = jnp.arange(rows.tokens.shape[1]) >= start
    out = jax.tree.map(lambda x: jnp.where(wanted, packed.unpack(x), 0), out)
  return out, balance


def _hidden_of(other: Other, rows, packed: Any, start: int) -> jax.Array:
  """Computes the hidden states of a second model in the layout of the first's
  (`forward`).
  """
  model, params, own = other
  if own is None:
    return forward(model, params, rows.replace(routes=None), packed)[0]
  hidden, _ = forward(model, params, own)
  n, t = rows.tokens.shape
  hidden = hidden[:, own.tokens.shape[1] - (t - start) - 1 : -1]
  if _is_shared(packed):
    return hidden
  # Column i has the state that token i + 1 is drawn from.
  hidden = jnp.pad(hidden, ((0, 0), (start - 1, 1), (0, 0)))
  if packed is None:
    return hidden
  # A packed token's state is at the token before it, also at the first.
  drawn = packed.pack(jnp.roll(hidden, 1, axis=1))
  return jnp.roll(drawn, -1, axis=1)


def _head_once(model: Model, params):
  """Gathers the sharded weights of the logits once instead of once per chunk,
  if the parameters have our names.
  """
  if not isinstance(params, dict):
    return params
  heads = {k: params[k] for k in ('embed', 'head') if k in params}
  specs = {k: model.specs[k] for k in heads}
  return params | sharding.constrain(heads, specs, sharding.DECODE_RULES)


def _widened(x: jax.Array, before: int, after: int) -> jax.Array:
  """Adds columns of zeros to [N,c,...]."""
  return jnp.pad(x, ((0, 0), (before, after)) + ((0, 0),) * (x.ndim - 2))


def _by_chunk(of: Callable[..., Any], arrays: tuple, chunk: int) -> Any:
  """Computes of(*arrays) [n,T,...] of arrays [n,T,...], `chunk` columns at a
  time.
  """
  n, columns = jax.tree.leaves(arrays)[0].shape[:2]
  padding = -columns % chunk

  def split(x):
    padded = _widened(x, 0, padding)
    return jnp.moveaxis(padded.reshape(n, -1, chunk, *x.shape[2:]), 1, 0)

  def join(x):
    return jnp.moveaxis(x, 0, 1).reshape(n, -1, *x.shape[3:])[:, :columns]

  def body(xs):
    return of(*xs)

  out = jax.lax.map(jax.checkpoint(body), jax.tree.map(split, arrays))
  return jax.tree.map(join, out)
