"""Calls the checker of a task, or the verifier of an example in a mixture."""

from jaxrl_reason.verifiers import resolve, tasks
from jaxrl_reason.verifiers.tasks import problem
from jaxrl_reason.verifiers.verdict import Verdict


def reward(completion: str, example: dict) -> Verdict:
  """Returns 1 if the final answer is correct; see `verifiers.tasks.problem`."""
  answer = problem.final_answer(completion)
  status = 'no_answer' if answer is None else 'parsed'
  return Verdict(tasks.check(completion, example), status, answer)


def by_source(completion: str, example: dict) -> float | Verdict:
  """Calls the verifier of the example's source (`verifier`)."""
  return resolve.load(example['verifier'])(completion, example)
