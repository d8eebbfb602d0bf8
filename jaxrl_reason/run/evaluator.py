"""Evaluates the held-out and harder splits while a run trains."""

import time
from collections.abc import Callable
from typing import Any

from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data
from jaxrl_reason.evals import accuracy
from jaxrl_reason.logits import Sampling
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.process.compile_log import Waiting
from jaxrl_reason.run.records import evaluation_files as evaluations
from jaxrl_reason.run.records.journal import say
from jaxrl_reason.run.rl import generation_settings
from jaxrl_reason.run.rl import python_tools as hosted
from jaxrl_reason.run.rl import reward_functions as rewarding
from jaxrl_reason.run.rl import turn_settings as turns

PROMPT = 200  # characters of a prompt that reports show


class Evaluator:
  """Evaluates parameters, and keeps the text of the last evaluation."""

  def __init__(
    self,
    parts: Prepared,
    workdir: epath.Path,
    programs: dict[int, Callable] | None = None,
  ):
    """Args: programs: as `accuracy.Evaluation` shares them."""
    config, problems = parts.config, parts.problems
    c, d, rl, tokenizer = config.eval, config.data, config.rl, parts.tokenizer
    grade = rewarding.grader(rl, problems)
    self._show, self._workdir = c.show, workdir
    self.said = ''  # of the last evaluation, on process 0
    how, encoders, player = None, {'': None}, None
    self._tools = None
    if rl.plays_on_host:
      self._tools = hosted.Pool(rl.turns)
      player = self._playing(rl, d, parts.model, tokenizer, parts.mesh)
    elif rl.turns.env:
      how = turns.scored(rl, d, tokenizer, problems.kernel)
      encoders = turns.encoders(rl, how)
      if turns.is_chain(rl):
        grade = turns.graded
    self._evaluate = accuracy.Evaluation(
      parts.evaluated,
      parts.stop,
      n_samples=c.samples,
      max_new=d.completion_len,
      sampling=Sampling.fixed(
        c.temperature, automaton=generation_settings.grammar(rl, tokenizer)
      ),
      rows=c.rows(rl),
      mesh=parts.mesh,
      tokenizer=tokenizer,
      grade=grade,
      # The same noise at every evaluation, so that curves show the policy's
      # changes.
      key=trees.named_key(parts.root, 'evaluation'),
      how=how,
      programs=programs,
      player=player,
      chunks=generation_settings.chunks_of(rl, d),
    )
    splits = {'heldout': problems.heldout}
    for name, source in problems.heldout_by_source.items():
      splits[f'heldout/{name}'] = source
    if c.harder and problems.harder is not None:
      splits['harder'] = problems.harder
    self._sets = {
      name + kind: accuracy.make_set(
        split, c.problems, tokenizer, d.prompt_len, encode, bool(player)
      )
      for name, split in splits.items()
      for kind, encode in encoders.items()
    }

  def _playing(
    self, rl: RL, data: Data, model: Model, tokenizer: Any, mesh
  ) -> Callable:
    """Returns a function from n_samples to a player of that many episodes per
    prompt.
    """

    def make(n_samples: int) -> Callable:
      play = hosted.player(
        rl,
        data,
        model,
        tokenizer,
        self._tools,
        n_samples=n_samples,
        weight=1.0,
        mesh=mesh,
      )

      def generate(params, tokens, valid, ids, sampling, key, stop, examples):
        given = params, tokens, valid, examples, key, sampling, stop, ids
        return play(*given)

      return generate

    return make

  def __call__(
    self,
    params,
    total: int,
    stage: str,
    stopped: Callable[[], bool] = bool,
  ) -> dict[str, float] | None:
    """Returns metrics by full name, and records samples of the answers.

    Args:
      total, stage: recorded with the samples.
      stopped: called between problems; True ends the evaluation, of which then
        nothing is recorded, and the result is None.
    """
    start = time.monotonic()
    found = self._of_all_sets(params, stopped)
    if self._tools is not None:
      self._tools.close()  # started for one evaluation
    if found is None:
      return None
    if hosts.is_main():
      rows = found['heldout'][1]
      shown = [row for row in rows if row['problem'] < self._show]
      self.said = evaluations.write_samples(self._workdir, shown, total, stage)
      counts = {k: evaluations.counted(rows) for k, (_, rows) in found.items()}
      evaluations.write(self._workdir, counts, total, stage)
      prompts = {
        name: [str(e['prompt'])[:PROMPT] for e in s.examples]
        for name, s in self._sets.items()
      }
      evaluations.write_problems(self._workdir, prompts, total)
    out = {
      f'eval/{name}/{k}': v
      for name, (values, _) in found.items()
      for k, v in values.items()
    }
    return out | {'perf/eval_s': time.monotonic() - start}

  def _of_all_sets(self, params, stopped) -> dict[str, tuple] | None:
    """Returns (values, rows) by the name of the set; None if stopped."""
    found = {}
    for name, problems in self._sets.items():
      with Waiting(f'evaluating {name} (the first time: compiling)', say):
        found[name] = self._evaluate(params, problems, self._show, stopped)
      if found[name] is None:
        return None
    return found
