"""Environments of a run, by its configuration: what `rl.turns` asks for."""

import ml_collections

from jaxrl_reason import envs
from jaxrl_reason.rollouts import turns
from jaxrl_reason.run import hosted


def of(config: ml_collections.ConfigDict, tokenizer, **changes) -> turns.Turns:
  """Returns the environment of `rl.turns`, for a tokenizer."""
  c, room = config.rl.turns, config.data.completion_len
  limits = dict(
    most=c.most,
    tokens=min(c.tokens or room, room),
    observation=c.observation,
    chunk=c.chunk,
    weight=c.reward,
  )
  return turns.make(envs.get(c.env), tokenizer, **limits | changes)


def part_names(c: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns the parts of the reward of the rl section; an environment's comes
  last.
  """
  return (*c.rewards, *([turns.PART] if c.turns.env else []))


def with_env(how: turns.Turns, rewards: dict, encode, reward_fn):
  """Adds an environment to (encode, reward_fn) of device rewards."""

  def encode_all(example: dict) -> dict:
    return encode(example) | {turns.PART: how.env.encode(example)}

  return encode_all, turns.Judged(reward_fn if rewards else None)


def check(config: ml_collections.ConfigDict, needs: frozenset[str]) -> None:
  """Refuses what an environment does not go with, and what needs one."""
  c, name = config.rl, config.rl.turns.env
  if not name:
    if 'segment_reward' in needs:
      raise ValueError(
        f'rl.algorithm={c.algorithm!r} needs the rewards of turns: set '
        'rl.turns.env'
      )
    return
  if hosted.is_on(c):
    hosted.check(c)
    if 'greedy_reward' in needs:
      raise ValueError(
        f'rl.algorithm={c.algorithm!r} reads greedy completions, which an '
        'environment with rl.path="host" does not play'
      )
  else:
    envs.get(name)
    for key in ('args', 'tools', 'stops'):
      if c.turns[key]:
        raise ValueError(
          f'rl.turns.{key}: read with rl.path="host" only; environments inside '
          'the program have none'
        )
  if turns.PART in c.rewards:
    raise ValueError(
      f"rl.rewards.{turns.PART}: that name is the environment's part; its "
      'weight is rl.turns.reward'
    )
  for key, value, only in (
    ('slots', c.slots, 0),
    ('demos', c.demos, 0),
    ('refill_keep', c.refill_keep, False),
    ('replay.rows', c.replay.rows, 0),
  ):
    if value != only:
      raise ValueError(
        f'rl.{key}={value!r}: with rl.turns.env={name!r} only {only!r} goes'
      )
  if c.turns.tokens > config.data.completion_len:
    raise ValueError(
      f'rl.turns.tokens={c.turns.tokens} is more than data.completion_len='
      f'{config.data.completion_len}, the room of a whole episode'
    )
