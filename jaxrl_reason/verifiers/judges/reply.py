"""Converts a judge's reply to a score by strict rules; None for other replies.

  yes_no    the last line is `yes` or `no`
  score     the last line is `Score: x` (or `Score: x/high`), low <= x <= high,
            scaled to [0, 1]
  logprobs  p(yes) / (p(yes) + p(no)) at the first token of the reply, among the
            server's likeliest tokens; case and white space do not matter

The last line is the last that is not blank. `*`, `_` and "`" around it and a
full stop after it are ignored. Any other text makes the reply invalid, for
example "yes, if ..." or "Score: 7 or 8".
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence

MAX_LINE = 200  # most characters of a last line that is parsed
_MARKS = ' \t*_`'
_SCORE = re.compile(
  r'score[ *_`]{0,4}:[ *_`]{0,4}(-?\d{1,6}(?:\.\d{1,6})?)(?: ?/ ?(\d{1,6}))?',
  re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Reply:
  """text: the whole reply; first: (token, log-probability) of the likeliest
  first tokens, if the server returns them."""

  text: str
  first: Sequence[tuple[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class Format:
  """ask: the end of the prompt; read: (reply, low, high) -> score or None;
  params: parameters of the request."""

  ask: str
  read: Callable[[Reply, float, float], float | None]
  params: Mapping


def _last_line(text: str) -> str:
  lines = text.rstrip().rsplit('\n', 1)
  line = lines[-1].strip(_MARKS).removesuffix('.').strip(_MARKS)
  return line if len(line) <= MAX_LINE else ''


def yes_no(reply: Reply, low: float, high: float) -> float | None:
  return {'yes': 1.0, 'no': 0.0}.get(_last_line(reply.text).lower())


def score(reply: Reply, low: float, high: float) -> float | None:
  match = _SCORE.fullmatch(_last_line(reply.text))
  if match is None or (match[2] and float(match[2]) != high):
    return None
  x = float(match[1])
  return (x - low) / (high - low) if low <= x <= high else None


def logprobs(reply: Reply, low: float, high: float) -> float | None:
  mass = {'yes': 0.0, 'no': 0.0}
  for token, logp in reply.first or ():
    word = token.strip().lower()
    if word in mass:
      mass[word] += math.exp(min(logp, 0.0))
  total = mass['yes'] + mass['no']
  return mass['yes'] / total if total > 0 else None


_WORD = 'Reply with one word, yes or no.'
FORMATS = {
  'yes_no': Format(
    'Think first if you need to. The last line of your reply is one word, '
    'yes or no.',
    yes_no,
    {'max_tokens': 1024},
  ),
  'score': Format(
    'Think first if you need to. The last line of your reply is "Score: x" '
    'with x from {low:g} (not at all) to {high:g} (fully).',
    score,
    {'max_tokens': 1024},
  ),
  'logprobs': Format(
    _WORD, logprobs, {'max_tokens': 1, 'logprobs': True, 'top_logprobs': 20}
  ),
}
