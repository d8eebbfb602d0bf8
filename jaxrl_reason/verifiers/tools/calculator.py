"""Computes arithmetic on the host: the twin of `envs.calculator`, and a tool.

`step` returns `84>>` for `<<12*7=`, as the environment inside the graph does.
Tests compare them byte for byte.
"""

import re

from jaxrl_reason.verifiers.tools import Answer

K = 18  # digits of an operand
PRICE = 0.05  # of a call, subtracted from the reward
WIDTH = 48  # characters of a turn that are read
_CALL = re.compile(r'(-?[0-9]*)([+*/-])(-?[0-9]*)', re.S)
STOPS = ('=',)


def evaluate(expression: str) -> tuple[str, bool]:
  """Computes `12*7`: (the result or the error, whether it is an error)."""
  match = _CALL.fullmatch(expression)
  if not match:
    return 'error syntax', True
  a, op, b = match.groups()
  if not (a.strip('-') and b.strip('-')):
    return 'error syntax', True
  if max(len(x.lstrip('-')) for x in (a, b)) > K:
    return 'error digits', True
  x, y = int(a), int(b)
  if op != '/':
    return str(x * y if op == '*' else x + y if op == '+' else x - y), False
  if not y:
    return 'error zero', True
  quotient, rest = divmod(abs(x), abs(y))
  quotient = -quotient if (x < 0) != (y < 0) else quotient
  rest = -rest if x < 0 else rest
  return f'{quotient}r{rest}' if rest else str(quotient), False


def step(text: str, example: dict, state) -> Answer:
  """Answers a turn that ends in `=`; any other turn ends the episode."""
  del example
  long = len(text.encode()) > WIDTH
  if not (text.endswith('=') or long):
    return Answer(None, state)
  before, opened, expression = text[:-1].rpartition('<<')
  del before
  result, wrong = 'error syntax', True
  if opened and not long:
    result, wrong = evaluate(expression)
  event = 'malformed' if wrong else ''
  return Answer(f'{result}>>', state, -PRICE, event)


def calculate(expression: str) -> str:
  """Computes one sum, difference, product or quotient of two integers."""
  return evaluate(expression.replace(' ', ''))[0]
