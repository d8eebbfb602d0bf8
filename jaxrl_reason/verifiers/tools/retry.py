"""Several tries at a problem: a verifier of the host says whether one is right.

  18#25  ->  wrong  ->  18#26  ->  (over)

For any reward by name, that of the data (`task`, `math`, `gym` of reasoning-gym
and so on) or one's own. A right try gives its score, less `price` for each one
before it; a wrong one is answered by `says`, and by the verifier's own words
with `details`.
"""

import inspect

from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.tools import Answer
from jaxrl_reason.verifiers.verdict import judge


class Retry:
  """Answers wrong tries."""

  def __init__(
    self,
    reward: str,
    says: str = 'wrong\n',
    price: float = 0.0,
    details: bool = False,
  ):
    """Args:
    reward: by name; a score above 0.5 is right.
    says: to a wrong try; price: off the reward of the next; details: also
      what the verifier says of it.
    """
    if price < 0:
      raise ValueError(f'{price=} is below 0')
    self._reward = resolve.load(reward)
    if not inspect.signature(self._reward).parameters:
      raise ValueError(f'reward={reward!r} takes no completion')
    self._says, self._price, self._details = says, price, details

  def __call__(self, text: str, example: dict, state) -> Answer:
    tries = state or 0
    verdict = judge(self._reward, text, example)
    if not verdict.valid:
      raise RuntimeError(verdict.detail)
    if verdict.score > 0.5:
      return Answer(None, tries, verdict.score - self._price * tries)
    more = f'{verdict.detail}\n' if self._details and verdict.detail else ''
    event = 'malformed' if verdict.status == 'no_answer' else ''
    return Answer(more + self._says, tries + 1, 0.0, event)
