"""Verifies as `math.reward`, and by sympy for sums, integrals and limits.

sympy runs only if the usual comparison fails and one of the answers has such an
operator. It can run for minutes, so use this reward in a `VerifierPool`, whose
time limit makes such a case invalid. The import takes half a second, once per
pool.
"""

from jaxrl_reason.verifiers import math, thoughts
from jaxrl_reason.verifiers.math.expr import answers, by_sympy
from jaxrl_reason.verifiers.math.expr.nodes import Limit, ParseError
from jaxrl_reason.verifiers.math.expr.tree_walk import Outside
from jaxrl_reason.verifiers.verdict import Verdict


def reward(
  completion: str,
  example: dict,
  *,
  strict: bool = False,
  evaluated: bool = True,
) -> Verdict:
  """Scores 1 if the completion's answer is example['answer'], else 0.

  An operator may stay in the answer, but with `evaluated` a formula of the
  question is no answer.
  """
  completion = thoughts.in_context(completion, example)
  gold = math.bare_gold(example['answer'])
  verdict = math.grade(completion, gold, strict=strict)
  if verdict.score != 1.0 and verdict.status == 'parsed':
    verdict = _by_sympy(verdict, gold)
  if not evaluated:
    return verdict
  return math.checked(verdict, completion, example, numeric=False)


def _by_sympy(verdict: Verdict, gold: str) -> Verdict:
  try:
    same = _equal(verdict.extracted, gold)
  # sympy's own refusals: NotImplementedError, its polynomial errors.
  except (ParseError, Limit, Outside, ArithmeticError, NotImplementedError):
    return verdict
  return Verdict(float(same), 'parsed', verdict.extracted)


def _equal(answer: str, gold: str) -> bool:
  a, b = (answers.value(text) for text in (answer, gold))
  return (a.has('opaque') or b.has('opaque')) and by_sympy.equal(a, b)
