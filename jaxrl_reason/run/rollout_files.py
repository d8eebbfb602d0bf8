"""Rollouts of training on disk: `rollouts/<step>.jsonl`, records
(`rewards.records`) of the first problems of a batch, every token with what the
update made of it.

A file is of the update that made the run's step `<step>`, and is written whole:
a resumed run drops those past its checkpoint and writes them again. Arrays are
read one dispatch late, so the device never waits. Where all files together
would be larger than `rollouts.mib`, every second one goes, and from then on
only every second one is written: what is left covers the whole run evenly.
"""

import codecs
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import ml_collections
import numpy as np
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.base import Metrics
from jaxrl_reason.checkpoints import files
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.rewards import records
from jaxrl_reason.rewards.verdict import Verdict
from jaxrl_reason.run import lines, turns

# Of these, a token is told where they are not those of every token.
USUAL = {'sampled': True, 'trained': True, 'turn': 0}


class RolloutFiles:
  """Writes what the programs of steps show (`update.shown`); on process 0."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: epath.Path,
    problems: Problems,
    tokenizer: Any,
    resume_step: int | None,
    grade: Callable[[list[tuple[str, dict]]], list[Verdict]] | None = None,
    histogram: Callable[[int, str, np.ndarray], None] | None = None,
  ):
    """Args:
    resume_step: files past it go; None: the run begins, and what another has
      left is moved aside.
    grade: a second opinion on what kernels have judged, which also tells the
      answer found; None: there is none.
    histogram: takes (step, name, numbers) of what is kept, or None.
    """
    c = config.rollouts
    self._every, self._room = c.every, c.mib * 2**20
    self._folder, self._pending = workdir / 'rollouts', []
    self._examples, self._tokenizer = problems.train, tokenizer
    self._n_samples, self._grade = config.rl.samples, grade
    self._histogram = histogram
    rewards = config.rl.rewards.to_dict()  # an environment's is none of them
    self._parts = {
      k: rewards.get(k, {}).get('reward', k)
      for k in turns.part_names(config.rl)
    }
    self._pieces = self._sizes = None
    if hosts.is_main():
      self._open(resume_step)

  def _open(self, resume_step: int | None) -> None:
    if resume_step is None and self._folder.exists():
      lines.move_aside(self._folder)
    found = list(self._folder.glob('*.jsonl')) if self._folder.exists() else []
    self._sizes = {int(p.stem): p.stat().length for p in found}
    for step in [s for s in self._sizes if s > (resume_step or 0)]:
      self._remove(step)

  def note(
    self, first: int, stage: str, shown: Metrics | None, examples=None
  ) -> None:
    """Writes what was noted before, and keeps a dispatch that was just queued.

    Args:
      first: steps made before it.
      shown: its arrays, [R,...] of one step or [K,R,...]; None: it has none.
      examples: problems by id, of a pool that moves; None: those of train.
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
    """Writes what was noted last, if that is not done yet; waits for it."""
    pending, self._pending = self._pending, []
    for given, self._examples in pending:
      step, stage, arrays, verdicts = given
      if step % self._stride():
        continue
      shown = jax.tree.map(np.asarray, arrays)
      rows = self._records(step, stage, shown, verdicts)
      self._write(step, self._within(map(records.line_of, rows)))
      if self._histogram:
        for name, values in _spread(shown).items():
          self._histogram(step, f'rollouts/{name}', values)

  def _stride(self) -> int:
    """Steps between two files, as those that are there tell."""
    return int(np.gcd.reduce([*self._sizes])) if len(self._sizes) > 2 else 1

  def _within(self, rows: Iterable[str]) -> str:
    """The first lines, as many as half of the room takes, and at least one."""
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
    """The records of R rows, rows of one problem adjacent."""
    rows = [
      {name: x[i] for name, x in shown.items()}
      for i in range(len(shown['prompt_id']))
    ]
    cases = [self._case(row) for row in rows]
    second = self._grade(cases) if self._grade and not verdicts else []
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
      verdict = verdicts.get(i) or self._verdict(row, *second[i : i + 1])
      out.append(records.judged(record, verdict))
    return out

  def _case(self, row: dict) -> tuple[str, dict]:
    """The completion of a row, and its problem."""
    ids = row['tokens'][row['sampled']].tolist()
    return self._tokenizer.decode(ids), self._examples[int(row['prompt_id'])]

  def _verdict(self, row: dict, second: Verdict | None = None) -> Verdict:
    """What the reward's arrays say: a kernel tells no more.

    Args:
      second: what the data's own verifier says; a part `host`, if it says the
        opposite.
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

  def _about(self, row: dict) -> dict[str, Any]:
    """Advantage and tokens of a row."""
    real, adv = row['valid'], row['advantage']
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
    return {'advantage': _rounded(adv), 'tokens': told}

  def _texts(self, ids: np.ndarray) -> list[str]:
    """The text of each token: a character of several tokens is the last's."""
    if self._pieces is None:
      self._pieces = self._tokenizer.token_bytes()
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    known = len(self._pieces)
    return [decoder.decode(self._pieces[i] if i < known else b'') for i in ids]


def _spread(shown: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Numbers of sampled tokens and of rows by name, some of each."""
  own = shown['sampled']
  out = {k: shown[k][own] for k in ('entropy', 'logp')}
  out |= {'length': own.sum(1), 'advantage': shown['advantage']}
  return {k: x.ravel() for k, x in out.items() if x.size}


def _rounded(x: np.ndarray) -> Any:
  """Numbers as short as they are told."""
  return np.round(np.asarray(x, np.float64), 4).tolist()
