"""Converts Unicode and LaTeX notation to one plain form, before tokenization.

`clean` is idempotent. It changes how an answer is written, never what it
says: full-width and Chinese punctuation, superscripts, vulgar fractions,
Greek letters and operators become their ASCII or LaTeX spelling; math
delimiters, surrounding emphasis and a final full stop go away.
"""

import re
import unicodedata

GREEK = dict(
  zip(
    'αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩϕϵϑ',
    'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi '
    'pi rho sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi '
    'Pi Sigma Upsilon Phi Psi Omega phi epsilon theta'.split(),
  )
)
SYMBOLS = {
  '×': r'\times',
  '⋅': r'\cdot',
  '·': r'\cdot',
  '∙': r'\cdot',
  '•': r'\cdot',
  '÷': r'\div',
  '±': r'\pm',
  '∓': r'\mp',
  '√': r'\sqrt',
  '∛': r'\cbrt',
  '∞': r'\infty',
  '≤': r'\le',
  '⩽': r'\le',
  '≦': r'\le',
  '≥': r'\ge',
  '⩾': r'\ge',
  '≧': r'\ge',
  '≠': r'\ne',
  '≈': r'\approx',
  '≡': r'\equiv',
  '∈': r'\in',
  '∉': r'\notin',
  '∪': r'\cup',
  '⋃': r'\cup',
  '∩': r'\cap',
  '∖': r'\setminus',
  '∅': r'\emptyset',
  'ø': r'\emptyset',
  'Ø': r'\emptyset',
  '⌀': r'\emptyset',
  'ℝ': r'\mathbb{R}',
  'ℤ': r'\mathbb{Z}',
  'ℕ': r'\mathbb{N}',
  'ℚ': r'\mathbb{Q}',
  'ℂ': r'\mathbb{C}',
  '∠': r'\angle',
  '△': r'\triangle',
  '∆': r'\Delta',
  '⊥': r'\perp',
  '∥': r'\parallel',
  '⟨': r'\langle',
  '⟩': r'\rangle',
  '⌊': r'\lfloor',
  '⌋': r'\rfloor',
  '⌈': r'\lceil',
  '⌉': r'\rceil',
  '→': r'\to',
  '⇒': r'\Rightarrow',
  '∧': r'\land',
  '∨': r'\lor',
  '¬': r'\neg',
  '∑': r'\sum',
  '∏': r'\prod',
  '∫': r'\int',
  '…': r'\ldots',
  '⋯': r'\ldots',
  'ℓ': 'l',
}
PLAIN = {
  '−': '-',
  '–': '-',
  '—': '-',
  '‐': '-',
  '‑': '-',
  '﹣': '-',
  '∕': '/',
  '⁄': '/',
  '∗': '*',
  '，': ', ',
  '、': ', ',
  '﹐': ', ',
  '；': '; ',
  '。': '. ',
  '：': ':',
  '∶': ':',
  '∣': '|',
  '〈': r'\langle ',
  '〉': r'\rangle ',
  '【': '[',
  '】': ']',
  '“': '"',
  '”': '"',
  '‘': "'",
  '’': "'",
  '′': "'",
  '″': "''",
  'º': '°',
  '˚': '°',
  '℃': '°C',
  '℉': '°F',
  '％': '%',
  '￥': '¥',
  '＄': '$',
  '\u3000': ' ',
  '\u00a0': ' ',
  '\u2009': ' ',
  '\u202f': ' ',
  '\u2061': '',
  '\u2062': '*',
  '\u200b': '',
  '\u200c': '',
  '\u200d': '',
  '\u2060': '',
  '\ufeff': '',
  'µ': r'\mu ',
}
SUPERSCRIPTS = dict(zip('⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣʸ', '0123456789+-=()nixy'))
SUBSCRIPTS = dict(zip('₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₒₓₙₖₘᵢⱼ', '0123456789+-=()aeoxnkmij'))
FRACTIONS = {
  '½': (1, 2),
  '⅓': (1, 3),
  '⅔': (2, 3),
  '¼': (1, 4),
  '¾': (3, 4),
  '⅕': (1, 5),
  '⅖': (2, 5),
  '⅗': (3, 5),
  '⅘': (4, 5),
  '⅙': (1, 6),
  '⅚': (5, 6),
  '⅐': (1, 7),
  '⅛': (1, 8),
  '⅜': (3, 8),
  '⅝': (5, 8),
  '⅞': (7, 8),
  '⅑': (1, 9),
  '⅒': (1, 10),
}


def _table() -> dict[int, str]:
  table = {ord(c): f'\\{name} ' for c, name in GREEK.items()}
  table |= {ord(c): f'{name} ' for c, name in SYMBOLS.items()}
  table |= {ord(c): rf'\frac{{{a}}}{{{b}}}' for c, (a, b) in FRACTIONS.items()}
  # Full-width ASCII, then the exceptions.
  table |= {c: chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)}
  # Mathematical bold, italic, ... letters and digits.
  for code in range(0x1D400, 0x1D800):
    plain = unicodedata.normalize('NFKC', chr(code))
    if plain.isascii() and plain.isalnum():
      table[code] = plain
    elif plain in GREEK:
      table[code] = f'\\{GREEK[plain]} '
  return table | {ord(c): text for c, text in PLAIN.items()}


TABLE = _table()
SUPER = re.compile(f'[{"".join(SUPERSCRIPTS)}]+')
SUB = re.compile(f'[{"".join(SUBSCRIPTS)}]+')
SUPER_TABLE = str.maketrans(SUPERSCRIPTS)
SUB_TABLE = str.maketrans(SUBSCRIPTS)
# \\color{red}, and invisible space.
PAINT = re.compile(
  r'\\(?:textcolor|color) ?\{[a-zA-Z]{1,20}\}|\\[hv]?phantom ?\{[^{}]{0,40}\}'
)
# 2 (mod 5), with any notation of the brackets and "mod".
MODULO = re.compile(
  r'\(\s*(?:\\(?:text|mathrm|operatorname)\s*\{\s*mod\s*\}|\\?mod\b|\\bmod\b)'
  r'\s*([0-9]{1,9})\s*\)'
)
# 10{:}30, and minus 3 in words.
BRACED = re.compile(r'\{([:.])\}')
MINUS = re.compile(r'^(?:\\text\s*\{\s*)?(?:negative|minus)\s*\}?\s*(?=[0-9])')
# A chance: 1 in 6, 1 out of 6.
CHANCE = re.compile(
  r'^([0-9]{1,9})\s*(?:\\text\s*\{)?\s*(?:in|out of)\s*\}?\s*([0-9]{1,9})$'
)
# A letter x for the sign of a product: 1.5 x 10^3.
SCIENTIFIC = re.compile(
  r'(?<=[0-9]) ?(?:[xX]|\\(?:text|mathrm) ?\{ ?[xX] ?\}) ?(?=10 ?\^)'
)
PER_MILLE = re.compile(r'‰|\bper mille?\b')
SPACES = re.compile(r'\s+')
# Emphasis, also of one value among several; 2**3 is a power.
BOLD = re.compile(r'(?<![\w)}\]])\*\*([^*\s](?:[^*]*[^*\s])?)\*\*(?![\w(])')
# \( \) and \[ \] around one value among several; \\ ends a row of a matrix.
MATH_MARK = re.compile(r'(?<!\\)\\[()\[\]]')
# Remarks about rounding are removed: 12 (to the nearest integer).
_HOW = (
  r'(?:approx(?:\.|imately)?|rounded|rounding|correct|exact(?:ly)?|up|down|off)'
)
_PLACE = (
  r'(?:to\s+)?(?:the\s+)?(?:nearest\s+(?:[a-z]+[\s-]?){1,3}'
  r'|(?:[0-9]+|one|two|three|four|five)\s+'
  r'(?:decimals?(?:\s+places?)?|d\.?\s?p\.?|significant\s+(?:figures?|digits?)'
  r'|s\.?\s?f\.?|sig\.?\s*figs?\.?))'
)
REMARK = re.compile(
  r'[\s,;~]*(?:\\[ ,;:]|\\q?quad)*\s*\(?\s*'
  r'(?:\\(?:text|mathrm|textrm)\s*\{)?\s*\(?'
  rf'\b(?:in\s+(?:total|all)|altogether|after\s+rounding|{_HOW}(?:,?\s+{_HOW})*(?:,?\s+{_PLACE})?|{_PLACE})'
  r'\s*\)?\s*\}?\s*\)?\s*\.?$',
  re.I,
)
DELIMITERS = (
  ('$$', '$$'),
  ('$', '$'),
  (r'\(', r'\)'),
  (r'\[', r'\]'),
  ('**', '**'),
  ('`', '`'),
  ('"', '"'),
)


def to_ascii(text: str) -> str:
  """Converts Unicode notation to ASCII and LaTeX. Keeps other scripts."""
  if text.isascii():
    return text
  text = SUPER.sub(_superscript, text)
  text = SUB.sub(_subscript, text)
  return text.translate(TABLE)


def _superscript(match: re.Match) -> str:
  return f'^{{{match[0].translate(SUPER_TABLE)}}}'


def _subscript(match: re.Match) -> str:
  return f'_{{{match[0].translate(SUB_TABLE)}}}'


def clean(text: str) -> str:
  """Returns an answer without delimiters, emphasis, colour and remarks."""
  text = _spaced(text)
  if text[-1:] in ')}].' or text[-1:].isalpha():
    return _spaced(REMARK.sub(_balanced, text)) or text
  return text


def _balanced(remark: re.Match) -> str:
  """Removes a remark, but keeps a brace that it only closes."""
  braces = remark[0].count('}') - remark[0].count('{')
  brackets = remark[0].count(')') - remark[0].count('(')
  if not remark.start() or brackets or braces < 0:
    return remark[0]
  return '}' * braces


def _spaced(text: str) -> str:
  """Removes delimiters and repeated spaces."""
  text = MODULO.sub(r'\\pmod{\1}', text)
  text = PER_MILLE.sub(' permille', text)
  text = SPACES.sub(' ', PAINT.sub('', to_ascii(text))).strip()
  text = SCIENTIFIC.sub(r' \\times ', text)
  text = CHANCE.sub(r'\1/\2', MINUS.sub('-', BRACED.sub(r'\1', text)))
  text = MATH_MARK.sub('$', BOLD.sub(r'\1', text))
  while True:
    bare = _undress(text)
    if bare == text:
      return text
    text = bare


def _undress(text: str) -> str:
  """Removes one layer of delimiters, or trailing characters."""
  text = text.strip()
  for left, right in DELIMITERS:
    inner = text[len(left) : -len(right)]
    if (
      len(text) > len(left) + len(right)
      and text.startswith(left)
      and text.endswith(right)
      and left not in inner
      and right not in inner
    ):
      return inner.strip()
  if text.endswith(('.', ',', ';', ':')) and not text.endswith('..'):
    return text[:-1].rstrip().removesuffix('\\')
  if text.endswith('\\') and not text.endswith('\\\\'):
    return text[:-1]  # a space, \\ , without its blank
  return text
