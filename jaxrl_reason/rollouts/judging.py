"""A model's verdicts about completions, for the reward 'verdict'.

  prompt, completion, stop token | text | p(yes)
  prompt, completion, stop token | text | other completion, stop token | text
  prompt, completion, stop token | text | thought, stop token | text

The second row compares two completions of a problem. It is judged in both
orders, since judges prefer a position (`verifiers.judges.pairwise`). With a
rubric, each row is judged once for each item (`kernels.criteria`). The third
row is that of a generative verifier (https://arxiv.org/abs/2408.15240): the
model first samples a thought, greedily.

**Injection.** Sampling ends at a stop token, so no completion contains one, and
none can write what follows a stop token. In the last two rows every completion
and every thought ends with a stop token, also a truncated one.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Rollout, Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards.kernels import asked, criteria
from jaxrl_reason.rewards.kernels.asked import OTHER, THOUGHT, Question
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts.own_verdicts import Verdicts

Piece = tuple[jax.Array, jax.Array]  # tokens i32 [N,W] and their number i32 [N]
STOP = 'stop'  # after a completion that lacks it, if the question has places


@dataclasses.dataclass(frozen=True, eq=False)
class Judge:
  """Computes the verdicts of a model about completions; static.

  Attributes:
    question: a question of `rl.rewards`.
    part: the first reward part with this question, which has its encoded texts.
    verdicts: computes the probability of yes after the question.
    ends: the stop tokens.
    widths: see `widths`; for plans.
  """

  question: Question
  part: str
  verdicts: Verdicts
  ends: tuple[int, ...]
  widths: tuple[int, ...] = ()

  @property
  def places(self) -> list[str]:
    """Returns the places between the texts of the question."""
    return asked.pieces(self.question.ask)[1]

  @property
  def thought(self) -> tuple[int, int]:
    """Returns (columns of a question before the thought, tokens of it)."""
    if THOUGHT not in self.places:
      return 0, 0
    # The stop token, and a text before each place.
    start = 2 + 2 * self.places.index(THOUGHT)
    return sum(self.widths[:start]), self.question.thought_len

  def passes(self, n_samples: int) -> int:
    """Counts the passes over the rows of a group of n_samples."""
    own = offsets(n_samples, self.question.rivals)
    pairs = len(own) if OTHER in self.places else 1
    return pairs * max(self.question.criteria, 1)

  def __call__(
    self,
    params,
    rollout: Rollout,
    encoded: dict,
    n_samples: int,
    by_parts: Callable,
  ) -> jax.Array:
    """Computes the scores of N completions, f32 [N].

    Args:
      params: weights of the model that is asked.
      encoded: texts of the question by number, [N,...], as `asked.encoder`
        returns them; {}: the same for all rows.
      n_samples: G; the rows of a problem are adjacent.
      by_parts: (function of (rows, trees [n,...]), trees [N,...]) -> [N];
        computes it for one part of the rows at a time.
    """
    if not encoded:
      return by_parts(functools.partial(self.verdicts.probability, params))
    given = rollout, n_samples, by_parts
    texts, rubric = dict(encoded), encoded.get(asked.RUBRIC)
    if rubric is None:
      return self._mark(params, texts, *given)
    del texts[asked.RUBRIC]
    texts = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), texts)
    marks = jax.lax.map(lambda x: self._mark(params, x, *given), texts)
    return criteria.aggregate(marks.T, rubric)

  def _mark(
    self,
    params,
    encoded: dict,
    rollout: Rollout,
    n_samples: int,
    by_parts: Callable,
  ) -> jax.Array:
    """Computes the marks of N completions by one text of the question."""
    asks = functools.partial(self._probability, params)
    if not self.places:
      return by_parts(asks, encoded, {})
    n = rollout.valid.sum(axis=1)
    own = closed(rollout.tokens, n, self.ends)
    stop = {STOP: (jnp.full((len(n), 1), self.ends[0]), own[1] - n)}
    if OTHER not in self.places:
      return by_parts(asks, encoded, stop)

    def beats(ahead):
      """Computes the probability that a row beats the one `ahead` of it."""
      other = jax.tree.map(lambda x: rival(x, ahead, n_samples), own)
      return by_parts(asks, encoded, stop | {OTHER: other})

    ahead = offsets(n_samples, self.question.rivals)
    p = jax.lax.map(beats, jnp.array(ahead))
    by_offset = dict(zip(ahead, p.reshape(len(ahead), -1, n_samples)))
    return preferred(by_offset, self.question.rivals).reshape(-1)

  def _probability(
    self, params, rows: Rows, encoded: dict, sampled: dict[str, Piece]
  ) -> jax.Array:
    """Computes the probability of yes after rows and their questions."""
    pieces = []
    for i, place in enumerate([STOP, *self.places]):
      if place == THOUGHT:
        pieces.append(self._thought(params, rows, pieces))
      elif place in sampled:
        pieces.append(sampled[place])
      text = encoded[str(i)]
      pieces.append((text['tokens'], text['n_tokens']))
    tokens, n = joined(pieces)
    question = {'tokens': tokens, 'n_tokens': n}
    return self.verdicts.probability(params, rows, question)

  def _thought(self, params, rows: Rows, pieces: list[Piece]) -> Piece:
    """Continues rows and the first pieces of their questions greedily."""
    tokens, n = joined(pieces)
    there = jnp.arange(tokens.shape[1]) < n[:, None]
    tokens = jnp.concatenate([rows.tokens, tokens], axis=1)
    there = jnp.concatenate([rows.valid, there], axis=1)
    order = jnp.argsort(there, axis=1, stable=True)  # the gaps first
    tokens, there = (
      jnp.take_along_axis(x, order, axis=1) for x in (tokens, there)
    )
    out = sampler.generate(
      self.verdicts.model,
      params,
      tokens,
      there,
      jax.random.key(0),  # no noise: the temperature is 0
      Sampling(jnp.float32(0)),
      jnp.array(self.ends),
      n_samples=1,
      max_new=self.question.thought_len,
    )
    return closed(out.tokens, out.length, self.ends)


def widths(question: Question, tokenizer, max_new: int) -> tuple[int, ...]:
  """Counts the columns of the pieces of a question that differs between rows:
  the stop token of the completion, if the question has places, a text, a place,
  a text, ...; () for a question that is the same for all rows.

  Args:
    max_new: C.
  """
  if not asked.varies(question.ask):
    return ()
  texts, places = asked.pieces(question.ask)
  sizes = {OTHER: max_new + 1, THOUGHT: question.thought_len + 1}
  out = [1] if places else []
  for place, text in zip(['', *places], texts):
    out += [sizes[place]] if place else []
    out.append(asked.columns(text, question, tokenizer, max_new))
  return tuple(out)


def joined(pieces: list[Piece]) -> Piece:
  """Concatenates pieces without the gaps between them."""
  tokens = jnp.concatenate([x for x, _ in pieces], axis=1)
  there = [jnp.arange(x.shape[1]) < n[:, None] for x, n in pieces]
  return batch_lib.packed(tokens, jnp.concatenate(there, axis=1))


def closed(tokens: jax.Array, n: jax.Array, ends: tuple[int, ...]) -> Piece:
  """Adds a stop token to rows [N,C] of n tokens that do not end with one.

  Returns:
    Rows of C + 1 columns, and their numbers of tokens.
  """
  columns = jnp.arange(tokens.shape[1] + 1)
  tokens = jnp.pad(tokens, ((0, 0), (0, 1)))
  last = (columns == n[:, None] - 1) & jnp.isin(tokens, jnp.array(ends))
  is_open = ~jnp.any(last, axis=1)
  end = is_open[:, None] & (columns == n[:, None])
  return jnp.where(end, ends[0], tokens), n + is_open


def rival(x: jax.Array, ahead: jax.Array, n_samples: int) -> jax.Array:
  """Returns, for each row of [N,...], the row `ahead` of it in its group."""
  groups = x.reshape(-1, n_samples, *x.shape[1:])
  return sharding.rows(jnp.roll(groups, -ahead, axis=1).reshape(x.shape))


def offsets(n_samples: int, rivals: int) -> list[int]:
  """Returns the distances in a group of the pairs that are judged: those of the
  next `rivals` samples (0: all), and the same pairs in the other order.
  """
  ahead = _ahead(n_samples, rivals)
  return sorted({*ahead, *(n_samples - i for i in ahead)})


def _ahead(n_samples: int, rivals: int) -> range:
  return range(1, min(rivals or n_samples, n_samples - 1) + 1)


def preferred(p: dict[int, jax.Array], rivals: int) -> jax.Array:
  """Computes the scores of the samples of groups, f32 [B,G]: the mean over the
  rivals of 1/2 + (p(a, b) - p(b, a)) / 2.

  Args:
    p: by distance, the probability [B,G] that a sample beats the one that far
      ahead of it.
  """
  g = p[1].shape[1]
  ahead = _ahead(g, rivals)
  margins = [p[i] - jnp.roll(p[g - i], -i, axis=1) for i in ahead]
  return 0.5 + sum(margins) / (2 * len(margins))
