"""Which language is a text in? Offline, deterministic, 62 languages.

  letters -> scripts -> the languages written in them -> py3langid among these

py3langid is a naive Bayes classifier over bytes (Lui and Baldwin 2012,
https://aclanthology.org/P12-3005). It gets the words without the numbers and
signs, and chooses among the 62 languages of `scripts`: the dialects and
constructed languages it also knows would only take votes. Its model takes a
second of CPU time and 105 MB, so it is read when this module is imported: a
pool imports once, and its workers, forked from there, share the memory.
"""

import math

import py3langid.langid

from jaxrl_reason.verifiers.text import scripts
from jaxrl_reason.verifiers.text.scripts import codes

MAX_CHARS = 20_000  # characters that are looked at
SHARE = 1 / 3  # of the letters, from which a script counts
KANA = 0.05  # share of kana from which Han characters are Japanese


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
  """Names the language of a text (ISO 639-1); None without any letter.

  Where nothing is likelier the first language of the commonest script is
  taken; for the Latin one that is English.
  """
  found = _possible(text[:MAX_CHARS])
  if len(found) < 2:
    return found[0] if found else None
  known = likelihoods(text)
  return max(found, key=lambda code: known.get(code, -math.inf))


def _possible(text: str) -> list[str]:
  """List the languages of the scripts of a text, the commonest script first."""
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


def lead(found: list[str], code: str) -> float:
  """Measures by how many nats `code` is behind the likeliest language.

  `found` are units of `code`'s own alphabet, and only languages of a script in
  common are compared: 0 if `code` is the likeliest, or alone in its alphabet.
  """
  rivals = scripts.languages(code)
  if len(rivals) == 1 or not found:
    return 0.0
  known = likelihoods(' '.join(found))
  return max(known[rival] for rival in rivals) - known[code]
