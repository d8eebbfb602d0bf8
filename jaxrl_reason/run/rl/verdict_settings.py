"""The policy as a verifier of its completions (`rl.verdict`), and its rules."""

import dataclasses
from typing import Any

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.config.rl_sections import VerdictText
from jaxrl_reason.config.unread import changed
from jaxrl_reason.losses.imitation import VERDICT
from jaxrl_reason.rewards.kernels.asked import (
  ANSWER,
  CRITERION,
  OTHER,
  THOUGHT,
  Question,
)
from jaxrl_reason.rollouts import judging, own_verdicts
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run.rl import generation_settings
from jaxrl_reason.run.rl.teachers import SAME
from jaxrl_reason.update import packing
from jaxrl_reason.update.learner import Learner

# Fields of other texts, which a question may not have. Other braces are kept.
NOT_REPLACED = tuple(
  f'{{{name}}}'
  for name in 'prompt question solution completion verdict sample'.split()
)


def part(c: RL, d: Data, model: Model, tokenizer: Any) -> Verdicts:
  """Builds the part that adds questions to rows.

  Raises:
    ValueError: names the key of a text that the tokenizer cannot encode, of a
      verdict that is not one token, or of packed rows that are too short.
  """
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


def questions(c: RL) -> dict[str, Question]:
  """Returns the question of each reward part that is the verdict of a model."""
  own = {
    name: {'ask': c.verdict.ask} | dict(part.get('kwargs', {}))
    for name, part in c.rewards.items()
    if part.get('reward') == VERDICT
  }
  # `device.make` refuses other arguments.
  known = Question._fields
  return {
    name: Question(**{k: v for k, v in kwargs.items() if k in known})
    for name, kwargs in own.items()
  }


def with_questions(c: RL) -> dict[str, dict]:
  """Returns `rl.rewards` with the question of each verdict in its kwargs."""
  asks = questions(c)

  def of(name, part):
    kwargs = dict(part.get('kwargs', {})) | asks[name]._asdict()
    return dict(part) | {'kwargs': kwargs}

  return {k: of(k, x) if k in asks else x for k, x in c.rewards.items()}


def judges(
  c: RL, learn: Learner, tokenizer: Any, max_new: int
) -> dict[Question, judging.Judge]:
  """Returns the judge of each question of the rewards 'verdict'.

  Args:
    max_new: C.
  """
  taught, out = c.verdict.by == 'teacher', {}
  model = learn.teacher.model if taught else learn.model
  for part, asked in questions(c).items():
    if asked not in out:
      texts, key = c.verdict.to_dict() | {'ask': asked.ask}, _key(c, part)
      made = own_verdicts.made(texts, model, tokenizer, keys={'ask': key})
      widths = judging.widths(asked, tokenizer, max_new)
      made = dataclasses.replace(made, room=sum(widths))
      ends = tuple(tokenizer.eos_ids)
      out[asked] = judging.Judge(asked, part, made, ends, widths)
  return out


def with_judge(
  views: Views, c: RL, learn: Learner, tokenizer: Any, max_new: int
) -> Views:
  """Adds the model that answers for the rewards 'verdict', if there is one."""
  found = judges(c, learn, tokenizer, max_new)
  taught = bool(found) and c.verdict.by == 'teacher'
  return dataclasses.replace(views, verdict=found, asks_teacher=taught)


def _keys(c: RL, on: bool) -> list[tuple[str, Any]]:
  """Lists (key of the config with its value, question) of all questions."""
  every = {_key(c, part): asked.ask for part, asked in questions(c).items()}
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
    known = ', '.join((ANSWER, CRITERION, OTHER, THOUGHT))
    return f'{others[0]} is not replaced, only {known}'
  twice = [place for place in (OTHER, THOUGHT) if ask.count(place) > 1]
  return f'{twice[0]} may stand there once' if twice else ''


def comparison_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses comparisons within groups that have nothing to compare, and
  numbers of a question without its place.
  """
  asks = questions(c)
  pairs = {x: q for x, q in asks.items() if OTHER in str(q.ask)}
  one = next(iter(pairs), '')
  key = f'rl.rewards.{one}.kwargs.ask with {OTHER}'
  return (
    *(
      (
        place in c.verdict.ask,
        f'rl.verdict.ask={c.verdict.ask!r}: {place} is only replaced in '
        'kwargs.ask of a reward',
      )
      for place in (OTHER, CRITERION, THOUGHT)
    ),
    (
      pairs and c.samples == 1,
      f'rl.samples=1: {key} compares the samples of a problem; use 2 or more',
    ),
    (
      pairs and 'greedy_reward' in losses.needs(objective),
      f'{key} and rl.algorithm={c.algorithm!r}: its greedy completion has no '
      'other to be compared with; choose another algorithm',
    ),
    (
      pairs and c.demos_after,
      f'{key} and rl.demos={c.demos} after failed groups: a reference solution '
      'has no other to be compared with; set rl.demos=0',
    ),
    *(row for part, q in asks.items() for row in _number_rules(c, part, q)),
  )


# Numbers of a question, and the place without which they have no effect.
PLACE_OF = {
  'rivals': OTHER,
  'criteria': CRITERION,
  'criterion_len': CRITERION,
  'thought_len': THOUGHT,
}


def _is_count(n: Any) -> bool:
  return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _number_rules(c: RL, part: str, asked: Question) -> rules.Rows:
  """Refuses numbers of a question that are none, or that nothing reads."""
  ask, start = str(asked.ask), f'rl.rewards.{part}.kwargs.'
  numbers = {name: getattr(asked, name) for name in PLACE_OF}
  wrong = [x for x in numbers.items() if not _is_count(x[1])]
  name, n = next(iter(wrong), ('', 0))
  default = Question._field_defaults
  if wrong:
    asked = Question(ask)
  return (
    (wrong, f'{start}{name}={n!r}: set it to a whole number from 0'),
    *(
      (
        n != default[name] and PLACE_OF[name] not in ask,
        f'{start}{name}={n} has no effect: the question lacks '
        f'{PLACE_OF[name]}; set it to {default[name]}',
      )
      for name, n in numbers.items()
    ),
    (
      CRITERION in ask and not (asked.criteria and asked.criterion_len),
      f'{start}criteria={asked.criteria} and criterion_len='
      f'{asked.criterion_len}: {CRITERION} needs both; set criteria to the '
      'most items of the rubric of a problem',
    ),
    (
      THOUGHT in ask and not asked.thought_len,
      f'{start}thought_len=0: {THOUGHT} needs the largest number of its tokens',
    ),
    (
      asked.rivals >= c.samples,
      f'{start}rivals={asked.rivals} and rl.samples={c.samples}: set it to '
      'less than rl.samples, or 0',
    ),
  )


def verdict_rules(c: RL, d: Data, objective: losses.Objective) -> rules.Rows:
  """Refuses texts that nothing reads, and settings without rows to ask
  about.
  """
  on, asks = objective.likelihood_on(VERDICT), questions(c)
  if not on and not asks:
    key, value, default = next(changed(c.verdict, VerdictText()), 3 * ('',))
    unread = (
      f'rl.verdict{key}={value!r} has no effect without rl.loss.sft_on='
      f'{VERDICT!r} and rl.loss.sft_coef above 0, or a reward {VERDICT!r}: set '
      f'those, or {default!r}'
    )
    return ((key, unread),)
  taught = c.verdict.by == 'teacher'
  return (
    rules.choice('rl.verdict.by', c.verdict.by, ('policy', 'teacher')),
    (
      taught and not asks,
      f"rl.verdict.by='teacher' has no effect without a reward {VERDICT!r}: "
      "set it to 'policy'",
    ),
    (
      taught and (not c.teacher.weights or c.teacher.weights in SAME),
      f"rl.verdict.by='teacher' and rl.teacher.weights={c.teacher.weights!r}: "
      'name weights of its own, a run, a folder or hf:owner/model',
    ),
    (
      c.verdict.yes == c.verdict.no,
      f'rl.verdict.yes={c.verdict.yes!r} and rl.verdict.no={c.verdict.no!r}: '
      'choose two texts that differ',
    ),
    (
      c.verdict.ask != VerdictText().ask
      and not on
      and asks
      and all('ask' in c.rewards[part].get('kwargs', {}) for part in asks),
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
      rl__turns__env=c.turns.env,
      rl__chunks__tokens=generation_settings.chunks_of(c, d) is not None
      and c.chunks.tokens,
      rl__replay_routes=on and c.replay_routes,
    ),
    *comparison_rules(c, objective),
  )
