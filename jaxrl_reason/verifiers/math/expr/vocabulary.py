"""Lists the words and commands of the grammar."""

import re
from fractions import Fraction

# Spelling -> canonical function.
FUNCTIONS = {
  name: name
  for name in (
    'sin cos tan cot sec csc sinh cosh tanh coth sech csch ln log lg exp abs '
    'floor ceil max min gcd lcm arg det sgn arcsin arccos arctan arccot '
    'arcsec arccsc arcsinh arccosh arctanh'
  ).split()
} | {
  'asin': 'arcsin',
  'acos': 'arccos',
  'atan': 'arctan',
  'asinh': 'arcsinh',
  'acosh': 'arccosh',
  'atanh': 'arctanh',
  'arsinh': 'arcsinh',
  'arcosh': 'arccosh',
  'artanh': 'arctanh',
  'tg': 'tan',
  'ctg': 'cot',
  'arctg': 'arctan',
  'cosec': 'csc',
  'sh': 'sinh',
  'ch': 'cosh',
  'th': 'tanh',
  'ceiling': 'ceil',
  'sign': 'sgn',
  'gcf': 'gcd',
}
# Short spellings that are commands only: `th` in text is an ordinal.
COMMAND_ONLY = frozenset(('sh', 'ch', 'th', 'arg', 'det'))
INVERSE = {
  'sin': 'arcsin',
  'cos': 'arccos',
  'tan': 'arctan',
  'cot': 'arccot',
  'sec': 'arcsec',
  'csc': 'arccsc',
  'sinh': 'arcsinh',
  'cosh': 'arccosh',
  'tanh': 'arctanh',
}
CONSTANTS = {'pi': 'pi', 'infty': 'inf', 'infinity': 'inf', 'inf': 'inf'}
CONSTANTS |= {'oo': 'inf', 'e': 'e', 'i': 'i'}
GREEK_NAMES = frozenset(
  'alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota '
  'kappa lambda mu nu xi omicron rho sigma tau upsilon phi varphi chi psi '
  'omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega'.split()
)
GREEK_ALIASES = {'varepsilon': 'epsilon', 'vartheta': 'theta', 'varphi': 'phi'}
# Commands whose argument is words, not a product of letters.
TEXT_COMMANDS = frozenset(
  'text textrm textbf textit textsf texttt textnormal mathrm mbox hbox '
  'operatorname mathit mathsf mathtt mathnormal emph unit si'.split()
)
SKIPPED = frozenset(
  'left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr '
  'bigm Bigm middle displaystyle textstyle scriptstyle limits nolimits quad '
  'qquad enspace thinspace hline rm bf it sf tt hfill null relax space '
  'allowbreak nobreak displaylimits mathstrut strut hskip cal small large '
  'Large ensuremath boldmath vphantom'.split()
)
# Relations and operators, all spellings.
OPERATORS = {
  'cdot': '*',
  'times': '*',
  'ast': '*',
  'star': '*',
  'bullet': '*',
  'div': '/',
  'over': '/',
  'pm': 'pm',
  'mp': 'mp',
  'le': '<=',
  'leq': '<=',
  'leqslant': '<=',
  'leqq': '<=',
  'ge': '>=',
  'geq': '>=',
  'geqslant': '>=',
  'geqq': '>=',
  'lt': '<',
  'gt': '>',
  'ne': '!=',
  'neq': '!=',
  'approx': '~',
  'simeq': '~',
  'sim': '~',
  'cong': '~',
  'equiv': '=',
  'in': 'in',
  'notin': 'notin',
  'subset': 'subset',
  'subseteq': 'subset',
  'cup': 'union',
  'bigcup': 'union',
  'cap': 'inter',
  'bigcap': 'inter',
  'setminus': 'minus',
  'smallsetminus': 'minus',
  'backslash': 'minus',
  'land': 'and',
  'wedge': 'and',
  'lor': 'or',
  'vee': 'or',
  'colon': ':',
  'mid': '|',
  'vert': '|',
  'lvert': '|',
  'rvert': '|',
  'lbrace': '\\{',
  'rbrace': '\\}',
  'lbrack': '[',
  'rbrack': ']',
  'to': 'to',
  'rightarrow': 'to',
  'mapsto': 'to',
  'Rightarrow': 'imply',
  'implies': 'imply',
  'Leftrightarrow': 'iff',
  'iff': 'iff',
  'parallel': 'parallel',
  'perp': 'perp',
  'degree': '°',
  'circ': 'circ',
  'prime': "'",
  'dots': '...',
  'ldots': '...',
  'cdots': '...',
  'vdots': '...',
  'not': 'not',
}
WORD_OPERATORS = {
  'and': 'and',
  'or': 'or',
  'to': ':',
  'union': 'union',
  'pm': 'pm',
  '且': 'and',
  '和': 'and',
  '与': 'and',
  '以及': 'and',
  '或': 'or',
  '或者': 'or',
}
# Words for a number of things, only directly after a number.
GROUPS = {
  'brace': 2,
  'score': 20,
  **{
    word: n
    for name, n in (
      ('pair', 2),
      ('couple', 2),
      ('duo', 2),
      ('trio', 3),
      ('quartet', 4),
      ('quintet', 5),
      ('sextet', 6),
      ('septet', 7),
      ('octet', 8),
      ('myriad', 10**4),
    )
    for word in (name, f'{name}s')
  },
}
# Words for powers of ten after a number, and for bases.
SCALES = {
  'hundred': 100,
  'thousand': 10**3,
  'million': 10**6,
  'billion': 10**9,
  'trillion': 10**12,
  'lakh': 10**5,
  'crore': 10**7,
  **GROUPS,
  **dict.fromkeys(('dozen', 'dozens'), 12),
  'gross': 144,
  'tens': 10,
  'hundreds': 100,
  'thousands': 10**3,
  'millions': 10**6,
  'billions': 10**9,
  **{
    word: Fraction(1, below)
    for below, word in (
      *enumerate(
        'halves thirds fourths fifths sixths sevenths eighths'.split(), 2
      ),
      *((9, 'ninths'), (10, 'tenths'), (100, 'hundredths')),
      (1000, 'thousandths'),
    )
  },
  '百': 100,
  '千': 10**3,
  '万': 10**4,
  '亿': 10**8,
}
BASES = {
  'two': 2,
  'three': 3,
  'four': 4,
  'five': 5,
  'six': 6,
  'seven': 7,
  'eight': 8,
  'nine': 9,
  'ten': 10,
  'twelve': 12,
  'sixteen': 16,
}
APPROXIMATELY = frozenset(
  'approximately about around roughly approx nearly 约 大约'.split()
)
# Words before or after a number that indicate a second answer or a range, and
# words that compute with the number. They are not units.
HEDGES = frozenset(
  'squared cubed factorial negative below half third quarter double twice '
  'halved doubled tripled thrice '
  'either maybe perhaps possibly alternatively otherwise else except unless '
  'than between versus oder instead without'.split()
)
ORDINALS = frozenset(('st', 'nd', 'rd', 'th'))
ROMAN_NUMERAL = re.compile('[IVX]{2,}')
FRACTIONS = frozenset(('frac', 'dfrac', 'tfrac', 'cfrac', 'nicefrac', 'sfrac'))
EMPTY_COMMANDS = frozenset(('emptyset', 'varnothing'))
# Functions that can be part of a run of letters: xlnx, 2sinxcosx.
_SPLIT = sorted(
  (set(FUNCTIONS) - COMMAND_ONLY - {'min', 'max'} | {'sqrt', 'pi', 'theta'}),
  key=len,
  reverse=True,
)
SPLIT = re.compile(f'({"|".join(_SPLIT)})')


def segments(word: str) -> list[str] | None:
  """Splits 'xlnx' into ['x', 'ln', 'x']; None without functions."""
  pieces = SPLIT.split(word)
  if len(pieces) == 1 or any(len(p) > 2 for p in pieces[::2]):
    return None
  letters = (list(p) if i % 2 == 0 else [p] for i, p in enumerate(pieces))
  return [piece for group in letters for piece in group]
