"""Settings of generation, as set by the rl section."""

from itertools import pairwise

from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.data import step_labels, token_bias
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts.fused import Generation
from jaxrl_reason.rollouts.tree import Tree
from jaxrl_reason.run.rl import chunk_settings as chunks


def generation(c: RL, data: Data, model: Model, tokenizer) -> Generation:
  """Returns the settings of generation that select a program.

  Raises:
    ValueError: rl.tree.step_end cannot be the end of a step.
  """
  return Generation(
    model=model,
    n_samples=c.samples,
    max_new=data.completion_len,
    demos=0 if c.demos_after else c.demos,
    slots=c.slots,
    segments=c.cache_segments,
    routes=c.replay_routes,
    chunks=chunks.of(c, data),
    tree=tree_of(c, tokenizer),
  )


def tree_of(c: RL, tokenizer) -> Tree | None:
  """Returns the forks of completions, or None without any.

  Raises:
    ValueError: the end of a step is not one token, or ends a completion.
  """
  t, ends = c.tree, ()
  if t.step_end:
    key = 'rl.tree.step_end'
    ends = tuple(step_labels.separator_ids(t.step_end, tokenizer, key))
    if set(ends) & set(tokenizer.eos_ids):
      raise ValueError(
        f'{key}={t.step_end!r} ends a completion, so no row goes on after it; '
        'name another token'
      )
  return Tree(t.width, tuple(t.columns), ends) if t.width else None


def sampling_of(c: RL, tokenizer) -> Sampling:
  """Returns the traced settings of generation.

  Raises:
    ValueError: names the bias that is wrong.
  """
  return Sampling.fixed(
    c.temperature,
    c.top_k,
    c.top_p,
    c.min_p,
    c.repetition_penalty,
    c.presence_penalty,
    c.frequency_penalty,
    token_bias.make(c.logit_bias, tokenizer, 'rl.logit_bias'),
  )


def tree_rules(c: RL, d: Data) -> rules.Rows:
  """Refuses trees that cannot be, and what they do not work with."""
  columns = tuple(c.tree.columns)
  if not c.tree.width:
    return ()
  tree = Tree(c.tree.width, columns)
  key, room = f'rl.tree.width={tree.width}', d.completion_len
  inside = all(isinstance(x, int) and 0 < x < room for x in columns)
  rising = inside and all(a < b for a, b in pairwise(columns))
  return (
    (
      tree.width == 1,
      f'{key}: a fork has at least 2 children; set it to 2 or more, or 0',
    ),
    (
      not rising,
      f'rl.tree.columns={columns}: indices of tokens from 1 to '
      f'data.completion_len-1 ({room - 1}), in rising order',
    ),
    (
      c.samples % tree.leaves,
      f'rl.samples={c.samples}: a tree of {key} and rl.tree.columns={columns} '
      f'has {tree.leaves} leaves; set it to a multiple of {tree.leaves}',
    ),
    (
      columns and c.tree.step_end,
      f'rl.tree.step_end={c.tree.step_end!r} and rl.tree.columns={columns}: '
      'rl.tree.columns fixes the forks of all rows; set one of them to its '
      'default',
    ),
    (
      c.cache_segments not in (1, RL.cache_segments),
      f'rl.cache_segments={c.cache_segments} and {key}: the cache of a tree '
      f'grows with its forks; set it to {RL.cache_segments}',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      rl__slots=c.slots,
      rl__demos=c.demos,
      rl__replay_routes=c.replay_routes,
      rl__turns__env=c.turns.env,
      rl__chunks__tokens=c.chunks.tokens,
      rl__in_flight__batches=c.in_flight.batches,
      rl__repetition_penalty=c.repetition_penalty != 1 and c.repetition_penalty,
      rl__presence_penalty=c.presence_penalty,
      rl__frequency_penalty=c.frequency_penalty,
    ),
  )
