"""Compiles the programs that sample answers and score them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import losses
from jaxrl_reason.base import Model, Prompts, Rollout, Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rollouts import chunks as chunks_lib
from jaxrl_reason.rollouts import (
  forcing,
  gumbel_search,
  power_sampling,
  sampler,
  turns,
)

BASE, JUDGE = 'base_logp', 'p_correct'  # of records
TOP = 'top_ids', 'top_logp'  # of a Rollout's views
COLUMNS = 64  # columns of logits of a scoring pass in memory at once


class Weights(NamedTuple):
  """The weights of the models of a program; None: there is no such model."""

  policy: Any
  base: Any = None
  judge: Any = None


def make_generate(
  model: Model,
  n_samples: int,
  max_new: int,
  *,
  details: bool = False,
  how: turns.Turns | None = None,
  base: Model | None = None,
  forced: forcing.Forcing | None = None,
  chunks: Chunks | None = None,
  power: power_sampling.Power | None = None,
  search: gumbel_search.Search | None = None,
  top: int = 0,
  judge: Callable[..., jax.Array] | None = None,
  verifier: Callable[..., jax.Array] | None = None,
) -> Callable[..., Rollout]:
  """Compiles (params, tokens, valid, row_ids, Sampling, key, stop) -> Rollout.
  With an environment or a verifier, its encoded problems are the last argument.

  Args:
    n_samples: G, completions of a prompt.
    details: also log-probabilities and entropies of the policy itself.
    how: the environment and the limits; None: one completion.
    base: a model that also scores the sampled tokens; `params` is then a
      `Weights`.
    judge: `answer_judges.Judge.of`, whose probabilities are the view JUDGE;
      `params` is then a `Weights`.
    forced: forced tokens, or None.
    chunks: of completions, with a carried tail; None: no chunks.
    power: of the distribution; `cell_settings` refuses it with `forced` and
      `chunks`.
    search: chooses the steps of completions by `verifier`, or by `judge` if
      `verifier` is None. `cell_settings` refuses it with `forced`, `chunks` and
      `power`.
    top: number of likeliest tokens of the policy itself, at every token, that
      the views TOP have; 0: no such views.
    verifier: `leaf_verifiers.score_of`, for the search alone.

  Raises:
    ValueError: chunks with settings that need whole completions.
  """
  if chunks is not None and (base or judge or forced):
    raise ValueError(
      'completions in chunks: no base model, no judge and no budget forcing '
      'goes with them'
    )

  @jax.jit
  def generate(params, tokens, valid, row_ids, sampling, key, stop, *encoded):
    rest = dict(n_samples=n_samples, max_new=max_new, row_ids=row_ids)
    if how is not None:
      given = params, tokens, valid, *encoded, key, sampling, stop
      return turns.generate(how, model, *given, **rest)
    if not isinstance(params, Weights):
      params = Weights(params)
    given = model, params.policy, tokens, valid, key, sampling, stop
    told = dict(policy_logp=details, entropy=details)
    if chunks is not None:
      return chunks_lib.generate(chunks, *given, **rest, **told)
    if search is not None:
      value = _value(params, judge, verifier, max_new, encoded)
      out = gumbel_search.generate(search, *given, **rest, judge=value)
    elif power is None:
      out = sampler.generate(*given, **rest, **told, forcing=forced)
    else:
      out = power_sampling.generate(power, *given, **rest, **told)
    if base is None and judge is None and not top:
      return out
    start, rows = tokens.shape[1], _rows(tokens, valid, out)
    views = _scores(model, base, judge, params, rows, start, max_new, top)
    return out.replace(views=(out.views or {}) | views)

  return generate


def _value(
  weights: Weights, judge, verifier, max_new: int, encoded: tuple
) -> Callable[[Rows], jax.Array]:
  """Returns the function of rows that a search maximizes; its arguments are
  those of `make_generate`.
  """

  def value(rows: Rows) -> jax.Array:
    if verifier is not None:
      return verifier(rows, *encoded)
    return judge(weights.judge, rows, max_new)

  return value


def _scores(
  model: Model, base, judge, weights: Weights, rows: Rows, start: int,
  max_new: int, top: int,
) -> dict:  # fmt: skip
  """Computes the views of completions that a scoring pass returns; see
  `make_generate`. start: columns of the prompt.
  """
  views = {}
  if base is not None:
    views |= _of_base(base, weights.base, rows, start)
  if judge is not None:
    views[JUDGE] = judge(weights.judge, rows, max_new)
  if top:
    views |= _likeliest(model, weights.policy, rows, start, top)
  return views


def _rows(tokens, valid, out: Rollout) -> Rows:
  """Returns prompts and completions [N,P+C] for a scoring pass."""
  asked = Prompts(tokens, valid, jnp.zeros(len(tokens), jnp.int32), {})
  return batch_lib.rows_of(asked, out).replace(temperature=1.0)


def _of_base(base: Model, params, rows: Rows, start: int) -> dict:
  """Computes the log-probs [N,C] of sampled tokens under another model."""
  logp, _, _ = logprobs.score(
    base, params, rows, Sampling.fixed(), start=start, chunk=COLUMNS
  )
  return {BASE: logp[:, start:]}


def _likeliest(model: Model, params, rows: Rows, start: int, k: int) -> dict:
  """Computes the k likeliest tokens at every token of completions, TOP:
  (i32 [N,C,k], f32 [N,C,k+1]), see `losses.likeliest`.
  """

  def part(logits, *rest):
    del rest
    return losses.likeliest(logits, k)

  found, _ = logprobs.over_columns(
    model, params, rows, part, start=start, chunk=COLUMNS
  )
  return {name: x[:, start:] for name, x in zip(TOP, found)}
