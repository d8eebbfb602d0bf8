"""The reward of the procedural tasks: a task's own checker, by name 'task'; and
that of a mixture, which an example names itself.
"""

from jaxrl_reason import tasks
from jaxrl_reason.rewards import resolve
from jaxrl_reason.rewards.verdict import Verdict
from jaxrl_reason.tasks import base


def reward(completion: str, example: dict) -> Verdict:
  """Gives 1 if the final answer is right; see `jaxrl_reason.tasks.base`."""
  answer = base.final_answer(completion)
  status = 'no_answer' if answer is None else 'parsed'
  return Verdict(tasks.check(completion, example), status, answer)


def by_source(completion: str, example: dict) -> float | Verdict:
  """Judges by the reward that verifies the example's source (`verifier`)."""
  return resolve.load(example['verifier'])(completion, example)
