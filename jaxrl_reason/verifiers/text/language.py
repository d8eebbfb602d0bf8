"""Detects the language of a text, offline and deterministically.

  letters -> scripts -> languages of these scripts -> py3langid chooses one

py3langid is a naive Bayes classifier over bytes (Lui and Baldwin 2012,
https://aclanthology.org/P12-3005). It reads words without numbers and signs,
and chooses among the 62 languages of `scripts`; its dialects and constructed
languages are excluded, because they would only cause errors. Its model takes a
second of CPU time and 105 MB. It is read when this module is imported, because
a pool imports the module once, and its forked workers share the memory.
"""

import math

import py3langid.langid

from jaxrl_reason.verifiers.text import scripts
from jaxrl_reason.verifiers.text.scripts import codes

MAX_CHARS = 20_000  # characters that are read
SHARE = 1 / 3  # least share of the letters for a script
KANA = 0.05  # least share of kana for Japanese


def _model() -> py3langid.langid.LanguageIdentifier:
  path = py3langid.langid.MODEL_FILE
  model = py3langid.langid.LanguageIdentifier.from_model_file(path)
  model.set_languages(codes() & set(model.labels))
  return model


_MODEL = _model()


def likelihoods(text: str) -> dict[str, float]:
  """Returns the log-likelihood (nats, up to a constant) of each language."""
  letters = scripts.NO_LETTERS.sub(' ', text[:MAX_CHARS]).strip()
  return dict(_MODEL.rank(letters))


def detect(text: str) -> str | None:
  """Returns the language of a text (ISO 639-1), or None without letters.

  Among equally likely languages, it is the first of the most frequent script:
  English for Latin letters.
  """
  codes = _possible(text[:MAX_CHARS])
  if len(codes) < 2:
    return codes[0] if codes else None
  known = likelihoods(text)
  return max(codes, key=lambda code: known.get(code, -math.inf))


def _possible(text: str) -> list[str]:
  """Lists the languages of a text's scripts, the most frequent script first."""
  counts = scripts.scripts(text)
  kana, han = counts.pop('Kana', 0.0), counts.pop('Han', 0.0)
  if kana + han:
    counts['Kana' if kana >= KANA * (kana + han) else 'Han'] = kana + han
  least = SHARE * sum(counts.values())
  return [
    code
    for script in sorted(counts, key=lambda s: (-counts[s], s))
    if counts[script] >= least
    for code in scripts.LANGUAGES.get(script, [script])
  ]


def lead(words: list[str], code: str) -> float:
  """Computes by how many nats the likeliest language is likelier than `code`.

  `words` are units in the alphabet of `code`. Only languages with a common
  script are compared. 0: `code` is the likeliest, or has its own alphabet.
  """
  rivals = scripts.languages(code)
  if len(rivals) == 1 or not words:
    return 0.0
  known = likelihoods(' '.join(words))
  return max(known[rival] for rival in rivals) - known[code]
