"""Is a completion in the language of its prompt?

  prompt -> its language -> the share of the completion's words that are in it

The share of target-language words of https://arxiv.org/abs/2501.12948, section
2.3.2. Words of another alphabet are in another language; the others count
sentence by sentence.
"""

import re

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import language, scripts, sentences

# Nats by which another language must be likelier than the one asked for. Of
# the 4,861 sentences of GSM8K's test solutions 1 is over it, and of 1,437
# texts of 40 to 100 characters in other languages of the Latin script 99.6 %.
SLACK = 15.0
# What has no language: code, formulas, commands, addresses, tags.
NO_PROSE = re.compile(
  r'```[^`]*(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$'
  r'|\\[a-zA-Z]+|https?://\S+|</?[A-Za-z_]\w*>'
)


def share_in(text: str, code: str) -> float | None:
  """Computes the share of a text's words in the language `code`; None without
  words.

  A word of another alphabet is none. The others count sentence by sentence,
  unless some language of the same alphabet leads by more than `SLACK`.
  """
  alphabet = scripts.alphabet(code)
  right = total = 0
  for line in NO_PROSE.sub(' ', text).split('\n'):
    for sentence in sentences.sentences(line):
      found = scripts.units(sentence)
      own = [u for u in found if scripts.script_of(u[0]) in alphabet]
      total += len(found)
      right += len(own) if language.lead(own, code) <= SLACK else 0
  return right / total if total else None


def reward(
  completion: str, example: dict, *, part: str = 'all', code: str | None = None
) -> float:
  """Computes the share of the completion in the language of example['prompt'].

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
