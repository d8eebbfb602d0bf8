"""The policy as a verifier of its completions (`rl.verdict`), and its rules."""

import dataclasses
from typing import Any

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.config.rl_sections import VerdictText
from jaxrl_reason.config.unread import changed
from jaxrl_reason.losses.imitation import VERDICT
from jaxrl_reason.rewards.kernels.asked import ANSWER
from jaxrl_reason.rollouts import own_verdicts
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run.rl import chunk_settings as chunks
from jaxrl_reason.run.rl.teachers import SAME
from jaxrl_reason.update import packing
from jaxrl_reason.update.learner import Learner

# Fields of other texts, which a question may not have. Other braces are kept.
NOT_REPLACED = tuple(
  f'{{{name}}}'
  for name in 'prompt question solution completion verdict sample'.split()
)


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


def questions(c: RL) -> dict[str, str]:
  """Returns the question of each reward part that is the verdict of a model."""
  return {
    name: part.get('kwargs', {}).get('ask', c.verdict.ask)
    for name, part in c.rewards.items()
    if part.get('reward') == VERDICT
  }


def with_questions(c: RL) -> dict[str, dict]:
  """Returns `rl.rewards` with the question of each verdict in its kwargs."""
  asks = questions(c)

  def of(name, part):
    kwargs = dict(part.get('kwargs', {})) | {'ask': asks[name]}
    return dict(part) | {'kwargs': kwargs}

  return {k: of(k, x) if k in asks else x for k, x in c.rewards.items()}


def judges(
  c: RL, learn: Learner, tokenizer: Any, max_new: int
) -> dict[str, tuple[str, Verdicts]]:
  """Returns, for each question of the rewards 'verdict', the first reward part
  with this question, and the `Verdicts` that compute its answers.

  Args:
    max_new: C.
  """
  taught, out = c.verdict.by == 'teacher', {}
  for part, ask in questions(c).items():
    if ask not in out:
      model = learn.teacher.model if taught else learn.model
      texts, key = c.verdict.to_dict() | {'ask': ask}, _key(c, part)
      more = dict(keys={'ask': key}, max_new=max_new)
      out[ask] = part, own_verdicts.made(texts, model, tokenizer, **more)
  return out


def with_judge(
  views: Views, c: RL, learn: Learner, tokenizer: Any, max_new: int
) -> Views:
  """Adds the model that answers for the rewards 'verdict', if there is one."""
  found = judges(c, learn, tokenizer, max_new)
  asked = {ask: (part, made.probability) for ask, (part, made) in found.items()}
  taught = bool(found) and c.verdict.by == 'teacher'
  return dataclasses.replace(views, verdict=asked, asks_teacher=taught)


def _keys(c: RL, on: bool) -> list[tuple[str, Any]]:
  """Lists (key of the config with its value, question) of all questions."""
  every = {_key(c, part): ask for part, ask in questions(c).items()}
  every |= {'rl.verdict.ask': c.verdict.ask} if on else {}
  return [(f'{key}={ask!r}', ask) for key, ask in every.items()]


def _key(c: RL, part: str) -> str:
  """Returns the key of the config with the question of a reward part."""
  own = 'ask' in c.rewards[part].get('kwargs', {})
  return f'rl.rewards.{part}.kwargs.ask' if own else 'rl.verdict.ask'


def _wrong(ask: Any) -> str:
  """Returns the reason why a question is refused, or ''."""
  if not isinstance(ask, str) or not ask:
    return 'set it to the question after a completion'
  others = [name for name in NOT_REPLACED if name in ask]
  if others:
    return f'{others[0]} is not replaced, only {ANSWER}'
  return ''


def verdict_rules(c: RL, d: Data, objective: losses.Objective) -> rules.Rows:
  """Refuses texts that nothing reads, and settings without rows to ask
  about.
  """
  on, asks = is_on(objective), questions(c)
  judged = bool(asks)
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
      c.verdict.ask != VerdictText().ask
      and not on
      and asks
      and c.verdict.ask not in asks.values(),
      f'rl.verdict.ask={c.verdict.ask!r} has no effect: every reward '
      f'{VERDICT!r} has its own kwargs.ask',
    ),
    (
      on and ANSWER in c.verdict.ask,
      f'rl.verdict.ask={c.verdict.ask!r} and rl.loss.sft_on={VERDICT!r} cannot '
      f'be combined: the rows of the update have no reference answer; leave '
      f'{ANSWER} out, or put the question into kwargs.ask of a reward',
    ),
    *((_wrong(ask), f'{key}: {_wrong(ask)}') for key, ask in _keys(c, on)),
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
