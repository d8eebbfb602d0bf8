"""Rewards the form of a completion: tags, and no repetition.

`tags`: 1 for  ws <think> text </think> ws <answer> text </answer> ws.  Each tag
  occurs once, in this order, with only white space outside
  (https://arxiv.org/abs/2501.12948, the format reward).
`repetition`: minus the share of words inside an n-gram that occurred before
  (https://arxiv.org/abs/2502.03373, the n-gram repetition penalty, summed over
  the completion and divided by its length).

Rewards for length are not here but in `jaxrl_reason.losses.length`: they count
tokens, so they are functions of the mask.
"""

import re
from collections.abc import Sequence

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import scripts
from jaxrl_reason.verifiers.verdict import Verdict

MAX_WORDS = 50_000  # words of a completion that are read
MAX_GRAM = 100

# --- tags ----------------------------------------------------------------


def tagged(
  text: str, names: Sequence[str] = ('think', 'answer'), *, opened: bool = False
) -> list[str] | None:
  """Returns the contents of the tags if the text has the form, else None.

  `opened`: the first opening tag is at the end of the prompt.
  """
  tag_names = [tag for name in names for tag in (f'<{name}>', f'</{name}>')]
  # Matches all tags, so that a repeated tag breaks the form.
  marks = re.compile('|'.join(map(re.escape, tag_names)))
  if opened:
    text = tag_names[0] + text
  matches = list(marks.finditer(text))
  if [match[0] for match in matches] != tag_names:
    return None
  edges = [0, *(i for m in matches for i in m.span()), len(text)]
  pieces = [text[a:b] for a, b in zip(edges[::2], edges[1::2])]
  # Outside, inside, outside, ..., outside.
  if any(piece.strip() for piece in pieces[::2]):
    return None
  return pieces[1::2]


def tags(
  completion: str,
  example: dict,
  *,
  names: Sequence[str] = ('think', 'answer'),
  opened: bool = False,
  empty: bool = False,
) -> Verdict:
  """Returns 1 if the completion has the form. Unless `empty`, each tag must
  contain text.
  """
  contents = tagged(completion, names, opened=opened)
  right = contents is not None and (empty or all(c.strip() for c in contents))
  return Verdict(float(right), extracted=contents[-1] if right else None)


# --- repetition ----------------------------------------------------------


def repeated_share(items: Sequence[str], n: int) -> float:
  """Computes the share of the items inside an n-gram that occurred before."""
  seen: set[tuple] = set()
  covered = end = 0  # items before `end` are counted
  for i in range(len(items) - n + 1):
    gram = tuple(items[i : i + n])
    if gram in seen:
      covered += i + n - max(i, end)
      end = i + n
    seen.add(gram)
  return covered / len(items) if items else 0.0


def repetition(
  completion: str, example: dict, *, n: int = 10, part: str = 'all'
) -> float:
  """Computes minus the share of words in repeated n-grams, in [-1, 0].

  Numbers and signs are ignored, so a table is not a repetition.
  """
  if not 1 <= n <= MAX_GRAM:
    raise ValueError(f'n={n}: an n-gram has 1 to {MAX_GRAM} words')
  text = fields.final(completion, part) or ''
  return -repeated_share(scripts.units(text)[:MAX_WORDS], n)
