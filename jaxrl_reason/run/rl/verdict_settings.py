"""The policy as a verifier of its completions (`rl.verdict`), and its rules."""

import dataclasses
from typing import Any

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.config.rl_sections import VerdictText
from jaxrl_reason.config.unread import changed
from jaxrl_reason.losses.imitation import VERDICT
from jaxrl_reason.rollouts import own_verdicts
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run.rl import chunk_settings as chunks
from jaxrl_reason.run.rl.teachers import SAME
from jaxrl_reason.update import packing
from jaxrl_reason.update.learner import Learner


def is_on(objective: losses.Objective) -> bool:
  """Returns whether the loss trains on verdict tokens."""
  return objective.likelihood_on(VERDICT)


def part(
  c: RL, d: Data, objective: losses.Objective, model: Model, tokenizer: Any
) -> Verdicts | None:
  """Builds the part that adds questions to rows, or returns None.

  Raises:
    ValueError: names the key of a text that the tokenizer cannot encode, of a
      verdict that is not one token, or of packed rows that are too short.
  """
  if not is_on(objective):
    return None
  texts, parts = c.verdict.to_dict(), c.minibatches * c.micro_batches
  made = own_verdicts.made(texts, model, tokenizer, parts=parts)
  packed = packing.choose(c, 1)
  longest = d.prompt_len + c.hints.room + d.completion_len + made.columns
  if isinstance(packed, packing.Packing) and packed.length < longest:
    raise ValueError(
      f'rl.padding={c.padding!r} is less than {longest}, the longest sequence '
      f'with the {made.columns} tokens of rl.verdict'
    )
  return made


def rewards(c: RL) -> bool:
  """Returns whether a reward is the verdict of a model."""
  return any(r.get('reward') == VERDICT for r in c.rewards.values())


def judge(c: RL, learn: Learner, tokenizer: Any) -> Verdicts | None:
  """Returns the question to the model that answers for the reward 'verdict', or
  None.
  """
  if not rewards(c):
    return None
  taught = c.verdict.by == 'teacher'
  model = learn.teacher.model if taught else learn.model
  return own_verdicts.made(c.verdict.to_dict(), model, tokenizer)


def with_judge(views: Views, c: RL, learn: Learner, tokenizer: Any) -> Views:
  """Adds the model that answers for the reward 'verdict', if there is one."""
  asks = judge(c, learn, tokenizer)
  if asks is None:
    return views
  taught = c.verdict.by == 'teacher'
  return dataclasses.replace(
    views, verdict=asks.probability, asks_teacher=taught
  )


def verdict_rules(c: RL, d: Data, objective: losses.Objective) -> rules.Rows:
  """Refuses texts that nothing reads, and settings without rows to ask
  about.
  """
  on, judged = is_on(objective), rewards(c)
  key, value, default = next(changed(c.verdict, VerdictText()), 3 * ('',))
  taught = c.verdict.by == 'teacher'
  return (
    (
      key and not (on or judged),
      f'rl.verdict{key}={value!r} has no effect without rl.loss.sft_on='
      f'{VERDICT!r} and rl.loss.sft_coef above 0, or a reward {VERDICT!r}: set '
      f'those, or {default!r}',
    ),
    rules.choice('rl.verdict.by', c.verdict.by, ('policy', 'teacher')),
    (
      taught and not judged,
      f"rl.verdict.by='teacher' has no effect without a reward {VERDICT!r}: "
      "set it to 'policy'",
    ),
    (
      taught and (not c.teacher.weights or c.teacher.weights in SAME),
      f"rl.verdict.by='teacher' and rl.teacher.weights={c.teacher.weights!r}: "
      'name weights of its own, a run, a folder or hf:owner/model',
    ),
    (
      (on or judged) and c.verdict.yes == c.verdict.no,
      f'rl.verdict.yes={c.verdict.yes!r} and rl.verdict.no={c.verdict.no!r}: '
      'choose two texts that differ',
    ),
    (
      (on or judged) and not c.verdict.ask,
      "rl.verdict.ask='': set it to the question after a completion",
    ),
    *rules.apart(
      f' and rl.loss.sft_on={VERDICT!r}, or a reward {VERDICT!r}, cannot be '
      'combined: the question is after one whole completion; set one of them '
      'to its default',
      rl__turns__env=(on or judged) and c.turns.env,
      rl__chunks__tokens=(on or judged)
      and chunks.of(c, d) is not None
      and c.chunks.tokens,
      rl__replay_routes=on and c.replay_routes,
    ),
  )
