"""Verifies the 25 instruction types of IFEval.

  completion -> response -> CHECKS[id](response, **kwargs) for each instruction

https://arxiv.org/abs/2311.07911. The example has 'instruction_id_list' and
'kwargs' as in the published prompts. `Verdict.parts` has the result of every
instruction. The checks are those of the published checkers, with their special
cases (a keyword also counts inside a longer word, a blank response follows no
instruction). These are the differences, where the published checkers use
trained models or may not terminate:
  - `sentences` (sentences and Treebank words) and `language` use rules;
  - keywords, markers and section names are literal texts, not patterns;
  - a missing or invalid kwarg raises an error, where the original samples a
    random value;
  - every check is linear in the response.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import instruction_checks as checks
from jaxrl_reason.verifiers.text import language
from jaxrl_reason.verifiers.verdict import Verdict

SCORES = ('all', 'fraction')


class InstructionError(ValueError):
  """An instruction that is unknown, or has invalid kwargs."""


class Check(NamedTuple):
  """A type of instruction: its check, and the readers of its kwargs."""

  follows: Callable[..., bool]  # (response, **kwargs)
  kwargs: Mapping[str, Callable] = {}  # name -> reader, which raises errors


# --- reading kwargs ------------------------------------------------------


def _count(value) -> int:
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise InstructionError('is not a number')
  if value < 0 or value != value // 1:
    raise InstructionError('is not a whole number of at least 0')
  return int(value)


def _position(value) -> int:
  if _count(value) == 0:
    raise InstructionError('must be at least 1')
  return int(value)


def _relation(value) -> str:
  if value not in (checks.AT_LEAST, checks.LESS_THAN):
    raise InstructionError(
      f'must be {checks.AT_LEAST!r} or {checks.LESS_THAN!r}'
    )
  return value


def _text(value) -> str:
  if not isinstance(value, str) or not value.strip():
    raise InstructionError('is not a text')
  return value.strip()


def _texts(value) -> list[str]:
  if not isinstance(value, (list, tuple)) or not value:
    raise InstructionError('is not a list of texts')
  if not all(isinstance(v, str) and v.strip() for v in value):
    raise InstructionError('is not a list of texts')
  return list(value)


def _letter(value) -> str:
  if len(_text(value)) != 1:
    raise InstructionError('is not one character')
  return value.strip().lower()


def _language(value) -> str:
  code = _text(value).lower().split('-')[0]  # zh-cn and zh-tw are zh
  if code not in language.codes():
    codes = ', '.join(sorted(language.codes()))
    raise InstructionError(f'must be one of {codes}')
  return code


# --- the types of instructions -----------------------------------------


CHECKS: dict[str, Check] = {
  'keywords:existence': Check(checks.keywords, {'keywords': _texts}),
  'keywords:frequency': Check(
    checks.keyword_frequency,
    {'keyword': _text, 'frequency': _count, 'relation': _relation},
  ),
  'keywords:forbidden_words': Check(
    checks.forbidden_words, {'forbidden_words': _texts}
  ),
  'keywords:letter_frequency': Check(
    checks.letter_frequency,
    {'letter': _letter, 'let_frequency': _count, 'let_relation': _relation},
  ),
  'language:response_language': Check(
    checks.response_language, {'language': _language}
  ),
  'length_constraints:number_sentences': Check(
    checks.number_sentences, {'num_sentences': _count, 'relation': _relation}
  ),
  'length_constraints:number_paragraphs': Check(
    checks.number_paragraphs, {'num_paragraphs': _count}
  ),
  'length_constraints:number_words': Check(
    checks.number_words, {'num_words': _count, 'relation': _relation}
  ),
  'length_constraints:nth_paragraph_first_word': Check(
    checks.nth_paragraph_first_word,
    {'num_paragraphs': _count, 'nth_paragraph': _position, 'first_word': _text},
  ),
  'detectable_content:number_placeholders': Check(
    checks.number_placeholders, {'num_placeholders': _count}
  ),
  'detectable_content:postscript': Check(
    checks.postscript, {'postscript_marker': _text}
  ),
  'detectable_format:number_bullet_lists': Check(
    checks.number_bullets, {'num_bullets': _count}
  ),
  'detectable_format:constrained_response': Check(checks.constrained_response),
  'detectable_format:number_highlighted_sections': Check(
    checks.number_highlights, {'num_highlights': _count}
  ),
  'detectable_format:multiple_sections': Check(
    checks.number_sections, {'section_spliter': _text, 'num_sections': _count}
  ),
  'detectable_format:json_format': Check(checks.json_format),
  'detectable_format:title': Check(checks.title),
  'combination:two_responses': Check(checks.two_responses),
  'combination:repeat_prompt': Check(
    checks.repeat_prompt, {'prompt_to_repeat': _text}
  ),
  'startend:end_checker': Check(checks.end_checker, {'end_phrase': _text}),
  'startend:quotation': Check(checks.quotation),
  'change_case:capital_word_frequency': Check(
    checks.capital_words,
    {'capital_frequency': _count, 'capital_relation': _relation},
  ),
  'change_case:english_capital': Check(checks.english_capital),
  'change_case:english_lowercase': Check(checks.english_lowercase),
  'punctuation:no_comma': Check(checks.no_comma),
}


# --- the reward ----------------------------------------------------------


def read(instruction: str, kwargs: Mapping | None) -> dict:
  """Reads the kwargs of a check. Keys with the value None are ignored.

  Raises:
    InstructionError: names a kwarg that is unknown, missing or invalid.
  """
  if instruction not in CHECKS:
    raise InstructionError(f'instruction {instruction!r} is unknown')
  settings = {k: v for k, v in (kwargs or {}).items() if v is not None}
  readers = CHECKS[instruction].kwargs
  for problem, names in (
    ('lacks', readers.keys() - settings.keys()),
    ('does not take', settings.keys() - readers.keys()),
  ):
    if names:
      raise InstructionError(f'{instruction} {problem} {sorted(names)}')
  try:
    name = ''
    values = {}
    for name, value in settings.items():
      values[name] = readers[name](value)
  except InstructionError as e:
    message = f'{instruction}: {name}={settings[name]!r:.80} {e}'
    raise InstructionError(message) from e
  return values


def follows(response: str, instruction: str, kwargs: Mapping | None) -> bool:
  """Returns whether the response follows the instruction, strictly."""
  values = read(instruction, kwargs)
  return bool(response.strip()) and CHECKS[instruction].follows(
    response, **values
  )


def variants(response: str) -> list[str]:
  """Returns the variants of the loose mode: with and without *, the first line
  and the last line.
  """
  lines = response.split('\n')
  parts = [lines[1:], lines[:-1], lines[1:-1]]
  plain = [response, *('\n'.join(part).strip() for part in parts)]
  return plain + [text.replace('*', '') for text in plain]


def reward(
  completion: str,
  example: dict,
  *,
  loose: bool = False,
  score: str = 'all',
  part: str = 'response',
) -> Verdict:
  """Returns 1 if the response follows every instruction, or with
  score='fraction' the share of followed instructions.

  With `loose`, one of eight variants of the response has to follow an
  instruction. Reads 'instruction_id_list' and 'kwargs'. The second occurrence
  of an instruction is 'id#2' in the parts.
  """
  if score not in SCORES:
    raise ValueError(f'score {score!r}: must be one of {", ".join(SCORES)}')
  ids = fields.field(example, 'instruction_id_list', (list, tuple))
  kwargs = fields.field(example, 'kwargs', (list, tuple))
  if not ids or len(ids) != len(kwargs):
    raise InstructionError(f'{len(ids)} instructions, {len(kwargs)} kwargs')
  read_ = [(i, read(i, k)) for i, k in zip(ids, kwargs)]
  response = fields.final(completion, part) or ''
  texts = variants(response) if loose else [response]
  texts = [text for text in texts if text.strip()]
  parts: dict[str, float] = {}
  for instruction, values in read_:
    n = sum(key.split('#')[0] == instruction for key in parts) + 1
    name = instruction if n == 1 else f'{instruction}#{n}'
    check = CHECKS[instruction].follows
    parts[name] = float(any(check(text, **values) for text in texts))
  mean = sum(parts.values()) / len(parts)
  status = 'parsed' if texts else 'no_answer'
  return Verdict(
    float(mean == 1.0) if score == 'all' else mean, status, parts=parts
  )
