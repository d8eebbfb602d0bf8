"""Rewards with no truth in them, to run beside one that has: what a run gains
with these it does not owe to its verifier.

"Spurious Rewards" (https://arxiv.org/abs/2506.10947) found that for some models
even random ones raise accuracy. On the fused path the kernels of the same names
give the same.
"""

from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import problem
from jaxrl_reason.verifiers.verdict import Verdict


def _said(score: float, completion: str) -> Verdict:
  return Verdict(score, extracted=problem.final_answer(completion))


def random(completion: str, example: dict, *, p: float = 0.5) -> Verdict:
  """Returns 1 with probability p, whatever the completion says: by
  example['uniform'], a number in [0, 1) that the run draws for every row.
  """
  return _said(float(example['uniform'] < p), completion)


def well_formed(completion: str, example: dict) -> Verdict:
  """Returns 1 where there is one marker and then an answer of the task's kind,
  right or wrong.
  """
  return _said(tasks.check_format(completion, example), completion)
