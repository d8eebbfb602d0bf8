"""Checks the reasoning before an answer, for tasks whose steps can be computed.

A correct answer may follow from wrong steps. `cot_pass@k` counts samples whose
answer and reasoning are both correct (https://arxiv.org/abs/2506.14245, which
uses a judge; here steps are recomputed).
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from jaxrl_reason.verifiers.tasks import problem

_OPERATORS = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
}
# At least one operator on the left, one number on the right.
_EQUATION = re.compile(
  r'(\(*[\d.]+\s*[-+*/(][-+*/().\d\s]*?)=\s*(-?\d+(?:\.\d+)?)'
)
MOST = 200  # characters of a side, equations of a text
ROUNDING = Fraction(1, 100)  # results in words are rounded to cents


def same_steps(completion: str, example: Mapping) -> bool:
  """Returns whether the steps equal those of the reference solution, ignoring
  spaces, for tasks with only one form of the steps.
  """

  def steps(text):
    return text.partition(problem.MARKER)[0].split()

  return steps(completion) == steps(example['solution'])


def equations_hold(completion: str, example: Mapping) -> bool:
  """Returns whether the text has equations between numbers, and all of them
  hold.
  """
  del example
  text = re.sub(r'(?<=\d),(?=\d{3})|[$%]', '', completion)
  text = re.sub(r'(?<=[\d)\s])[x×](?=[\d(\s])', '*', text).replace('÷', '/')
  found = _EQUATION.findall(text)[:MOST]
  return bool(found) and all(_holds(*sides) for sides in found)


def _holds(left: str, right: str) -> bool:
  if max(len(left), len(right)) > MOST:
    return False
  while left.startswith('(') and left.count('(') > left.count(')'):
    left = left[1:]  # of the sentence around it
  try:
    value = _value(ast.parse(left.strip(), mode='eval').body)
  except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
    return False
  return abs(value - Fraction(right)) <= ROUNDING


def _value(node: ast.expr) -> Fraction:
  """Computes the value of an expression of numbers; raises ValueError for
  others.
  """
  if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
    return Fraction(str(node.value))
  if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
    return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    return -_value(node.operand)
  raise ValueError('not arithmetic')


# By the `task` of an example.
CHECKS: dict[str, Callable[[str, Mapping], bool]] = {
  **dict.fromkeys(
    ('arithmetic', 'base_conversion', 'string_functions'), same_steps
  ),
  'countdown': equations_hold,
  'gsm8k': equations_hold,
}


def check(completion: str, example: Mapping) -> bool | None:
  """Checks a completion's reasoning; returns None if the task has no check."""
  f = CHECKS.get(example.get('task', ''))
  return None if f is None else f(completion, example)
