"""greedy, pass@1, pass@k and maj@k of a set of problems.

One program answers all: row 0 of every problem is greedy (temperature 0), the
others are samples. Answers are verified by the host reward, by each process
those of its own rows.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import hosts, sharding
from jaxrl_reason.base import Model
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards import records
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
  generate, params, problems: EvalSet, key, tokenizer, grade, mesh
) -> list[dict]:
  """The records (`rewards.records`) of what this process's problems got, those
  of a problem adjacent, greedy first.
  """
  n, shards = len(problems.examples), sharding.row_shards(mesh)
  # The last problem fills up the rows, and is not counted again.
  mine = sharding.my_rows(mesh, -(-n // shards) * shards)
  rows = np.minimum(mine, n - 1)
  prompts = sharding.to_global(
    (problems.tokens[rows], problems.valid[rows]), mesh
  )
  out = generate(params, *prompts, key)
  tokens, sampled, truncated = (
    sharding.to_local(x, mesh) for x in (out.tokens, out.sampled, out.truncated)
  )
  texts = [tokenizer.decode(row[m].tolist()) for row, m in zip(tokens, sampled)]
  g = len(texts) // len(mine)
  real = int((mine < n).sum())  # the filling comes last
  examples = [problems.examples[mine[i // g]] for i in range(real * g)]
  verdicts = grade(list(zip(texts, examples)))
  return [
    records.judged(
      records.record(
        {'prompt': example['prompt'], 'answer': example['answer']},
        number=int(mine[i // g]),
        sample=i % g,
        completion=texts[i],
        length=int(sampled[i].sum()),
        truncated=bool(truncated[i]),
      ),
      verdict,
    )
    for i, (example, verdict) in enumerate(zip(examples, verdicts))
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
) -> tuple[dict[str, float], list[dict]]:
  """Evaluates the greedy and the sampled completions of problems.

  Args:
    grade: list of (completion, example) -> list of Verdict.
    show: problems, the first ones, whose texts are wanted.

  Returns:
    (metrics by name, records of all answers, in the order of the problems,
    greedy first, texts only of the first `show`), the same on every process.
  """
  own = _answers(generate, params, problems, key, tokenizer, grade, mesh)
  told = hosts.gather([_without_text(row, show) for row in own])
  rows = {(r['problem'], r['sample']): r for part in told for r in part}
  rows = [row for _, row in sorted(rows.items())]
  return scores(rows), rows


def _without_text(row: dict, show: int) -> dict:
  """A record as other hosts need it: texts only of the problems to be shown."""
  if row['problem'] < show:
    return row
  return {k: v for k, v in row.items() if k not in ('prompt', 'completion')}


def scores(rows: Sequence[Mapping]) -> dict[str, float]:
  """Summarises the records of an evaluation: sample 0 of a problem is its
  greedy completion.
  """
  by_problem: dict[int, list] = {}
  for row in rows:
    by_problem.setdefault(row['problem'], []).append(row['verdict'])
  drawn = [verdicts[1:] for verdicts in by_problem.values()]
  n = len(drawn[0])

  def mean(xs):
    return float(np.mean(list(xs)))

  values = {'greedy': mean(v[0]['score'] for v in by_problem.values())}
  for k in powers(n):
    solved = (sum(v['score'] > 0.5 for v in verdicts) for verdicts in drawn)
    values[f'pass@{k}'] = mean(pass_at_k(n, c, k) for c in solved)
  values[f'maj@{n}'] = mean(
    majority([v['extracted'] for v in vs], [v['score'] for v in vs])
    for vs in drawn
  )
  values['length'] = mean(row['length'] for row in rows)
  failed = ('error', 'timeout')
  values['invalid'] = mean(r['verdict']['status'] in failed for r in rows)
  values['truncated'] = mean(row['truncated'] for row in rows)
  return values
