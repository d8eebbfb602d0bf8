"""The form of a completion: tags, one language, no repetition.

`tags`: the automaton  ws <think> text </think> ws <answer> text </answer> ws
  accepts; each tag once, in this order, nothing outside but white space
  (https://arxiv.org/abs/2501.12948, the format reward).
`consistency`: the share of the completion that is in the prompt's language
  (same paper, section 2.3.2: the share of target-language words).
`repetition`: minus the share of words inside an n-gram that occurred before
  (https://arxiv.org/abs/2502.03373, the n-gram repetition penalty, summed over
  the completion and divided by its length).

Rewards for length count tokens, which text does not have: they are functions
of the mask, in `jaxrl_reason.losses.length`.
"""

import re
from collections.abc import Sequence

from jaxrl_reason.rewards import fields
from jaxrl_reason.rewards.text import language, sentences
from jaxrl_reason.rewards.verdict import Verdict

MAX_WORDS = 50_000  # of a completion that is looked at
MAX_GRAM = 100
# Between one and two frequent words that no other language has. 1 of the 6,187
# sentences of GSM8K's test solutions is over it.
SLACK = 5.0
# What has no language: code, formulas, commands, addresses, tags.
NO_PROSE = re.compile(
  r'```[^`]*(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$'
  r'|\\[a-zA-Z]+|https?://\S+|</?[A-Za-z_]\w*>'
)

# --- tags ----------------------------------------------------------------


def tagged(
  text: str, names: Sequence[str] = ('think', 'answer'), *, opened: bool = False
) -> list[str] | None:
  """The contents of the tags if the text has the form, else None.

  `opened`: the first opening tag stands at the end of the prompt already.
  """
  wanted = [tag for name in names for tag in (f'<{name}>', f'</{name}>')]
  # Any of the tags, wherever it is: a second one breaks the form.
  marks = re.compile('|'.join(map(re.escape, wanted)))
  if opened:
    text = wanted[0] + text
  found = list(marks.finditer(text))
  if [match[0] for match in found] != wanted:
    return None
  edges = [0, *(i for m in found for i in m.span()), len(text)]
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
  """1 if the completion has the form and, unless `empty`, text in each tag."""
  contents = tagged(completion, names, opened=opened)
  right = contents is not None and (empty or all(c.strip() for c in contents))
  return Verdict(float(right), extracted=contents[-1] if right else None)


# --- language ------------------------------------------------------------


def share_in(text: str, code: str) -> float | None:
  """The share of a text's words in the language `code`; None without words.

  A word of another alphabet is none. The others count sentence by sentence,
  unless some language of the same alphabet leads by more than `SLACK`.
  """
  alphabet = language.alphabet(code)
  right = total = 0
  for line in NO_PROSE.sub(' ', text).split('\n'):
    for sentence in sentences.sentences(line):
      found = language.units(sentence)
      own = [u for u in found if language.script_of(u[0]) in alphabet]
      total += len(found)
      right += len(own) if language.lead(own, code) <= SLACK else 0
  return right / total if total else None


def consistency(
  completion: str, example: dict, *, part: str = 'all', code: str | None = None
) -> float:
  """The share of the completion in the language of example['prompt'].

  `code`, or the example's 'language', names the language instead. Code,
  formulas and addresses do not count; a completion of nothing else gets 1.
  """
  if code is None:
    code = fields.field(example, 'language', str, default=None)
  if code is None:
    prompt = NO_PROSE.sub(' ', fields.field(example, 'prompt', str))
    code = language.detect(prompt)
  if code is None:
    return 1.0  # a prompt without words, such as "1 + 1 =", asks for none
  code = code.lower().split('-')[0]
  if code not in language.codes():
    raise ValueError(
      f'language {code!r}: not one of {sorted(language.codes())}'
    )
  share = share_in(fields.final(completion, part) or '', code)
  return 1.0 if share is None else share


# --- repetition ----------------------------------------------------------


def repeated_share(items: Sequence[str], n: int) -> float:
  """The share of the items inside an n-gram that occurred before."""
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
  """In [-1, 0]: minus the share of words in n-grams seen before.

  Numbers and signs are left out, so that a table is no repetition.
  """
  if not 1 <= n <= MAX_GRAM:
    raise ValueError(f'n={n}: an n-gram has 1 to {MAX_GRAM} words')
  text = fields.final(completion, part) or ''
  return -repeated_share(language.units(text)[:MAX_WORDS], n)
