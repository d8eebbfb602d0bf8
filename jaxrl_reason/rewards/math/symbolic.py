"""`math.reward`, with sympy for sums, integrals and limits left in an answer.

Only where the usual comparison says no and one of the answers has such an
operator. sympy can run for minutes: use this in a `VerifierPool`, whose limit
makes such a case invalid. Importing it takes half a second, once per pool.
"""

from jaxrl_reason.rewards import math
from jaxrl_reason.rewards.math.expr import answers, symbolic
from jaxrl_reason.rewards.math.expr.evaluate import Outside
from jaxrl_reason.rewards.math.expr.nodes import Limit, ParseError
from jaxrl_reason.rewards.verdict import Verdict


def reward(completion: str, example: dict, *, strict: bool = False) -> Verdict:
  """Gives 1 if the completion's answer is example['answer'], else 0."""
  gold = math.bare_gold(example['answer'])
  verdict = math.grade(completion, gold, strict=strict)
  if verdict.score == 1.0 or verdict.status != 'parsed':
    return verdict
  try:
    same = _equal(verdict.extracted, gold)
  # sympy's own refusals: NotImplementedError, its polynomial errors.
  except (ParseError, Limit, Outside, ArithmeticError, NotImplementedError):
    return verdict
  return Verdict(float(same), 'parsed', verdict.extracted)


def _equal(found: str, gold: str) -> bool:
  a, b = (answers.value(text) for text in (found, gold))
  return (a.has('opaque') or b.has('opaque')) and symbolic.equal(a, b)
