"""Allows several tries at a problem; a host reward verifies each try.

  18#25  ->  wrong  ->  18#26  ->  (over)

The reward has any name: `task`, `math`, `gym` of reasoning-gym, or your own. A
correct try has its score minus `price` for each earlier try. The observation of
an incorrect try is `says`; with `details` the verifier's detail is added.
"""

import inspect

from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.tools import Answer
from jaxrl_reason.verifiers.verdict import judge


class Retry:
  """Plays problems with several tries."""

  def __init__(
    self,
    reward: str,
    says: str = 'wrong\n',
    price: float = 0.0,
    details: bool = False,
  ):
    """Args:
    reward: by name; a score above 0.5 is correct.
    says: observation of an incorrect try; price: subtracted from the reward of
      the next try; details: add the verifier's detail.
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
