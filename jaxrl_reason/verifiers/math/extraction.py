"""Extracts the answer of a completion.

  after the last </think>, and before a <think> that does not end, the first of
  these that is there:
    the last balanced \\boxed{} or \\fbox{} (neighbouring boxes joined)
    <answer>...</answer>      #### ...      "the answer is ..."
  and, unless `strict`,
    the text itself when it is nothing but an answer
    the last $...$            the last **...**      the last line
    the last number

Alternatives stay together: of "5 or 6" the answer is `5 or 6`. One pass each
over the text: every pattern is linear, and braces are matched once for all
boxes.
"""

import re
from typing import NamedTuple

from jaxrl_reason.verifiers import thoughts
from jaxrl_reason.verifiers.math import prose, second_guesses
from jaxrl_reason.verifiers.math.expr import answers, units, words
from jaxrl_reason.verifiers.math.expr.nodes import MAX_CHARS

MAX_COMPLETION = 200_000  # last characters that are read
BRACES = re.compile(r'\\.|[{}]', re.S)
BETWEEN_BOXES = re.compile(
  r'(?:[\s$,;.&/|(){}]|\\[()\[\],;: ]|\\quad|\\text|\band\b|\bor\b|[或和且])*'
)
BOX = re.compile(r'\\(?:boxed|fbox)(?![a-z])')
BARE_BOX = re.compile(r'\\(?:boxed|fbox)\s*([^\s{}$\\]+)')
ANSWER_TAG = re.compile(r'<answer>(.*?)</answer>', re.S | re.I)
ANSWER_IS = re.compile(
  r'answers?\**\s*(?:to the (?:question|problem)\s*)?'
  r'(?:is|are|was|=|:|：)'
  r'(?:\s*(?:therefore|thus|equal to|simply|indeed|just|probably|likely'
  r'|clearly|exactly|:|：))?'
  r'|答案(?:为|是|：|:)|故选[：:]?|(?:因此|所以)选',
  re.I,
)
DENIED_ANSWER = re.compile(
  rf'(?:{ANSWER_IS.pattern}){prose.NEGATED.pattern}\s+{second_guesses.VALUE}',
  re.I,
)
# Only if no answer is announced, because many texts begin with "Solution:".
RESULT_IS = re.compile(
  r'(?:results?|solutions?|totals?)\s+(?:is|are|was|equals?)(?:\s*:)?', re.I
)
SENTENCE_END = re.compile(
  r'\.(?=\s|\$?$)|\n|。|(?<=[.$])\s*I hope|,? (?:because|since|which|so that) '
  r'|,? as (?:desired|required|claimed|expected)|\s*\((?:see|as|from|by) '
  r'|(?<=[0-9}$]) of (?:a|an|the|her|his|their|its) '
)
# "$204 + $160" and "204$ + 160$" are prices: a formula ends after a space only
# if it begins with one, and never before a digit.
MATH = re.compile(
  r'\$\$(.+?)\$\$'
  r'|(?<!\\)\$(?! ?[0-9][^$]*\$ ?[0-9])(?!(?<=[0-9]\$)\s)'
  r'(\s[^$]+?(?<!\\)|[^\s$](?:[^$]*[^\s$\\])?)\$(?![0-9])'
  r'|\\\((.+?)\\\)|\\\[(.+?)\\\]',
  re.S,
)
# *italic* and __underlined__ texts must be numbers, because 2 * 3 is a product.
BOLD = re.compile(
  r'\*\*([^*\n]+)\*\*'
  r'|(?<![\w*\\)])\*(-?\\?\$?[0-9][^*\s]*)\*(?![\w*(\\])'
  r'|(?<!\w)__(-?\\?\$?[0-9][^_\s]*)__(?!\w)'
)
LABEL = re.compile(r'[\W_]*[A-J]')
OTHER_CHOICE = re.compile(
  r'\b[A-J][.):] ?\w|\b(?:or|maybe|perhaps|possibly)\b.*\b[A-J]\b'
)
# A bare name in dollars is not the answer: "the largest $n$ is 34".
NAME = re.compile(
  r"\\?[A-Za-z]{1,5}'?(?:_\{?\w{1,3}\}?)?|\\(?:angle|triangle|overline|vec) ?"
  r'\{?[A-Za-z]{1,5}\}?|[A-Za-z]\([a-z](?:, ?[a-z])*\)'
)
COUNTED = re.compile(r'\b[0-9]+ (?:such )?(?:[a-z]+ ){1,3}\$?$')
# "The value of $f(3)$ is 9": the verb is only after the formula.
VERB = rf'{prose.VERB}|='
VALUE_BEHIND = re.compile(
  rf'[^.\n$]*(?:{VERB})\s*(?:about |approximately |only |just )?'
  r'[-$\\]*\.?[0-9]',
  re.I,
)
VERB_BEFORE = re.compile(rf'(?:{VERB})[^.\n]*$', re.I)
# Answers of more than one number.
DATE = re.compile(rf'\b{words.DATE}\b')
MEASURED = re.compile(
  r'(?:(?<![\w.])[0-9]+ ([a-z]{3,})|\\?([$€£])[0-9]+),?(?: and)? [0-9]+ '
  r'([a-z]{3,})\b'
)
# The number behind it is an operand or an argument: 20 - 10, e^{\ln 18}.
OPERAND = re.compile(
  r'(?:[0-9)}\]%]\s?(?:[-+*/×÷]|\\(?:cdot|times|div))\s?\\?\$?'
  r'|[_^{]\{|[_^]|\\(?:ln|log|sin|cos|tan|gcd|lcm|sqrt|exp)\W{0,2}(?:[0-9]+,)?'
  r'|\}\{)$'
)
FACTORIAL = re.compile(r'!\s*=|(?<=\b[12])!')
MAX_OPERATOR = 20  # characters before a number that may be its operator
MAX_CHOICES = 80  # characters of a line of choices
BETWEEN_BOLD = re.compile(r'\*\*([\s,]*(?:(?:or|and)[\s,]*)?)\*\*')
# Text around a box in a box, such as "x = ", is not another answer.
NAMED = re.compile(r'(?:[A-Za-z_\\ (){}$]*=)?[\s$.,;{}]*')
# Special tokens in decoded text: <|endoftext|>, <|im_end|>, </s>.
SPECIAL_TOKENS = re.compile(r'<\|[^|<>\n]{1,40}\|>|</?s>')


class Found(NamedTuple):
  text: str
  explicit: bool  # marked as the answer, not guessed


def extract(text: str, *, strict: bool = False) -> Found | None:
  """Extracts the answer's text, or None."""
  body = _bounded(text[slice(*thoughts.spoken(text))])
  if not body.strip():
    return None  # a thought is not an answer
  for marked in (boxed, tagged, hashed, stated):
    answer = marked(body)
    if answer is not None:
      return Found(answer, True)
  return None if strict else guess(body)


def _bounded(text: str) -> str:
  return SPECIAL_TOKENS.sub('', text[-MAX_COMPLETION:])


def boxed(text: str) -> str | None:
  """Finds the last balanced box that is not empty, with neighbouring boxes."""
  boxes = list(BOX.finditer(text))
  if not boxes:
    return None
  closes = matched_braces(text)
  found: list[str] = []
  first = last = 0  # start and end of the boxes that belong together
  after = 0  # end of the box at `first`
  joint = ', '
  for box in reversed(boxes):
    opening = text.find('{', box.end(), box.end() + 8)
    end = closes.get(opening)
    if end is None or text[box.end() : opening].strip():
      continue
    content = prose.named_value(text[opening + 1 : end].strip())
    if not content:
      continue
    if found and end > first:  # a box around the others
      rest = text[opening + 1 : first] + text[last:end]
      if NAMED.fullmatch(rest):
        break
      found, last = [], end + 1
    if found:
      link = _link(text, end + 1, first, after)
      if link is None:
        break
      joint = link if link == ' or ' else joint
    if not any(answers.same(content, other).same for other in found):
      found.append(content)
    first, after, last = box.start(), end + 1, last or end + 1
  if not found:
    bare = BARE_BOX.match(text, boxes[-1].start())
    return bare[1].rstrip('.,') if bare else None
  return second_guesses.with_others(
    text, first, last, joint.join(reversed(found))
  )


def _link(text: str, start: int, end: int, after: int) -> str | None:
  """Returns ", " or " or " if boxes around text[start:end] are one answer."""
  between = text[start:end]
  doubt = prose.DOUBT.search(between) and not prose.CORRECTION.search(between)
  if second_guesses.joined(text, start, end, after) or (
    doubt and len(between) < second_guesses.MAX_APART
  ):
    return ' or '
  if len(between) < 40 and BETWEEN_BOXES.fullmatch(between):
    return ', '
  return ' or ' if second_guesses.added(text, start, end, after) else None


def matched_braces(text: str) -> dict[int, int]:
  """Maps the position of each { to that of its }. Ignores escaped braces."""
  stack, closes = [], {}
  for match in BRACES.finditer(text):
    if match[0] == '{':
      stack.append(match.start())
    elif match[0] == '}' and stack:
      closes[stack.pop()] = match.start()
  return closes


def tagged(text: str) -> str | None:
  start = text.lower().rfind('<answer>')
  match = ANSWER_TAG.match(text, start) if start >= 0 else None
  content = match[1].strip() if match else ''
  if not content:
    return None
  return second_guesses.with_others(text, start, match.end(), narrowed(content))


def hashed(text: str) -> str | None:
  """Finds the text after the last ####, as in GSM8K."""
  line = prose.hashed(text)
  if line is None:
    return None
  content = second_guesses.OPEN_HEDGE.sub('', line[1]).strip()
  end = line.start(1) + len(content)
  is_open = content != line[1].strip()  # then no denial is certain
  answer = _narrowed(content) if is_open else narrowed(content)
  return second_guesses.with_others(text, line.start(), end, answer)


def stated(text: str) -> str | None:
  """Finds the sentence after the last "the answer is", or "the result is"."""
  for pattern in (ANSWER_IS, RESULT_IS):
    last = None
    for match in pattern.finditer(text):
      if not prose.NEGATED.match(text, match.end()):
        last = match
    if last is not None:
      start = last.end()
      while start < len(text) and text[start] in ' \n:：*':
        start += 1
      rest = text[start : start + MAX_CHARS]
      sentence = _first_sentence(rest)
      if pattern is RESULT_IS and prose.DIGIT.search(rest, len(sentence)):
        return None  # an intermediate result
      sentence = _choices(rest, sentence)
      end = start + len(sentence)
      sentence = second_guesses.without_denied(sentence)
      sentence = _closed(BETWEEN_BOLD.sub(r'\1', sentence).strip(' *'))
      answer = sentence if prose.is_bare(sentence) else best_part(sentence, 0)
      if answer:
        return second_guesses.with_others(text, last.start(), end, answer)
  return None


def _choices(rest: str, sentence: str) -> str:
  """Returns the line of "A. 5 or B. 6", in which a sentence ends after A."""
  line = rest.split('\n', 1)[0]
  label = len(line) <= MAX_CHOICES and LABEL.fullmatch(sentence)
  several = label and OTHER_CHOICE.search(line, len(sentence))
  return (
    line.rstrip('. ') if several and not prose.PROSE.search(line) else sentence
  )


def _closed(text: str) -> str:
  """Removes bold marks if the first one is before the text."""
  return text.replace('**', '') if text.count('**') % 2 else text


def _first_sentence(text: str) -> str:
  """Returns a text up to the first full stop outside of $...$."""
  delimits = text.count('$') % 2 == 0  # otherwise one $ is a currency
  for match in SENTENCE_END.finditer(text):
    if second_guesses.OPEN_HEDGE.search(text[: match.start()]):
      continue  # the second value is on the next line
    if not delimits or text.count('$', 0, match.start()) % 2 == 0:
      return text[: match.start()]
  return text


def narrowed(text: str) -> str:
  """Finds the mathematics in a short text with prose."""
  return _narrowed(second_guesses.without_denied(text))


def _narrowed(text: str) -> str:
  return text if prose.is_bare(text) else best_part(text, -1) or text


def best_part(text: str, which: int) -> str | None:
  """Finds a $formula$ of a text, else a **bold** text, else the last number.

  A formula must not contain prose: "$20, so she has $5" has two prices.
  """
  text = text[-MAX_CHARS:]
  for pattern in (MATH, BOLD):
    parts = [(m, _content(m)) for m in pattern.finditer(text)]
    parts = [p for p in parts if prose.is_bare(' '.join(p[1].split()))]
    parts = [p for p in parts if not _is_talked_about(text, *p)] or parts
    if parts and all(_is_talked_about(text, *p) for p in parts):
      continue
    if parts and parts[which][1]:
      return _together(text, parts, which % len(parts))
  last = None
  for match in prose.NUMBER.finditer(text):
    last = match
  if last and _is_operand(text, last):
    return None
  for several in (*DATE.finditer(text), *MEASURED.finditer(text)):
    if not last or several.start() <= last.start() < several.end():
      last = several if _is_one_value(several) else last
  return last and second_guesses.with_others(
    text, last.start(), last.end(), last[0]
  )


def _is_operand(text: str, match: re.Match) -> bool:
  """Returns whether a number is a part of a formula, as in 20 - 10 and 2! =."""
  start = max(match.start() - MAX_OPERATOR, 0)
  before = OPERAND.search(text, start, match.start())
  return bool(before or FACTORIAL.match(text, match.end()))


def _is_one_value(match: re.Match) -> bool:
  """Returns whether a text is a date, or a time such as 2 hours 30 minutes."""
  if match.re is DATE:
    return words.date(match[0]) is not None
  return units.is_smaller(match[3], match[1] or match[2])


def _is_talked_about(text: str, match: re.Match, content: str) -> bool:
  """Returns whether a formula is only named, and a number follows it."""
  if NAME.fullmatch(content):
    counted = COUNTED.search(text, 0, match.start())  # 34 such integers $n$
    return bool(counted or prose.DIGIT.search(text, match.end()))
  behind = VALUE_BEHIND.match(text, match.end())
  return bool(
    behind
    and not prose.NUMBER.fullmatch(content)
    and not second_guesses.HEDGED.search(behind[0])
    and not VERB_BEFORE.search(text, 0, match.start())
  )


def _content(match: re.Match) -> str:
  return next(group for group in match.groups() if group).strip()


def _together(text: str, parts: list, which: int) -> str:
  """Returns one part, with the parts that "or" joins to it."""
  low = high = which
  while low and _joined(text, parts[low - 1 : low + 1]):
    low -= 1
  while _joined(text, parts[high : high + 2]):
    high += 1
  chosen = parts[low : high + 1]
  answer = chosen[0][1]
  for pair in zip(chosen, chosen[1:]):
    answer += (' / ' if _divided(text, pair) else ' or ') + pair[1][1]
  start, end = chosen[0][0].start(), chosen[-1][0].end()
  return second_guesses.with_others(text, start, end, answer)


def _joined(text: str, pair: list) -> bool:
  if len(pair) < 2:
    return False
  start, end, after = pair[0][0].end(), pair[1][0].start(), pair[1][0].end()
  near = end - start < second_guesses.MAX_APART
  return second_guesses.joined(text, start, end, after) or (
    near and _divided(text, pair)
  )


def _divided(text: str, pair) -> bool:
  """Returns whether the text is **12** / **35**: a quotient or two guesses."""
  return text[pair[0][0].end() : pair[1][0].start()].strip() == '/'


def guess(text: str) -> Found | None:
  """Guesses the answer of a completion that does not mark it."""
  body = DENIED_ANSWER.sub('', second_guesses.without_denied(text)).strip()
  if not body:
    return None
  if prose.is_bare(body) and not prose.is_sentence(body):
    return Found(body, False)
  tail = body[-MAX_CHARS:]
  line = tail.rsplit('\n', 1)[-1].strip()
  marked = '$' in tail or '\\(' in tail or '\\[' in tail or '**' in tail
  if '\n' in tail and not marked and any(c.isdigit() for c in line):
    hedged = second_guesses.OPEN_HEDGE.search(tail[: tail.rindex('\n')])
    if prose.is_bare(line) and not prose.is_sentence(line) and not hedged:
      return Found(line, False)
  return Found(best_part(tail, -1) or line or tail, False)
