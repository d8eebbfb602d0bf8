"""The search that generates the completions of an rl stage, and its rules."""

from jaxrl_reason import losses
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.data import step_labels
from jaxrl_reason.rewards.kernels import KERNELS
from jaxrl_reason.rollouts.gumbel_search import LEAVES, Search, library

# Settings of a loss that trains on correct completions by their likelihood.
IMITATES = {'policy': 'log_likelihood', 'advantage': 'positives'}


def search_of(c: RL, tokenizer) -> Search:
  """Returns the search for the steps of completions.

  Raises:
    ImportError: mctx is not installed.
    ValueError: the end of a step is not one token.
  """
  s = c.search
  library()
  ends = step_labels.step_ends(s.step_end, tokenizer, 'rl.search.step_end')
  numbers = s.simulations, s.candidates, s.step_tokens
  return Search(*numbers, ends, LEAVES[s.leaf])


def search_rules(c: RL, d: Data, objective: losses.Objective) -> rules.Rows:
  """Refuses searches that cannot be, and what they do not work with."""
  s, key = c.search, f'rl.search.simulations={c.search.simulations}'
  grammar = c.regex or c.json_schema
  reads = [x['reward'] for x in c.rewards.values()]
  reads = [k for k in reads if k in KERNELS and KERNELS[k].reads]
  return (
    rules.choice('rl.search.leaf', s.leaf, LEAVES),
    (
      not 2 <= s.candidates <= s.simulations,
      f'{key} and rl.search.candidates={s.candidates}: a step needs at least 2 '
      'candidates, and as many simulations as candidates or more',
    ),
    (
      s.step_tokens >= d.completion_len,
      f'rl.search.step_tokens={s.step_tokens}: a step has fewer tokens than '
      f'data.completion_len={d.completion_len}',
    ),
    (
      reads,
      f'{key}: the reward {next(iter(reads), "")!r} reads more than a '
      'completion, and a search computes the reward of every candidate; use '
      'other rewards',
    ),
    (
      c.cache_segments not in (1, RL.cache_segments),
      f'rl.cache_segments={c.cache_segments} and {key}: the cache of a step is '
      f'as long as the step; set it to {RL.cache_segments}',
    ),
    *rules.apart(
      f' and {key} cannot be combined: a step of a search is a plain sample of '
      'one completion; set one of them to its default',
      rl__path=c.path == 'host' and c.path,
      rl__turns__env=c.turns.env,
      rl__propose=c.propose,
      rl__chunks__tokens=c.chunks.tokens,
      rl__tree__width=c.tree.width,
      rl__in_flight__batches=c.in_flight.batches,
      rl__slots=c.slots,
      rl__demos=c.demos,
      rl__replay_routes=c.replay_routes,
      **{'rl__regex' if c.regex else 'rl__json_schema': grammar},
      rl__repetition_penalty=c.repetition_penalty != 1 and c.repetition_penalty,
      rl__presence_penalty=c.presence_penalty,
      rl__frequency_penalty=c.frequency_penalty,
    ),
    (
      any(objective[k] != x for k, x in IMITATES.items()),
      f'{key}: searched tokens are no samples of the policy, so train on the '
      'correct completions by their likelihood; set rl.algorithm="raft"',
    ),
  )
