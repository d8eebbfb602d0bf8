"""The sources of a stage, built from its configuration: batches of problems,
kinds of rounds, and the source of rollouts on the host path.
"""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_reason import hosts, losses, sharding
from jaxrl_reason.base import Prompts
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.data import (
  informed_prompts,
  lengths,
  pipeline,
)
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.rewards.kernels import likelihood
from jaxrl_reason.rollouts import (
  delay,
  extra,
  filters,
  fused,
  hints,
  refill,
  replay,
  rescue,
)
from jaxrl_reason.rollouts.host import Answered, Asked, HostSource
from jaxrl_reason.rollouts.rounds import Rounds
from jaxrl_reason.rollouts.verdict_arrays import Writer
from jaxrl_reason.run.checks import data_checks
from jaxrl_reason.run.process import goodput
from jaxrl_reason.run.rl import problem_pool, programs, reward_functions
from jaxrl_reason.run.rl import python_tools as hosted
from jaxrl_reason.update.learner import Learner
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.verdict import Verdict


def check(rl: RL, data: Data, problems: Problems, tokenizer) -> None:
  """Refuses settings that need problems to recur, or a pool to move, if they
  cannot.

  Raises:
    ValueError: names the key.
  """
  if rl.demos_prompt:
    own = tokenizer, rl.demos_prompt, data.prompt_len

    def encode(i, example):
      return informed_prompts.explained_row(i, example, *own)

    lengths.check_encoded(problems, data, encode)
  c, endless = rl.replay, len(problems.train) >= pipeline.ENDLESS
  if 'pass_rate' in losses.needs(rl.objective(data.completion_len)):
    for i in range(1 if endless else len(problems.train)):
      pipeline.pass_rate(i, problems.train[i])
  if not any(problem_pool.moving(problems.train)):
    rules.refuse(data_checks.pool_rules, data)
  never = endless and not data.has_pool
  again = {
    'rl.shaping.historical': rl.shaping.historical,
    'rl.archive': rl.archive,
    'rl.temperature_control.residual': rl.temperature_control.residual,
  }
  for key, value in again.items():
    if value and never:
      raise ValueError(
        f'{key}={value} is stored by problem, and problems of data.name='
        f'{data.name!r} never come twice: set data.controller.name to '
        'make a pool of them'
      )
  for key, value in {'by': 'failing', 'mix': 'rows'}.items():
    if c.rows and c[key] == value and never:
      raise ValueError(
        f'rl.replay.{key}={value!r} needs problems that recur, and problems of '
        f'data.name={data.name!r} never come twice; use another value'
      )


def kinds_of_rounds(c: RL) -> tuple[Rounds, ...]:
  """Builds the kinds of rounds of the rl section, innermost first.

  Demonstrations and hints change the rounds of one set of problems. Refill and
  extra samples contain them and generate further rounds. The queue of batches
  and replay are outermost.
  """
  kinds, h, r = [], c.hints, c.replay
  if c.demos_prompt:
    kinds.append(rescue.Explained(c.demos, c.demos_when))
  elif c.demos_after:
    kinds.append(rescue.Rescue(c.demos))
  if h.room:
    share = h.by, tuple(h.at), tuple(h.share)
    kinds.append(hints.Hints(h.room, h.when, *share, h.learn))
  if c.extra.groups:
    kinds.append(extra.Extra(c.extra.groups, c.extra.by))
  if c.refill_rounds:
    keeps = filters.make(c.filter, c.filter_args)
    kinds.append(refill.Refill(keeps, c.refill_rounds, c.refill_keep))
  if c.delay:
    kinds.append(delay.Delay(c.delay))
  if r.rows:
    keeps, groups = filters.make(c.filter, c.filter_args), r.rows // c.samples
    kinds.append(replay.Replay(keeps, groups, r.capacity, r.by, r.mix))
  return tuple(kinds)


def batches(
  seed: int, source, encode, rows: int, k: int, name: str, mesh, spares: int = 0
) -> goodput.Timed:
  """Builds the iterator of dispatches, of k steps with `rows` rows each.

  Args:
    spares: further rows for each row, [k*rows,1+spares,...].
  """
  mine = sharding.my_rows(mesh, rows)
  mine = np.concatenate([i * rows + mine for i in range(k)])

  def drawn(name: str, n: int, mine):
    # Every stage has its own order.
    order = zlib.crc32(f'{name}/{seed}'.encode())
    return pipeline.batches(source, encode, n, seed=order, mine=mine)

  first = drawn(name, k * rows, mine)
  if not spares:
    return goodput.Timed(first)
  # A round takes consecutive problems, so that every source has its share.
  step, row = np.divmod(mine[:, None], rows)
  columns = (step * spares + np.arange(spares)) * rows + row
  columns = columns.reshape(-1)
  others = drawn(f'{name}/spares', k * rows * spares, columns)
  return goodput.Timed(pipeline.WithSpares(first, others, spares))


def questions(
  planned, parts, encode: Callable[[int, dict], dict]
) -> tuple[Any, Callable[[dict | None, jax.Array], Asked]]:
  """Returns the data of the host path, and a function (control, step) -> the
  problems of a step: prompts [B,...], or [B,1+spares,...] with further rounds.

  Args:
    planned: the stage; its name determines the order of the data.
    parts: of the run (`prepare.Prepared`).
    encode: (index, example) -> the row of a `base.Prompts`.
  """
  config, mesh, train = planned.config, parts.mesh, parts.problems.train
  rl, data = config.rl, config.data

  def row(i, example):
    # The row has its problem, because the verifier reads it.
    return encode(i, example) | {'example': np.array(example, object)}

  if data.has_pool:
    drawn = problem_pool.Windows(data, train)
    rest = row, parts.root, mesh
    rows_of = problem_pool.host_problem_rows(rl, data, drawn, *rest)
  else:
    order = config.seed, train, row, rl.prompts, 1, planned.name
    drawn = batches(*order, mesh, rl.refill_rounds)

    def rows_of(control, step):
      return next(drawn)

  def ask(control, step) -> Asked:
    rows = rows_of(control, step)
    ids, examples = rows['prompt_id'].ravel(), rows.pop('example').ravel()
    known = dict(zip(ids.tolist(), examples))
    source = getattr(drawn, 'problems', train)

    def problem(i: int) -> dict:
      # Rounds of extra samples may move a problem to another process.
      return known[i] if i in known else source[i]

    return Asked(Prompts(**sharding.to_global(rows, mesh)), problem)

  return drawn, ask


def verdicts_by_row(mesh, answers: Sequence[Answered]) -> dict[int, Verdict]:
  """Returns this process's verdicts of a step by the numbers of their rows."""
  verdicts, first = {}, 0
  for answered in answers:
    n = len(answered.reward.total)
    rows = first + sharding.my_rows(mesh, n)
    verdicts |= dict(zip(rows.tolist(), answered.verdicts))
    first += n
  return verdicts


def host_source(
  c: RL, learn: Learner, made, kinds, parts, pool, player=None
) -> HostSource:
  """Builds the source with rewards in Python.

  Args:
    made: the settings of generation, and the sampling settings.
    kinds: of the rounds around the source.
    parts: of the run (`prepare.Prepared`).
    player: of episodes with an environment in Python; None for completions.
  """
  (gen, sampling), mesh = made, parts.mesh
  rollout = jax.jit(programs.rl_rollout, static_argnums=0)
  greedy = jax.jit(programs.rl_greedy, static_argnums=0)
  reads_greedy = 'greedy_reward' in learn.needs

  def play(params, prompts, examples, root, step, sampling, stop, ids, version):
    noise = fused.key_of(root, step, 'sampling')
    asked = prompts.tokens, prompts.valid, examples
    sampling = sampling.of_problems(prompts.prompt_id, c.samples)
    return player(params, *asked, noise, sampling, stop, ids, version)

  return HostSource(
    functools.partial(rollout, gen),
    functools.partial(greedy, gen) if reads_greedy else None,
    c.samples,
    learn.part_names,
    pool,
    parts.tokenizer,
    # Episodes are not split into pieces: tools run while other rows are
    # decoded.
    c.parts if player is None else 1,
    parts.root,
    sampling,
    parts.stop,
    to_host=functools.partial(sharding.to_local, mesh=mesh),
    all_rows=functools.partial(everyone, mesh),
    play=None if player is None else play,
    draws=_draws(mesh) if reward_functions.reads_noise(c.rewards) else None,
    demos=any(kind.reads_demos for kind in kinds),
    others=bool(reward_functions.of_group(c.rewards)),
    details=_details(c, parts.tokenizer),
    weight=c.turns.reward,
  )


def _details(c: RL, tokenizer) -> Writer | None:
  """Returns `HostSource.details`."""
  room = c.teacher.detail_len
  return Writer(tokenizer.encode_data, room=room) if room else None


def _draws(mesh) -> Callable:
  """Returns `HostSource.draws`: the random numbers of the compiled step."""

  def draws(root, step, use: str, n: int) -> np.ndarray:
    found = likelihood.uniforms(fused.key_of(root, step, use), n)
    return np.asarray(found)[sharding.my_rows(mesh, n)]

  return draws


def make_verifier(c: RL, data: Data, learn: Learner, parts):
  """Builds the verifier of completions: (the pool of rewards, a function that
  closes all pools, the player of episodes or None, a function that returns its
  metrics).
  """
  pool = hosted.NullVerifier()
  if c.rewards:
    spec = reward_functions.host_spec(c.rewards, parts.problems.reward)
    limits = dict(workers=c.workers, timeout_s=c.timeout_s)
    pool = VerifierPool(spec, **limits)
  if not c.plays_on_host:
    return pool, pool.close, None, dict
  tools = hosted.Pool(c.turns)
  player = hosted.player(
    c, data, learn.model, parts.tokenizer, tools, n_samples=c.samples,
    weight=c.turns.reward, mesh=parts.mesh,
  )  # fmt: skip

  def close():
    pool.close()
    tools.close()

  def spent():
    found = {f'perf/{k}': v for k, v in player.take_spent().items()}
    return found | {f'tools/{k}': float(v) for k, v in tools.stats().items()}

  return pool, close, player, spent


def everyone(mesh, tree: Any) -> Any:
  """Gathers this process's rows [m,...] of a batch into all rows [N,...]."""
  if jax.process_count() == 1:
    return tree
  n = sharding.rows_of_all(mesh, len(jax.tree.leaves(tree)[0]))
  return hosts.all_rows(sharding.my_rows(mesh, n), tree)
