"""greedy, pass@1, pass@k and maj@k of a set of problems.

One program answers all: row 0 of every problem is greedy (temperature 0), the
others are samples. Answers are verified by the host reward, by each process
those of its own rows.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import hosts, sharding
from jaxrl_reason.base import Model
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import sampler


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

  def stack(key):
    return np.stack([r[key] for r in rows])

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


def _answers(
  generate, params, problems: EvalSet, key, tokenizer, grade, mesh, show: int
) -> list[dict]:
  """What this process's problems got: number, scores, answers, lengths, and
  the texts of the first `show`.
  """
  n, shards = len(problems.examples), sharding.row_shards(mesh)
  # The last problem fills up the rows, and is not counted again.
  mine = sharding.my_rows(mesh, -(-n // shards) * shards)
  rows = np.minimum(mine, n - 1)
  prompts = sharding.to_global(
    (problems.tokens[rows], problems.valid[rows]), mesh
  )
  out = generate(params, *prompts, key)
  tokens, lengths, truncated = (
    sharding.to_local(x, mesh) for x in (out.tokens, out.length, out.truncated)
  )
  texts = [
    tokenizer.decode(row[:k].tolist()) for row, k in zip(tokens, lengths)
  ]
  g = len(texts) // len(mine)
  real = int((mine < n).sum())  # the filling comes last
  verdicts = grade(
    [(texts[i], problems.examples[mine[i // g]]) for i in range(real * g)]
  )
  return [
    {
      'problem': int(mine[i]),
      'scores': [float(v.score) for v in verdicts[i * g : (i + 1) * g]],
      'answers': [v.extracted for v in verdicts[i * g : (i + 1) * g]],
      'invalid': [not v.valid for v in verdicts[i * g : (i + 1) * g]],
      'lengths': lengths[i * g : (i + 1) * g].tolist(),
      'truncated': truncated[i * g : (i + 1) * g].tolist(),
      'texts': texts[i * g : (i + 1) * g] if mine[i] < show else [],
    }
    for i in range(real)
  ]


def evaluate(
  generate: Callable,
  params,
  problems: EvalSet,
  key: jax.Array,
  tokenizer,
  grade: Callable,
  mesh: jax.sharding.Mesh,
  show: int = 0,
) -> tuple[dict[str, float], list[list[str]]]:
  """(metrics by name, completions of the first `show` problems, greedy first),
  the same on every process.

  Args:
    grade: list of (completion, example) -> list of Verdict.
  """
  own = _answers(generate, params, problems, key, tokenizer, grade, mesh, show)
  found = {row['problem']: row for part in hosts.gather(own) for row in part}
  rows = [found[i] for i in range(len(problems.examples))]

  def mean(xs):
    return float(np.mean(list(xs)))

  sampled = [row['scores'][1:] for row in rows]
  n = len(sampled[0])
  values = {'greedy': mean(row['scores'][0] for row in rows)}
  for k in powers(n):
    solved = (sum(s > 0.5 for s in scores) for scores in sampled)
    values[f'pass@{k}'] = mean(pass_at_k(n, c, k) for c in solved)
  values[f'maj@{n}'] = mean(
    majority(row['answers'][1:], row['scores'][1:]) for row in rows
  )
  values['length'] = mean(row['lengths'] for row in rows)
  values['invalid'] = mean(x for row in rows for x in row['invalid'])
  values['truncated'] = mean(row['truncated'] for row in rows)
  return values, [row['texts'] for row in rows[:show]]
