"""Defines the section of the search in the rl stage."""

import dataclasses

from jaxrl_reason.config.record import Record
from jaxrl_reason.ranges import Count, CountOrNone


@dataclasses.dataclass(frozen=True)
class Search(Record):
  """A tree search for each step of a completion, by the rewards of the run
  (docs/step_search.md). A stage with the algorithm 'raft' trains on the correct
  completions of the search: expert iteration.
  """

  read_with = {'*': 'simulations'}

  # Candidates that are sampled and rewarded for each step of a completion; 0:
  # completions are samples of the policy.
  simulations: CountOrNone = 0
  candidates: Count = 4  # candidates for a step, from 2 to simulations
  step_tokens: Count = 16  # largest number of tokens of a step
  step_end: str = ''  # text of one token that also ends a step
  # Value of a candidate. verifier: the reward of the candidate and a sampled
  # rest of the completion; verifier_at_end: the reward of completions that have
  # ended, 0 of others.
  leaf: str = 'verifier'
