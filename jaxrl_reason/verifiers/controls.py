"""Computes control rewards, which do not depend on correctness.

If accuracy rises with them, the verifier is not the cause. "Spurious Rewards"
(https://arxiv.org/abs/2506.10947) found that random rewards raise the accuracy
of some models. On the fused path the kernels of the same names return the same
scores.
"""

from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import problem
from jaxrl_reason.verifiers.verdict import Verdict


def _said(score: float, completion: str) -> Verdict:
  return Verdict(score, extracted=problem.final_answer(completion))


def random(completion: str, example: dict, *, p: float = 0.5) -> Verdict:
  """Returns 1 with probability p, for any completion, by example['uniform'], a
  random number in [0, 1) for every row.
  """
  return _said(float(example['uniform'] < p), completion)


def well_formed(completion: str, example: dict) -> Verdict:
  """Returns 1 for one marker and an answer of the task's kind, correct or
  not.
  """
  return _said(tasks.check_format(completion, example), completion)
