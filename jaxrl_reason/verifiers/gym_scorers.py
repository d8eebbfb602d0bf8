"""Verifies answers by the scorers of reasoning-gym, only in pool workers.

  completion -> the answer (<answer>...</answer>, or all after </think>)
             -> dataset.score_answer(answer, entry) -> threshold

Several of these scorers execute the answer (`eval`, sympy's `parse_expr`), so
their time depends on the answer. The reward therefore runs only in a
`VerifierPool`, which limits time and memory. A pool isolates crashes and
endless loops, but not malicious programs. Many scorers return 0.01 or more for
any text, so scores below a threshold become 0.
"""

import contextlib
import functools
import math
import os

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.pool.worker import INSIDE
from jaxrl_reason.verifiers.resolve import RewardError
from jaxrl_reason.verifiers.tasks import gym
from jaxrl_reason.verifiers.verdict import Verdict

MAX_CHARS = 20_000  # of an answer
# The nursery imports it once, in seconds, which do not count against the limit
# of a worker's first case. If it is missing, `tasks.gym` raises the error.
with contextlib.suppress(ImportError):
  import reasoning_gym  # noqa: F401


@functools.cache
def _scorer(family: str):
  return gym.dataset(family).score_answer


def reward(
  completion: str,
  example: dict,
  *,
  threshold: float = 1.0,
  part: str = 'answer',
) -> Verdict:
  """Returns the score of the answer if it reaches the threshold, else 0.

  Reads 'entry' (or meta['entry']), and the family in 'task'. If the scorer
  raises an exception, the status is 'unparsed' and the score 0.

  Raises:
    RewardError: called outside of a verifier pool.
    FieldError, ValueError: an entry or a family is missing.
  """
  if INSIDE not in os.environ:
    raise RewardError(
      "the reward 'gym' may execute the answer: it runs in a VerifierPool only"
    )
  entry = fields.field(example, 'entry', dict)
  family = fields.field(example, 'task', str).removeprefix(gym.PREFIX)
  scorer = _scorer(family)
  answer = fields.final(completion, part)
  if answer is None or not answer.strip():
    return Verdict(0.0, 'no_answer')
  answer = answer.strip()
  if len(answer) > MAX_CHARS:
    return Verdict(0.0, 'unparsed', detail=f'over {MAX_CHARS} characters')
  try:
    score = float(scorer(answer, entry))
  except MemoryError:
    raise  # the worker's limit, not the answer's form
  # Scorers may raise any exception of their parsers on hostile text.
  except Exception as e:
    why = f'the scorer raised {type(e).__name__}: {e}'[:200]
    return Verdict(0.0, 'unparsed', answer[:200], why)
  kept = math.isfinite(score) and score >= threshold
  return Verdict(score if kept else 0.0, extracted=answer[:200])
