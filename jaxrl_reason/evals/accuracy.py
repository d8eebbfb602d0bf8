"""greedy, pass@1, pass@k and maj@k of a set of problems.

One program answers all: row 0 of every problem is greedy (temperature 0), the
others are samples. Answers are verified by the host reward.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sampler
from jaxrl_reason.base import Model
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling


def pass_at_k(n: int, correct: int, k: int) -> float:
  """Chance that at least one of k samples is right, unbiased from n >= k.

  1 - C(n - c, k) / C(n, k), https://arxiv.org/abs/2107.03374, equation 1.
  """
  if k > n:
    raise ValueError(f'pass@{k} needs at least {k} samples, not {n}')
  return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None], scores: Sequence[float]) -> float:
  """Score of the commonest answer (the first of equals); 0 without any.

  Self-consistency, https://arxiv.org/abs/2203.11171.
  """
  votes = collections.Counter(a for a in answers if a is not None)
  if not votes:
    return 0.0
  winner = max(votes, key=votes.get)
  return scores[list(answers).index(winner)]


def powers(n: int) -> list[int]:
  """The ks worth reporting for n samples: 1, 2, 4, ... and n."""
  return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


@dataclasses.dataclass(frozen=True)
class EvalSet:
  """Problems of one split, encoded once."""

  examples: list[dict]
  tokens: np.ndarray  # i32 [E,P]
  valid: np.ndarray  # bool [E,P]


def make_set(source, n: int, tokenizer, prompt_len: int) -> EvalSet:
  """The first n problems of a source."""
  examples = [source[i] for i in range(min(n, len(source)))]
  rows = [
    pipeline.prompt_row(i, e, tokenizer, prompt_len, None)
    for i, e in enumerate(examples)
  ]
  stack = lambda key: np.stack([r[key] for r in rows])
  return EvalSet(examples, stack('tokens'), stack('valid'))


def make_generate(
  model: Model, stop, n_samples: int, max_new: int, heat: float
):
  """Compiled (params, tokens, valid, key) -> Rollout with G = 1 + n_samples,
  the first of each group greedy.
  """

  @jax.jit
  def generate(params, tokens, valid, key):
    row = jnp.arange(tokens.shape[0] * (1 + n_samples))
    temperature = jnp.where(row % (1 + n_samples) == 0, 0.0, heat)
    return sampler.generate(
      model,
      params,
      tokens,
      valid,
      key,
      Sampling.make(temperature),
      stop,
      n_samples=1 + n_samples,
      max_new=max_new,
    )

  return generate


def evaluate(
  generate: Callable,
  params,
  problems: EvalSet,
  key: jax.Array,
  tokenizer,
  grade: Callable,
) -> tuple[dict[str, float], list[list[str]]]:
  """(metrics by name, completions by problem, greedy first).

  Args:
    grade: list of (completion, example) -> list of Verdict.
  """
  out = generate(params, problems.tokens, problems.valid, key)
  tokens, lengths = np.asarray(out.tokens), np.asarray(out.length)
  texts = [
    tokenizer.decode(row[:n].tolist()) for row, n in zip(tokens, lengths)
  ]
  g = len(texts) // len(problems.examples)
  verdicts = grade(
    [(text, problems.examples[i // g]) for i, text in enumerate(texts)]
  )
  rows = [verdicts[i : i + g] for i in range(0, len(verdicts), g)]
  sampled = [[v.score for v in row[1:]] for row in rows]
  mean = lambda xs: float(np.mean(list(xs)))
  values = {'greedy': mean(row[0].score for row in rows)}
  for k in powers(g - 1):
    solved = (sum(s > 0.5 for s in scores) for scores in sampled)
    values[f'pass@{k}'] = mean(pass_at_k(g - 1, c, k) for c in solved)
  values[f'maj@{g - 1}'] = mean(
    majority([v.extracted for v in row[1:]], scores)
    for row, scores in zip(rows, sampled)
  )
  values['length'] = mean(lengths)
  values['truncated'] = mean(np.asarray(out.truncated))
  return values, [texts[i : i + g] for i in range(0, len(texts), g)]
