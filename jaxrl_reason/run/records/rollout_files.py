"""Rollouts of training on disk: `rollouts/<step>.jsonl`, records of the first
problems of a batch, with the update's values for every token.

A file belongs to the update of the run's step `<step>`, and is written whole. A
resumed run drops the files after its checkpoint and writes them again. Arrays
are read one dispatch late, so the device never waits. When all files together
would exceed `rollouts.mib`, every second file is removed, and from then on only
every second one is written: the files always cover the run evenly.
"""

import codecs
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.base import Metrics
from jaxrl_reason.checkpoints import files
from jaxrl_reason.config import RL
from jaxrl_reason.config.run import Rollouts
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.reports import signs
from jaxrl_reason.rollouts.turns import PART
from jaxrl_reason.run.rl import turn_settings as turns
from jaxrl_reason.verifiers import records
from jaxrl_reason.verifiers.verdict import Verdict

# Defaults: a token's record has only the values that differ from these.
USUAL = {'sampled': True, 'trained': True, 'turn': 0}


class RolloutFiles:
  """Writes the arrays of `update.rollout_dump`; on process 0."""

  def __init__(
    self,
    c: Rollouts,
    rl: RL,
    workdir: epath.Path,
    problems: Problems,
    tokenizer: Any,
    resume_step: int,
    grade: Callable[[list[tuple[str, dict]]], list[Verdict]] | None = None,
    histogram: Callable[[int, str, np.ndarray], None] | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
  ):
    """Args:
    resume_step: files after it are removed.
    grade: verifies on the host what kernels have scored, and extracts its
      answer; None: no such verifier.
    histogram: takes (step, name, numbers) of the kept rollouts, or None.
    check: takes (step, share of records with each sign), or None.
    """
    self._every, self._room = c.every, c.mib * 2**20
    self._folder, self._pending = workdir / 'rollouts', []
    self._examples, self._tokenizer = problems.train, tokenizer
    self._n_samples, self._grade = rl.samples, grade
    self._histogram, self._check = histogram, check
    rewards = rl.rewards  # the environment's part is not among them
    self._parts = {
      k: rewards.get(k, {}).get('reward', k) for k in turns.part_names(rl)
    }
    self._pieces = self._sizes = None
    if hosts.is_main():
      self._open(resume_step)

  def _open(self, resume_step: int) -> None:
    found = list(self._folder.glob('*.jsonl')) if self._folder.exists() else []
    self._sizes = {int(p.stem): p.stat().length for p in found}
    for step in [s for s in self._sizes if s > resume_step]:
      self._remove(step)

  def note(
    self, first: int, stage: str, shown: Metrics | None, examples=None
  ) -> None:
    """Writes the arrays of the previous dispatch, and keeps those of the new
    one.

    Args:
      first: steps before it.
      shown: its arrays, [R,...] of one step or [K,R,...]; None if it has none.
      examples: problems by id, of a pool that moves; None for the train split.
    """
    self.flush()
    if shown is None or self._sizes is None:
      return
    k = shown['reward'].ndim > 1 and shown['reward'].shape[0]
    due = [s for s in range(k or 1) if (first + s + 1) % self._every == 0]
    for s in due:
      arrays = {n: x[s] if k else x for n, x in shown.items()}
      verdicts = arrays.pop('verdicts', {})
      for x in arrays.values():
        x.copy_to_host_async()
      given = first + s + 1, stage, arrays, verdicts
      self._pending.append((given, examples or self._examples))

  def flush(self) -> None:
    """Writes the arrays of the last dispatch, if that is not done yet; waits
    for it.
    """
    pending, self._pending = self._pending, []
    for given, self._examples in pending:
      step, stage, arrays, verdicts = given
      if step % self._stride():
        continue
      shown = jax.tree.map(np.asarray, arrays)
      rows = self._records(step, stage, shown, verdicts)
      self._write(step, self._within(map(records.line_of, rows)))
      if self._check:
        self._check(step, signs.shares(rows))
      if self._histogram:
        for name, values in _spread(shown).items():
          self._histogram(step, f'rollouts/{name}', values)

  def _stride(self) -> int:
    """Returns the steps between two files, from the existing files."""
    return int(np.gcd.reduce([*self._sizes])) if len(self._sizes) > 2 else 1

  def _within(self, rows: Iterable[str]) -> str:
    """Returns the first lines, up to half of the size limit, and at least
    one.
    """
    kept, room = [], self._room / 2
    for line in rows:
      room -= len(line.encode())
      if kept and room < 0:
        break
      kept.append(line)
    return ''.join(kept)

  def _write(self, step: int, text: str) -> None:
    self._folder.mkdir(exist_ok=True)
    files.write_whole(self._folder / f'{step:08d}.jsonl', text)
    self._sizes[step] = len(text.encode())
    while sum(self._sizes.values()) > self._room and len(self._sizes) > 2:
      stride = 2 * self._stride()
      for other in [s for s in self._sizes if s % stride]:
        self._remove(other)

  def _remove(self, step: int) -> None:
    del self._sizes[step]
    (self._folder / f'{step:08d}.jsonl').unlink(missing_ok=True)

  def _records(
    self, step: int, stage: str, shown: dict, verdicts: dict[int, Verdict]
  ) -> list[dict]:
    """Returns the records of R rows; rows of one problem are adjacent.

    Args:
      verdicts: of `rl.rewards`, by the numbers of rows in their step,
        `shown['row']`; rows of earlier steps, of demonstrations and of other
        processes have none.
    """
    rows = [
      {name: x[i] for name, x in shown.items()}
      for i in range(len(shown['prompt_id']))
    ]
    cases = [self._case(row) for row in rows]
    of_data = 'prompt' not in shown
    graded = self._grade and of_data and not verdicts
    second = self._grade(cases) if graded else []
    out = []
    for i, (row, (text, example)) in enumerate(zip(rows, cases)):
      own = row['sampled']
      record = records.record(
        {'prompt': example['prompt'], 'answer': example['answer']},
        number=int(row['prompt_id']),
        sample=i % self._n_samples,
        completion=text,
        length=int(own.sum()),
        truncated=bool(row['truncated']),
        step=step,
        stage=stage,
        reward=_rounded(row['reward']),
        logp=_rounded(row['logp'][own].sum()),
        entropy=_rounded(row['entropy'][own].mean()) if own.any() else 0.0,
        **self._about(row),
      )
      verdict = verdicts.get(int(row.get('row', -1)))
      if verdict is None:
        verdict = self._verdict(row, *second[i : i + 1])
      out.append(records.judged(record, self._with_env(verdict, row)))
    return out

  def _case(self, row: dict) -> tuple[str, dict]:
    """Returns the completion of a row, and its problem. If a row has its own
    prompt, the answer of the data is not its answer.
    """
    ids = row['tokens'][row['sampled']].tolist()
    example = self._examples[int(row['prompt_id'])]
    if 'prompt' in row:
      own = row['prompt'][row['prompt'] >= 0].tolist()
      example = example | {'prompt': self._tokenizer.decode(own), 'answer': ''}
    return self._tokenizer.decode(ids), example

  def _verdict(self, row: dict, second: Verdict | None = None) -> Verdict:
    """Builds the verdict of a row from the reward's arrays.

    Args:
      second: the verdict of the data's own verifier; recorded as the part
        `host` if it differs.
    """
    parts = dict(zip(self._parts, _rounded(row['reward_parts'])))
    if not row['reward_valid']:
      return Verdict(0.0, 'error', detail='the verifier failed', parts=parts)
    first = next(iter(parts.values()))
    if second is None:
      return Verdict(first, parts=parts)
    task = [parts[k] for k, reward in self._parts.items() if reward == 'task']
    if second.valid and any((x > 0.5) != (second.score > 0.5) for x in task):
      parts['host'] = second.score
    return dataclasses.replace(second, score=first, parts=parts)

  def _with_env(self, verdict: Verdict, row: dict) -> Verdict:
    """Adds the environment's part, which verdicts of `rl.rewards` lack."""
    scores = dict(zip(self._parts, _rounded(row['reward_parts'])))
    env = {k: x for k, x in scores.items() if k == PART}
    if not env:
      return verdict
    return dataclasses.replace(verdict, parts=(verdict.parts or {}) | env)

  def _about(self, row: dict) -> dict[str, Any]:
    """Returns the advantage, turns and tokens of a row."""
    real, adv = row['valid'], row['advantage']
    arrays = (x[real] for x in (row['tokens'], row['sampled'], row['turn'] + 1))
    given = self._tokenizer.decode, *(x.tolist() for x in arrays)
    turns = records.conversation(*given)
    told = {'text': self._texts(row['tokens'][real])}
    told |= {k: _rounded(row[k][real]) for k in ('logp', 'entropy')}
    ratio = np.exp(np.clip(row['logp'] - row['sampler_logp'], -20, 20))
    told['ratio'] = _rounded(np.where(row['sampled'], ratio, 1)[real])
    if 'ref_logp' in row:
      told['ref_logp'] = _rounded(row['ref_logp'][real])
    for name, usual in USUAL.items():
      if name in row and (row[name][real] != usual).any():
        told[name] = row[name][real].astype(type(usual)).tolist()
    if adv.ndim:
      own = row['sampled']
      told['advantage'] = _rounded(np.where(own, adv, 0)[real])
      adv = adv[own].mean() if own.any() else np.float32(0)
    return turns | {'advantage': _rounded(adv), 'tokens': told}

  def _texts(self, ids: np.ndarray) -> list[str]:
    """Returns the text of each token; a character of several tokens belongs
    to the last one.
    """
    if self._pieces is None:
      self._pieces = self._tokenizer.token_bytes()
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    known = len(self._pieces)
    return [decoder.decode(self._pieces[i] if i < known else b'') for i in ids]


def _spread(shown: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns samples of the finite numbers of sampled tokens and of rows, by
  name.
  """
  own = shown['sampled']
  out = {k: shown[k][own] for k in ('entropy', 'logp')}
  out |= {'length': own.sum(1), 'advantage': shown['advantage']}
  out = {k: x[np.isfinite(x)] for k, x in out.items()}
  return {k: x for k, x in out.items() if x.size}


def _rounded(x: np.ndarray) -> Any:
  """Rounds numbers to 4 decimals."""
  return np.round(np.asarray(x, np.float64), 4).tolist()
