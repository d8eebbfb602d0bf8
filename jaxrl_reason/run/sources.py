"""What a stage's problems come from, and what stands around its source: refill
and replay, by its configuration, and what they remember (`TrainState.control`).
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Prompts
from jaxrl_reason.data import controllers, pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.rewards.kernels import likelihood
from jaxrl_reason.rewards.pool import VerifierPool
from jaxrl_reason.rollouts import (
  extra,
  filters,
  fused,
  hints,
  refill,
  replay,
  rescue,
)
from jaxrl_reason.rollouts.host import HostSource, Questions
from jaxrl_reason.run import (
  asking,
  goodput,
  hosted,
  programs,
  rewarding,
)
from jaxrl_reason.update.learner import Learner


def check(config: ml_collections.ConfigDict, problems: Problems) -> None:
  """Refuses a replay that the problems give nothing to choose from.

  Raises:
    ValueError: names the key.
  """
  c, endless = config.rl.replay, len(problems.train) >= pipeline.ENDLESS
  if 'rl' not in config.stages:
    return
  moves = config.data.controller.refresh
  if moves and not any(asking.moving(problems.train)):
    raise ValueError(
      f'data.controller.refresh={moves}: data.name={config.data.name!r} is a '
      'data set, all of which is the pool; set it to 0'
    )
  never = endless and not controllers.is_on(config.data)
  again = {
    'rl.shaping.historical': config.rl.shaping.historical,
    'rl.archive': config.rl.archive,
  }
  for key, value in again.items():
    if value and never:
      raise ValueError(
        f'{key}={value} is kept by problem, and those of data.name='
        f'{config.data.name!r} never come twice: set data.controller.name to '
        'make a pool of them'
      )
  for key, value in {'by': 'failing', 'mix': 'rows'}.items():
    if c.rows and c[key] == value and never:
      raise ValueError(
        f'rl.replay.{key}={value!r} replays problems that are asked again, and '
        f'those of data.name={config.data.name!r} never come twice; use another'
      )


def is_plain(c: ml_collections.ConfigDict) -> bool:
  """Tells whether a step has one round, and learns from that alone."""
  again = c.hints.room and c.hints.when == 'failed'
  return not (c.refill_rounds or c.replay.rows or again)


def refilled(c: ml_collections.ConfigDict, source=None) -> refill.Refill:
  """Puts the rounds that the rl section asks for around a source."""
  keeps = filters.make(c.filter, c.filter_args)
  return refill.Refill(source, keeps, c.refill_rounds, c.refill_keep)


def replayed(c: ml_collections.ConfigDict, source=None) -> replay.Replay | None:
  """Puts the replay that the rl section asks for around a source, if any."""
  if not c.replay.rows:
    return None
  keeps = filters.make(c.filter, c.filter_args)
  again = c.replay.rows // c.samples
  return replay.Replay(source, keeps, again, c.replay.by, c.replay.mix)


def hinted(c: ml_collections.ConfigDict, source=None) -> hints.Hints | None:
  """Puts the hints that the rl section asks for around a source, if any."""
  h = c.hints
  if not h.room:
    return None
  share = h.by, tuple(h.at), tuple(h.share)
  return hints.Hints(source, h.room, h.when, *share, h.learn)


def around(c: ml_collections.ConfigDict, source) -> Callable:
  """Puts all that the rl section asks for around the source in the graph."""
  if c.demos and c.demos_when == 'failed':
    source = rescue.Rescue(source, c.demos)
  source = hinted(c, source) or source
  if c.extra.groups:
    return extra.Extra(source, c.extra.groups, c.extra.by)
  if c.refill_rounds:
    source = refilled(c, source)
  return replayed(c, source) or source


def questions(rows: dict, mesh, spares: int) -> list[Questions]:
  """Returns the rows of a step on the mesh, with the problems they are of, by
  round.
  """
  columns = [rows]
  if spares:
    columns = [trees.take(rows, np.s_[:, i]) for i in range(1 + spares)]
  return [_asked(column, mesh) for column in columns]


def _asked(rows: dict, mesh) -> Questions:
  examples, ids = rows.pop('example').tolist(), rows['prompt_id']
  return Questions(Prompts(**sharding.to_global(rows, mesh)), ids, examples)


def batches(
  config, source, encode, rows: int, k: int, name: str, mesh, spares: int = 0
) -> goodput.Timed:
  """Makes dispatches of k steps of `rows` rows each.

  Args:
    spares: further rows that each row comes with, [k*rows,1+spares,...].
  """
  mine = sharding.my_rows(mesh, rows)
  mine = np.concatenate([i * rows + mine for i in range(k)])

  def drawn(name: str, n: int, mine):
    # No two stages see the same order.
    seed = zlib.crc32(f'{name}/{config.seed}'.encode())
    return pipeline.batches(source, encode, n, seed=seed, mine=mine)

  first = drawn(name, k * rows, mine)
  if not spares:
    return goodput.Timed(first)
  columns = (mine[:, None] * spares + np.arange(spares)).reshape(-1)
  others = drawn(f'{name}/spares', k * rows * spares, columns)
  return goodput.Timed(pipeline.WithSpares(first, others, spares))


def host_source(
  config, learn, made, mesh, questions, pool, tokenizer, root, stop, player=None
) -> HostSource:
  """Makes the source whose rewards are Python.

  Args:
    made: how completions are made, and the sampling settings.
    player: of episodes with an environment in Python; None: completions.
  """
  c = config.rl
  gen, sampling = made
  rollout = jax.jit(programs.rl_rollout, static_argnums=0)
  greedy = jax.jit(programs.rl_greedy, static_argnums=0)
  reads_greedy = 'greedy_reward' in learn.needs

  def play(params, prompts, examples, root, step, sampling, stop, ids, version):
    noise = fused.key_of(root, step, 'sampling')
    asked = prompts.tokens, prompts.valid, examples
    return player(params, *asked, noise, sampling, stop, ids, version)

  return HostSource(
    questions,
    functools.partial(rollout, gen),
    functools.partial(greedy, gen) if reads_greedy else None,
    c.samples,
    learn.part_names,
    pool,
    tokenizer,
    # Episodes wait for no part: their tools are asked while others speak.
    c.parts if player is None else 1,
    root,
    sampling,
    stop,
    to_host=functools.partial(sharding.to_local, mesh=mesh),
    all_rows=functools.partial(everyone, mesh),
    play=None if player is None else play,
    draws=_draws(c, mesh) if rewarding.reads_noise(c.rewards) else None,
  )


def _draws(c: ml_collections.ConfigDict, mesh) -> Callable:
  """Gives `HostSource.draws`, the numbers that the compiled step draws too."""

  def draws(root, step, use: str, n_samples: int) -> np.ndarray:
    n = c.prompts * n_samples
    found = likelihood.uniforms(fused.key_of(root, step, use), n)
    return np.asarray(found)[sharding.my_rows(mesh, n)]

  return draws


def judges(config, learn: Learner, problems, tokenizer):
  """Makes what judges completions: (the pool of rewards, what closes all pools,
  the player of episodes or None, what tells metrics of it).
  """
  c, pool = config.rl, hosted.Unjudged()
  if c.rewards:
    spec = rewarding.host_spec(c.rewards.to_dict(), problems.reward)
    limits = dict(workers=c.workers, timeout_s=c.timeout_s)
    pool = VerifierPool(spec, **limits)
  if not hosted.is_on(c):
    return pool, pool.close, None, dict
  tools = hosted.Pool(c)
  player = hosted.player(
    config, learn.model, tokenizer, tools, n_samples=c.samples,
    weight=c.turns.reward,
  )  # fmt: skip

  def close():
    pool.close()
    tools.close()

  def spent():
    found = {f'perf/{k}': v for k, v in player.take_spent().items()}
    return found | {f'tools/{k}': float(v) for k, v in tools.stats().items()}

  return pool, close, player, spent


def everyone(mesh, tree: Any) -> Any:
  """Gives this process's rows [m,...] of a batch as all rows [N,...]."""
  if jax.process_count() == 1:
    return tree
  n = sharding.rows_of_all(mesh, len(jax.tree.leaves(tree)[0]))
  return hosts.all_rows(sharding.my_rows(mesh, n), tree)
