"""Generates compositions of string functions, applied from left to right.

  prompt    abcd|RLD=
  solution  dcba cbad#cbadcbad

The steps are the intermediate strings. The functions:

  R  reverse              abca -> acba     I  next letter, i -> a  abia -> bcab
  S  sort                 abca -> aabc     U  drop repeats         abca -> abc
  L  first letter last    abca -> bcaa     T  drop the first       abca -> bca
  X  swap both ends       abcd -> dbca     D  double               ab   -> abab
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'string_functions'
LETTERS = 'abcdefghi'
_NEXT = str.maketrans(LETTERS, LETTERS[1:] + LETTERS[0])

FUNCTIONS = 'RSLXIUTD'


def apply(name: str, s: str) -> str:
  """Applies one of FUNCTIONS to a string."""
  match name:
    case 'R':
      return s[::-1]
    case 'S':
      return ''.join(sorted(s))
    case 'L':
      return s[1:] + s[:1]
    case 'X':
      return s[-1] + s[1:-1] + s[0] if len(s) > 1 else s
    case 'I':
      return s.translate(_NEXT)
    case 'U':
      return ''.join(dict.fromkeys(s))
    case 'T':
      return s[1:]
    case 'D':
      return s + s
  raise ValueError(f'functions={name!r}: choose from {FUNCTIONS}')


def generate(
  rng: np.random.Generator,
  *,
  min_functions: int,
  max_functions: int,
  min_length: int,
  max_length: int,
  max_result: int,
  functions: str,
) -> problem.Example | None:
  length = problem.between(rng, min_length, max_length)
  text = ''.join(problem.choose(rng, LETTERS) for _ in range(length))
  prompt, states = text + '|', []
  for _ in range(problem.between(rng, min_functions, max_functions)):
    name = problem.choose(rng, functions)
    prompt += name
    text = apply(name, text)
    if not 0 < len(text) <= max_result:
      return None
    states.append(text)
  return problem.make_example(NAME, prompt + '=', states[:-1], states[-1])


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_text,
  knobs=dict(
    min_functions=2,  # functions in a problem, at least 1
    max_functions=4,
    min_length=3,  # letters of the first string
    max_length=5,
    max_result=8,  # letters of a string; longer ones are drawn again
    functions=FUNCTIONS,  # functions to draw from
  ),
  harder=dict(min_functions=5, max_functions=6),
  alphabet=LETTERS + FUNCTIONS + '|= ' + problem.MARKER,
  answer_chars=LETTERS,
  kernel='text',
  choices=dict(functions=FUNCTIONS),
)
