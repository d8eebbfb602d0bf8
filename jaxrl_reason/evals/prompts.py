"""Variants of the prompt of a problem, by name.

own                 the prompt of the model's run; for a folder its chat
                    template, or `boxed` without one; a published suite
                    asks in its own words
none qa boxed r1_zero chat        the templates of `data.chat`
TEMPLATE+plan       requests a plan before the solution
TEMPLATE+hint=0.3   the model continues the first 30 % of the reference
                    solution
TEMPLATE+shots=4    four solved problems of the suite's train split come first
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_reason.data import chat, mixture, rendering
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.evals import loading, suites
from jaxrl_reason.evals.loading import Loaded
from jaxrl_reason.names import choice
from jaxrl_reason.verifiers import named_code

OWN, CHAT = 'own', 'chat'
PLAN = '\nFirst write a short plan, then carry it out step by step.'
KEYS = ('plan', 'hint=SHARE', 'shots=N')


@dataclasses.dataclass(frozen=True)
class Variant:
  """A variant of prompts; see the module."""

  name: str
  template: str
  plan: bool = False
  hint: float = 0.0
  shots: int = 0


def parse(text: str) -> Variant:
  """Returns the variant of that name.

  Raises:
    ValueError: names the unknown part.
  """
  template, *more = text.split('+')
  known = (OWN, CHAT, *chat.PLAIN)
  if template not in known:
    raise ValueError(choice('--prompt', template, known))
  found: dict[str, Any] = {}
  for part in more:
    key, _, value = part.partition('=')
    if part == 'plan':
      found['plan'] = True
    elif key == 'hint' and _is_share(value):
      found['hint'] = float(value)
    elif key == 'shots' and value.isdecimal() and int(value):
      found['shots'] = int(value)
    else:
      raise ValueError(
        f'prompt {text!r}: +{part} is none of +{", +".join(KEYS)} (a share '
        'between 0 and 1, a whole number)'
      )
  if found.get('shots') and template in (OWN, CHAT):
    raise ValueError(f'prompt {text!r}: +shots needs one of {[*chat.PLAIN]}')
  return Variant(text, template, **found)


def _is_share(text: str) -> bool:
  try:
    return 0 < float(text) < 1
  except ValueError:
    return False


@dataclasses.dataclass(frozen=True)
class Written:
  """Attributes:
  ids: tokens of every prompt; stop: tokens that end a completion.
  """

  ids: list[list[int]]
  stop: tuple[int, ...]


def write(
  variant: Variant,
  found: Loaded,
  suite: suites.Suite,
  *,
  system: str = '',
  thinking: bool | None = None,
) -> Written:
  """Encodes the prompts of a suite for a model.

  Args:
    system, thinking: of chat templates.

  Raises:
    ValueError: the model or the suite lacks a part that the variant needs, or
      the tokenizer lacks a character; names the problem.
  """
  tokenizer, stop = found.tokenizer, tuple(found.tokenizer.eos_ids)
  render, is_chat = _renderer(variant, found, suite, system, thinking)
  if not is_chat or (variant.template == OWN and found.run is not None):
    _refuse_chat_flags(variant, found, system, thinking)
  if is_chat:
    end = chat.turn_end(
      chat.load(found.texts, loading.day_of(found.run)), tokenizer
    )
    stop = stop if end is None or end in stop else (*stop, end)
  ids = []
  for i, example in enumerate(suite.examples):
    try:
      text = render(_asked(variant, example)) + _given(variant, example)
      row = list(tokenizer.encode(text))
    except ValueError as e:
      raise ValueError(f'{suite.name}, problem {i}: {e}') from e
    if not row:
      raise ValueError(f'{suite.name}, problem {i}: its prompt is empty')
    ids.append(row)
  return Written(ids, stop)


def template_of(variant: Variant, model: str, run: Any) -> dict[str, str]:
  """Returns the settings of the chat template that prompts may be in; {}: plain
  prompts, and those of a run, whose data fixes the template and the date.

  Args:
    model: its full name; run: the config of its run, or None.
  """
  own = variant.template == OWN and run is None
  if not own and variant.template != CHAT:
    return {}
  day, texts = loading.day_of(run), loading.texts_of(model)
  try:
    return chat.settings_of(chat.load(texts, day)) if texts else {'day': day}
  except ValueError:  # no template: `write` does without it, or refuses
    return {'day': day}


def _refuse_chat_flags(variant: Variant, found: Loaded, system, thinking):
  given = {'--system': bool(system), '--thinking': thinking is not None}
  for flag in (flag for flag, is_set in given.items() if is_set):
    raise ValueError(
      f'{flag} has no effect on the prompt {variant.name!r} of {found.name}: '
      'it needs the prompt chat'
    )


def _asked(variant: Variant, example: dict) -> dict:
  return example | {'prompt': example['prompt'] + PLAN * variant.plan}


def _given(variant: Variant, example: dict) -> str:
  """Returns the part of the reference solution that the model continues."""
  if not variant.hint:
    return ''
  solution = example.get('solution') or ''
  if solution == example['answer'] or not solution:
    raise ValueError('+hint needs a worked solution (?solution=FIELD)')
  words = solution.split(' ')
  given = words[: int(len(words) * variant.hint)]
  return ''.join(f'{word} ' for word in given)


def _renderer(
  variant: Variant, found: Loaded, suite: suites.Suite, system, thinking
) -> tuple[Callable[[dict], str], bool]:
  """Returns (example -> text, whether it is the model's chat template)."""
  name = variant.template
  if name == OWN and found.run is not None:
    return _as_trained(found)
  if name == OWN:
    plain = 'none' if suite.asks else 'boxed'
    name = CHAT if _has_chat(found) else plain
  instructs = suite.asks and variant.template in (OWN, CHAT)
  asks = suite.asks if instructs else '{question}'
  if name == CHAT:
    if found.texts is None:
      raise ValueError(f'{found.name} began from no folder: no chat template')
    template = chat.load(found.texts, loading.day_of(found.run))
    by_chat = _by_chat(template, system, thinking)
    return (lambda e: by_chat(asks.format(question=e['prompt']))), True
  prefix = ''.join(
    found.tokenizer.token_text(i)
    for i in getattr(found.tokenizer, 'prefix_ids', ())
  )
  shots = _solved(variant, suite)

  def render(example):
    question = asks.format(question=example['prompt'])
    return prefix + chat.few_shot(name, shots, question)

  return render, False


def _by_chat(template: chat.ChatTemplate, system: str, thinking) -> Callable:
  before = [{'role': 'system', 'content': system}] if system else []

  def render(question):
    said = [*before, {'role': 'user', 'content': question}]
    return template.render(said, enable_thinking=thinking)

  return render


def _has_chat(found: Loaded) -> bool:
  try:
    chat.load(found.texts)
  except ValueError:
    return False
  return True


def _solved(variant: Variant, suite: suites.Suite) -> Sequence:
  """Returns the solved problems (question, solution) for few-shot prompts: the
  first ones of the train split that the suite does not ask, because a prompt
  must not contain its own answer.
  """
  if not variant.shots:
    return []
  train, asked = suite.train, {e['prompt'] for e in suite.examples}
  if train is None:
    raise ValueError(
      f'prompt {variant.name!r}: {suite.name} has no train split to take '
      'solved problems from; gsm8k, task: and run: have one'
    )
  tries = min(len(train), 100 * (len(asked) + variant.shots))
  free = (e for e in map(train.__getitem__, range(tries))
          if e['prompt'] not in asked)  # fmt: skip
  found = [*itertools.islice(free, variant.shots)]
  if len(found) < variant.shots:
    raise ValueError(
      f'prompt {variant.name!r}: only {len(found)} problems of the train split '
      f'of {suite.name} are not asked themselves; ask fewer with ?n='
    )
  return [(e['prompt'], e['solution']) for e in found]


def solved_of(variant: Variant, suite: suites.Suite) -> dict[str, str]:
  """Returns the digest of the solved problems in few-shot prompts; {}: none."""
  shots = _solved(variant, suite)
  return {'solved': named_code.digest(shots)} if shots else {}


def _as_trained(found: Loaded) -> tuple[Callable[[dict], str], bool]:
  """Returns (example -> prompt text of the model's run, whether it is the chat
  template). In a mixture, an example has the prompt of its source.
  """
  data = suites.data_of(found.run)
  problems = problems_lib.load(data, found.run.seed) if data.shots else None
  rest = found.tokenizer, found.texts, suites.tools_of(found.run)
  sections = mixture.sections(data)

  @functools.cache
  def render_of(source):
    if source is None:
      train = problems.train if problems else ()
      return rendering.common_renderer(data, train, *rest) or str
    train = problems.parts[source][1].train if problems else ()
    return rendering.renderer(sections[source], train, *rest) or str

  def render(example):
    source = example.get('domain')
    of_source = render_of(source if source in sections else None)
    return of_source(example['prompt'])

  return render, mixture.uses_chat(data)
