"""The reward of the procedural tasks: a task's own checker, by name 'task'; and
that of a mixture, which an example names itself.
"""

from jaxrl_reason.verifiers import resolve, tasks
from jaxrl_reason.verifiers.tasks import problem
from jaxrl_reason.verifiers.verdict import Verdict


def reward(completion: str, example: dict) -> Verdict:
  """Returns 1 if the final answer is right; see `verifiers.tasks.problem`."""
  answer = problem.final_answer(completion)
  status = 'no_answer' if answer is None else 'parsed'
  return Verdict(tasks.check(completion, example), status, answer)


def by_source(completion: str, example: dict) -> float | Verdict:
  """Judges by the reward that verifies the example's source (`verifier`)."""
  return resolve.load(example['verifier'])(completion, example)
