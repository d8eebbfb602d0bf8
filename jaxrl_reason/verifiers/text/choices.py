r"""Verifies multiple-choice answers.

  completion -> span with the answer -> letters in the span -> one letter

The span is the first of: the last \boxed{}, <answer>, "the answer is ...", a
line with only an option, the last bold text, the last line. Forms: B, (B), B.,
B), [B], **B**, \text{B}, "option B", "B. the text", "B: the text", the text. If
a span has two different letters, the answer is wrong. A negated letter ("isn't
A", "neither A nor B") is not chosen.
"""

import re
from collections.abc import Iterator, Mapping

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.math import extraction
from jaxrl_reason.verifiers.text import normalize
from jaxrl_reason.verifiers.verdict import Verdict

MAX_PLACE = 500  # characters of a span that are read
MAX_LINES = 50  # last lines that may be the answer
MAX_STATED = 5  # last occurrences of "the answer is" that are tried
# Wrapping that is not part of the choice: \text{B}, **B**, "B", $B$.
WRAPPING = re.compile(
  r'\\(?:text|textbf|mathrm|mathbf|rm|bf)\b\s*|[*_`$"{}]|\\[()]'
)
# (B), [B], (b), and a bare B that is not part of a word.
MARKED = re.compile(r'(?<!\w)(?:[(\[]([A-Za-z])[)\]]|([A-Z])(?!\w))')
# "A" and "I" are also words: before another word they are not a choice.
WORDS = re.compile(r"[AI](?=\s+(?!or\b|and\b)[a-z]|['\u2019])")
ALONE = re.compile(
  r'(?:(?:the )?(?:correct )?(?:final )?(?:answer|option|choice)(?: is)?:? ?)?'
  r'[(\[]?([A-Z])[)\].:]*',
  re.I,
)
LED = re.compile(r'[(\[]?([A-Z])(?:[)\]]\s*[.:]?|[.:])\s*(\S.*)', re.S)
# Further choices after the first: (C), "or C", "C.".
ALSO = re.compile(
  r'[(\[]([A-Z])[)\]]|(?:\b(?:or|and)\b|[,/&])\s*([A-Z])(?!\w)'
  r'|(?<!\w)([A-Z])[.:)](?:\s|$)'
)
# A reason or a negation follows.
REASON = re.compile(
  r'\n|\.(?=\s+[A-Z][a-z])|\b(?:because|since|as|which|not)\b|\bwhile\b'
  r"|n['\u2019]t\b|\b(?:cannot|never|neither|nor|except|rules? out)\b"
)
_LETTER = r'[(\[]?[A-Z](?!\w)[)\]]?'
DENIED = re.compile(
  r'(?<!\w)[(\[]?[A-Z][)\]]?\s+(?:(?:is|was|does|can|could|would)'
  r"(?:\s+not\b|n['\u2019]t\b)|cannot\b|can['\u2019]t\b"
  r'|(?:is|was)\s+(?:wrong|incorrect|false|ruled out|eliminated)\b)'
  r'|(?<!\w)[(\[]?[A-Z][)\]]?\?\s*(?i:no|nope|wrong)\b'
  r'|(?i:\b(?:not|never|neither|(?:anything|everything|all|any) but|other than'
  r'|rather than|instead of|unlike|except(?: for)?|excludes?|eliminates?'
  r'|rejects?|rules? out))'
  rf'\s+(?i:(?:option|choice)\s+)?{_LETTER}'
  # A comma alone ends the list: "unlike A, B".
  rf'(?:(?:\s*,\s*{_LETTER})+\s*,?\s*\b(?:or|nor|and)\b\s*{_LETTER}'
  rf'|\s*(?:/|,?\s*\bnor\b|\b(?:or|and)\b)\s*{_LETTER})*'
)
# Another letter after the first: "A. No, B".
CORRECTED = re.compile(
  r'(?i:\b(?:no|wait|actually|sorry|correction|rather|i mean|instead)\b[,:.]?)'
  r"\s*(?i:(?:it is|it's|the answer is)\s+)?[(\[]?([A-Z])(?!\w)"
)
STATED = re.compile(
  r'(?:answers?|(?:correct|right|best) (?:choice|option))\**\s*'
  r'(?:(?:is|are|would be|must be)\b\s*:?|[:\uff1a])'
  r'|\u7b54\u6848(?:\u4e3a|\u662f|\uff1a|:)|\u6545\u9009[\uff1a:]?'
  r'|\b(?:choose|select|pick)\b(?: option| answer| choice)?',
  re.I,
)
BOLD = re.compile(r'\*\*([^*\n]+)\*\*')


def options_of(example: Mapping) -> dict[str, str]:
  """Reads letter -> text from 'choices', a list or a dict, or returns {}."""
  choices = fields.field(example, 'choices', (list, tuple, dict), default=())
  if isinstance(choices, dict):
    options = {str(k).strip().upper(): str(v) for k, v in choices.items()}
  else:
    options = {chr(65 + i): str(text) for i, text in enumerate(choices)}
  if len(options) > 26 or not all(re.fullmatch('[A-Z]', k) for k in options):
    raise fields.FieldError(f"'choices' has the letters {sorted(options)}")
  return options


def gold_letter(example: Mapping, options: Mapping[str, str]) -> str:
  """Returns the correct letter; 'answer' is a letter or an option's text."""
  answer = fields.field(example, 'answer', str)
  letter = _one(answer, options)
  if letter is None or (options and letter not in options):
    raise fields.FieldError(
      f"'answer' {answer!r:.80} is neither a letter nor one of the options"
    )
  return letter


def by_text(text: str, options: Mapping[str, str]) -> str | None:
  """Finds the one option with this text."""
  matching = [k for k, option in options.items() if _same(text, option)]
  return matching[0] if len(matching) == 1 else None


def _same(text: str, option: str) -> bool:
  """Compares texts without case, punctuation and articles."""
  text, option = WRAPPING.sub('', text), WRAPPING.sub('', option)
  gold = normalize(option)
  if not gold:
    return text.strip() == option.strip()
  return normalize(text) == gold and _signs(text) == _signs(option)


def _signs(text: str) -> str:
  """Returns the signs that `normalize` removes: -5 is not 5, 1.5 is not 15."""
  if not any(c.isdigit() for c in text):
    return ''
  return ''.join(re.findall(r'[-+<>=/^%]|\.(?=\d)', text))


def _one(text: str, options: Mapping[str, str]) -> str | None:
  """Returns the letter of a text that is only a letter, or only an option."""
  letter = _alone(text)
  if letter is not None and (not options or letter in options):
    return letter
  return by_text(text, options) or letter


def _alone(text: str) -> str | None:
  match = ALONE.fullmatch(WRAPPING.sub('', text).strip())
  return match[1].upper() if match else None


def letters(place: str, options: Mapping[str, str]) -> set[str]:
  """Returns the letters that a short text chooses."""
  text = ' '.join(WRAPPING.sub('', place[:MAX_PLACE]).split()).strip(' .,;:')
  led = None if DENIED.match(text) else LED.fullmatch(text)
  # In "A: blue", A is a letter, although `normalize` would remove it.
  written = text.casefold() in (o.strip().casefold() for o in options.values())
  one = _one(text, options) if written or not led else None
  if one:
    return {one}
  if led:
    rest = DENIED.sub('', led[2])
    rest = REASON.split(rest, maxsplit=1)[0].strip(' .,;:')
    meant = by_text(led[2], options) or by_text(rest, options)
    others = {meant} if meant else _found(ALSO, rest)
    return {led[1]} | others | _found(CORRECTED, led[2])
  text = DENIED.sub('', text).strip(' .,;:')
  corrected = _found(CORRECTED, text)
  text = REASON.split(text, maxsplit=1)[0].strip(' .,;:')
  one = _one(text, options)
  return ({one} if one else _found(MARKED, text)) | corrected


def _found(pattern: re.Pattern, text: str) -> set[str]:
  return {
    match[match.lastindex].upper()
    for match in pattern.finditer(text)
    if not WORDS.match(text, match.start())
  }


def places(text: str, options: Mapping[str, str]) -> Iterator[str]:
  """Yields spans that may contain the answer, the most reliable first."""
  boxed = extraction.boxed(text)
  if boxed is not None:
    yield boxed
    text = text.replace('{' + boxed + '}', '{}')
  for stated in list(STATED.finditer(text))[: -MAX_STATED - 1 : -1]:
    rest = text[stated.end() : stated.end() + MAX_PLACE]
    yield rest.lstrip(' \n:*').split('\n')[0]
  lines = text.strip().split('\n')[-MAX_LINES:]
  option_lines = [line for line in lines if _is_option(line, options)]
  # Several lines are a list of options, unless the last line is a bare letter.
  if len(option_lines) == 1 or (option_lines and _alone(lines[-1])):
    yield option_lines[-1]
  bold = BOLD.findall(text)
  if bold:
    yield bold[-1]
  if lines[-1] not in option_lines:
    yield lines[-1]


def _is_option(line: str, options: Mapping[str, str]) -> bool:
  if len(line) > MAX_PLACE:
    return False
  plain = WRAPPING.sub('', line).strip()
  return bool(_alone(plain) or LED.fullmatch(plain) or by_text(plain, options))


def chosen(text: str, options: Mapping[str, str]) -> set[str]:
  """Returns the letters of the first span that has any."""
  text = text[-extraction.MAX_COMPLETION :]
  for place in places(text, options):
    chosen_letters = letters(place, options)
    if chosen_letters:
      return chosen_letters
  return set()


def reward(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """Scores 1 if the completion chooses only the correct option.

  Reads 'answer' (a letter or the option's text) and 'choices' (a list, or
  letter -> text; optional).
  """
  options = options_of(example)
  gold = gold_letter(example, options)
  text = fields.final(completion, part) or ''
  chosen_letters = chosen(text, options)
  if not chosen_letters:
    return Verdict(0.0, 'no_answer')
  return Verdict(
    float(chosen_letters == {gold}), 'parsed', ', '.join(sorted(chosen_letters))
  )
