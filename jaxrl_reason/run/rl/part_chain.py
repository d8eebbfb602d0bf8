"""The chain of parts of the rl stage, built from its configuration.

The order matters: filters select rows before rewards are shaped, the dump
records the batch as it is trained on, and problem statistics read which rows
remain. `rl.step_parts` adds user parts after the shaped rewards.
"""

from collections.abc import Mapping
from typing import Any

from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data
from jaxrl_reason.config.run import Rollouts
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.losses.imitation import REFERENCE, VERDICT
from jaxrl_reason.parts import Chain, Part
from jaxrl_reason.rewards.kernels.token_bytes import token_bytes_table
from jaxrl_reason.rollouts import filters, league, probe, progress
from jaxrl_reason.rollouts.answer_tokens import AnswerTokens
from jaxrl_reason.rollouts.archive import Archive
from jaxrl_reason.rollouts.feedback import Feedback
from jaxrl_reason.rollouts.reward_shaping import Shaping
from jaxrl_reason.run.rl import (
  hidden_settings,
  problem_pool,
  reward_functions,
  role_settings,
  verdict_settings,
)
from jaxrl_reason.run.rl.problem_pool import Facts
from jaxrl_reason.run.rl.temperature_control import TemperatureControl
from jaxrl_reason.update import refresh
from jaxrl_reason.update.rollout_dump import RolloutDump
from jaxrl_reason.verifiers import resolve


def make(
  c: RL,
  d: Data,
  kept: Rollouts,
  trainable: str,
  tx,
  facts: Facts,
  model: Model,
  tokenizer: Any = None,
) -> Chain:
  """Builds the chain of the rl stage.

  Args:
    kept: samples in workdir/rollouts.
    trainable: regex over the paths of the parameters that are trained.
    tx: the policy's optimizer, which a reset of the reference may reinitialize.
    facts: of the problems of the pool.
    model: the policy's functions, whose hidden states a probe reads.
    tokenizer: encodes the question of verdicts, and finds final answers.
  """
  n, room = len(facts.source), d.completion_len
  start, objective = d.prompt_len + c.hints.room, c.objective(room)
  t, asks = c.temperature_control, objective.likelihood_on(VERDICT)
  unsampled = c.propose or c.league.share  # rows not of the policy
  selects = c.filter != 'none' or c.overlong or unsampled
  parts = (
    _selection(c, room) if selects else None,
    _shaping(c, room, n) if c.shaping.terms else None,
    role_settings.rewards(c, objective) if c.roles or c.role_decay else None,
    role_settings.part(c) if c.role_adapters else None,
    Archive(c.archive, c.samples, start, room, n) if c.archive else None,
    _probe(c, model) if c.probe.rate else None,
    *_own(c.step_parts),
    _feedback(c, start, tokenizer) if c.teacher.prompt else None,
    _answer_tokens(c, start, objective, tokenizer),
    _rollout_dump(kept, c) if kept.every else None,
    progress.Progress(c.hints.room > 0) if _keeps_progress(c) else None,
    problem_pool.statistics(d, facts) if d.has_pool else None,
    _refresh(c, trainable, tx) if c.reference.moves else None,
    _league(c, model, trainable) if c.league.share else None,
    _temperature_control(c, n) if t.entropy or t.residual else None,
    # It adds columns to rows, which no other part expects.
    verdict_settings.part(c, d, model, tokenizer) if asks else None,
  )
  return Chain(tuple(part for part in parts if part is not None))


def _selection(c: RL, completion_len: int) -> filters.Selection:
  chosen = filters.make(c.filter, c.filter_args)
  if c.propose or c.league.share:  # rows that the policy has not sampled
    chosen = filters.in_turn([filters.keep_sampled, chosen])
  return filters.Selection(chosen, c.overlong, completion_len)


def _shaping(c: RL, completion_len: int, n_problems: int) -> Shaping:
  terms = {
    k: tuple(v) if isinstance(v, list) else v
    for k, v in c.shaping.to_dict().items()
  }
  sizes = c.samples, completion_len, n_problems
  return Shaping(*sizes, **terms)


def _probe(c: RL, model: Model) -> probe.Probe:
  (width,) = model.specs['final_norm'].shape
  states = hidden_settings.states(c, model)
  width *= len(states.layers)
  return probe.Probe(states, width, **c.probe.to_dict())


def _own(parts: Mapping) -> list[Part]:
  """Builds the parts that `rl.step_parts` names.

  Raises:
    ValueError: names the key of a part that cannot be built.
  """
  made = []
  for name, settings in parts.items():
    key = f'rl.step_parts.{name}'
    if not isinstance(settings, dict) or 'part' not in settings:
      raise ValueError(
        f'{key}={settings!r}: must be a section such as '
        "dict(part='my_recipe.py:MyPart', kwargs=dict(weight=0.1))"
      )
    try:
      part = resolve.load(settings['part'])(**settings.get('kwargs', {}))
    except (resolve.RewardError, TypeError) as e:
      raise ValueError(f'{key}.part={settings["part"]!r}: {e}') from e
    if not isinstance(part, Part):
      raise ValueError(
        f'{key}.part={settings["part"]!r} is no jaxrl_reason.parts.Part'
      )
    object.__setattr__(part, 'name', name)
    made.append(part)
  return made


def _answer_tokens(
  c: RL, start: int, objective, tokenizer
) -> AnswerTokens | None:
  if not reward_functions.reads_reasoning_only(c):
    return None
  puts = objective.likelihood_on(REFERENCE)
  if objective.likelihood and not puts:
    return None
  return AnswerTokens(start, token_bytes_table(tokenizer)[0], puts)


def _feedback(c: RL, start: int, tokenizer) -> Feedback | None:
  names = informed_prompts.fields(c.teacher.prompt)
  if not names:
    return None
  return Feedback(start, tuple(tokenizer.eos_ids), 'sample' in names)


def _rollout_dump(kept: Rollouts, c: RL) -> RolloutDump:
  problems = min(kept.problems, c.prompts)
  return RolloutDump(kept.every, problems, c.samples, bool(c.propose))


def _keeps_progress(c: RL) -> bool:
  """Returns whether any setting of the rl section depends on the progress."""
  scheduled = reward_functions.is_scheduled(c.rewards)
  return bool(scheduled or c.hints.room or c.reference.patience)


def _refresh(c: RL, trainable: str, tx) -> refresh.Refresh:
  return refresh.Refresh(**c.reference.to_dict(), tx=tx, trainable=trainable)


def _league(c: RL, model: Model, trainable: str) -> league.League:
  return league.League(
    **c.league.to_dict(), specs=model.specs, trainable=trainable
  )


def _temperature_control(c: RL, n_problems: int) -> TemperatureControl:
  settings = c.temperature_control.to_dict()
  return TemperatureControl(
    **settings, first=c.temperature, n_problems=n_problems
  )
