"""Environments of a run, as set by `rl.turns`."""

import functools
from collections.abc import Callable

from jaxrl_reason import envs
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.envs import two_players
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rewards.kernels import reference
from jaxrl_reason.rollouts import chain, turns
from jaxrl_reason.run.rl import python_tools as hosted
from jaxrl_reason.verifiers.verdict import Verdict


def of(rl: RL, data: Data, tokenizer, kernel, **changes) -> turns.Turns:
  """Returns the environment of `rl.turns`, for a tokenizer.

  Args:
    kernel: name of the kernel that verifies answers, or None.
    changes: to the limits.
  """
  c, room = rl.turns, data.completion_len
  alone = changes.pop('alone', False)
  limits = dict(
    most=c.most,
    tokens=min(c.tokens or room, room),
    observation=c.observation,
    chunk=c.chunk,
    weight=c.reward,
  )
  if is_chain(rl):
    return _chain(rl, tokenizer, kernel, limits | changes, alone)
  env = envs.get(c.env)
  if alone and env.players == 2:
    env = two_players.against(env)
  return turns.make(env, tokenizer, **limits | changes)


def scored(rl: RL, data: Data, tokenizer, kernel) -> turns.Turns:
  """Returns the environment for evaluations. Its rewards have a weight of 1,
  since training weights are not part of a score. Only one link of a chain
  counts, and the program plays the second player of a game.
  """
  return of(rl, data, tokenizer, kernel, weight=1.0, alone=True)


def encoders(c: RL, how: turns.Turns) -> dict[str, Callable]:
  """Returns the functions that encode problems for `scored`, by the end of an
  evaluation's name. In a game there is one for every mover.
  """
  found = {'': how.env.encode}
  for i, name in enumerate(envs.ENVS[c.turns.env].movers if is_game(c) else ()):
    if i:
      encode = functools.partial(how.env.encode, mover=i)
      found[f'/against_{name}'] = encode
  return found


def is_chain(c: RL) -> bool:
  """Returns whether the environment of the rl section is a chain of links."""
  return c.turns.env == chain.NAME


def _chain(c: RL, tokenizer, kernel, limits: dict, alone: bool) -> turns.Turns:
  links = chain.parse(c.turns.links, kernel)
  long = max(len(link.ask.encode()) for link in links)
  if long > limits['observation']:
    raise ValueError(
      f'rl.turns.observation={limits["observation"]}: what asks for a link of '
      f'rl.turns.links has {long} bytes'
    )
  links = chain.graded(links) if alone else links
  table, _ = kernels.token_bytes_table(tokenizer)
  stop = c.turns.stops[0] if c.turns.stops else ''
  env = chain.make(links, stop, limits['tokens'] * table.shape[1])
  return turns.make(env, tokenizer, **limits | {'most': len(links)})


def part_names(c: RL) -> tuple[str, ...]:
  """Returns the reward parts of the rl section. An environment's part comes
  last; a chain has one part per link.
  """
  if is_chain(c):
    return tuple(c.turns.links)
  return (*c.rewards, *([turns.PART] if c.turns.env else []))


def with_env(how: turns.Turns, rewards: dict, encode, reward_fn):
  """Adds an environment to (encode, reward_fn) of device rewards."""

  def encode_all(example: dict) -> dict:
    return encode(example) | {turns.PART: how.env.encode(example)}

  if how.env.told is not None:
    return encode_all, chain.Judged()
  judged = turns.Judged(reward_fn if rewards else None, how.weight)
  return encode_all, judged


def is_game(c: RL) -> bool:
  """Returns whether the policy is both players of the environment."""
  return _players(c) == 2


def _players(c: RL) -> int:
  inside = c.path == 'fused' and c.turns.env in envs.ENVS
  return envs.ENVS[c.turns.env].players if inside else 1


def _check_game(c: RL, needs: frozenset[str]) -> None:
  name = f'rl.turns.env={c.turns.env!r}'
  if not envs.ENVS[c.turns.env].movers:
    raise ValueError(
      f'{name}: the game has no player for evaluations; add a function to its '
      '`movers`'
    )
  if c.samples % 2:
    raise ValueError(
      f'rl.samples={c.samples}: a game of {name} has two rows, one for each '
      'player; set it to an even number'
    )
  if 'greedy_reward' in needs:
    raise ValueError(
      f'rl.algorithm={c.algorithm!r} reads the reward of one greedy completion '
      f'of a problem, and a game of {name} has two rows; use another algorithm'
    )


def league_rules(c: RL, d: Data) -> rules.Rows:
  """Refuses past versions as players where there is no game for them."""
  key = f'rl.league.share={c.league.share}'
  return (
    (
      not is_game(c),
      f'{key}: rl.turns.env={c.turns.env!r} is no game of two players; set it '
      f'to {" or ".join(k for k, x in envs.ENVS.items() if x.players == 2)}',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      rl__replay_routes=c.replay_routes,
      rl__loss__sft_on=c.objective(d.completion_len)['sft_on'] == 'observations'
      and 'observations',
    ),
  )


def _check_chain(c: RL) -> None:
  if c.rewards:
    raise ValueError(
      f'rl.rewards={[*c.rewards]}: of rl.turns.env={chain.NAME!r} every link '
      'has its own reward (rl.turns.links); set rl.rewards={}'
    )
  if len(c.turns.stops) > 1 or not all(c.turns.stops):
    raise ValueError(
      f'rl.turns.stops={c.turns.stops}: one text ends the links of a chain, '
      'or none'
    )


def check(c: RL, data: Data, needs: frozenset[str]) -> None:
  """Refuses settings that do not work with an environment, or that need one."""
  name = c.turns.env
  if not name:
    raise ValueError(
      f'rl.algorithm={c.algorithm!r} needs the rewards of turns: set '
      'rl.turns.env'
    )
  if c.plays_on_host:
    hosted.check(c)
    if 'greedy_reward' in needs:
      raise ValueError(
        f'rl.algorithm={c.algorithm!r} reads greedy completions, which an '
        'environment with rl.path="host" does not play'
      )
  else:
    if is_chain(c):
      _check_chain(c)
    elif envs.get(name).opening and c.turns.observation >= data.completion_len:
      raise ValueError(
        f'rl.turns.observation={c.turns.observation}: an opening of '
        f'rl.turns.env={name!r} may fill the whole completion; set '
        'rl.turns.observation below '
        f'data.completion_len={data.completion_len}'
      )
    if is_game(c):
      _check_game(c, needs)
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
  if c.turns.tokens > data.completion_len:
    raise ValueError(
      f'rl.turns.tokens={c.turns.tokens} is more than data.completion_len='
      f'{data.completion_len}, the room of a whole episode'
    )


def refuse_views(c: RL, names) -> None:
  """Refuses rewards of the reference answer's likelihood in episodes.

  Args:
    names: of the views that rewards read.
  """
  if c.turns.env and reference.VIEWS & set(names):
    raise ValueError(
      'rl.rewards read the likelihood of the reference answer, which is '
      f'computed for completions, not for episodes of rl.turns.env='
      f'{c.turns.env!r}; use other rewards'
    )


def graded(cases: list[tuple[str, dict]]) -> list[Verdict]:
  """Returns the verdicts of evaluations of a chain: those of its kernels, since
  the text of all links is not an answer.
  """
  return [Verdict(float(example['gained'])) for _, example in cases]
