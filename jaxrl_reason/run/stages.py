"""The stages of a run, each as the same small thing: data in, state on.

  pretrain, sft   next-token loss on all tokens / on the worked solutions
  rl              fused (one program a step) or host (rewards in Python)

`build(run, name)` gives a Stage; `train` loops over its dispatches.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_reason import config as config_lib
from jaxrl_reason import hosts, losses, sharding
from jaxrl_reason.base import Metrics, Prompts, TrainState
from jaxrl_reason.data import pipeline
from jaxrl_reason.data.stats import PromptStats
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards import compose, resolve
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rewards.pool import VerifierPool
from jaxrl_reason.rewards.verdict import judge
from jaxrl_reason.run import fused_step, jitted, rollout
from jaxrl_reason.update import critics, optim
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update.packing import Lengths, Packing

# A supervised step is policy gradient with every advantage 1.
SUPERVISED = {
  'advantage': 'reinforce',
  'policy': 'log_likelihood',
  'aggregation': 'token_mean',
}


@dataclasses.dataclass
class Stage:
  """Attributes:
  learner: of its updates.
  data: grain iterator; its state is saved with the run's.
  dispatch: (state, one item of data, the item after or None) -> (state, device
    metrics, host metrics); metrics are scalars or [K].
  steps_per_dispatch: K.
  stats: of the prompts, where they come back; or None.
  close: frees what it holds.
  """

  learner: learner_lib.Learner
  data: Iterator
  dispatch: Callable
  steps_per_dispatch: int
  stats: PromptStats | None = None
  close: Callable = lambda: None


def learner(run, name: str) -> learner_lib.Learner:
  """What the updates of stage `name` are made of."""
  c, d = run.config[name], run.config.data
  if name == 'rl':
    settings, start = config_lib.algorithm(run.config), d.prompt_len
    passes = {'epochs': c.epochs, 'minibatches': c.minibatches}
    ratio = {'old_logp': c.old_logp, 'reference_memory': c.reference_memory}
    passes['packing'] = _packing(c, start)
  else:
    settings = losses.resolve(SUPERVISED)
    start, passes, ratio = 1 if name == 'pretrain' else d.prompt_len, {}, {}
  updates = passes.get('epochs', 1) * passes.get('minibatches', 1)
  return learner_lib.Learner(
    model=run.model,
    settings=settings,
    tx=optim.make(c.optimizer, c.steps * updates),
    start=start,
    micro_batches=c.micro_batches,
    logprob_chunk=c.logprob_chunk,
    critic=_critic(run, settings, start, updates) if name == 'rl' else None,
    trainable=config_lib.trainable(run.config),
    balance_coef=c.balance_coef,
    **passes,
    **ratio,
  )


def _packing(c, start: int) -> Packing | Lengths | None:
  """How the section of the rl stage asks to save padding."""
  if c.pack_len:
    return Packing(c.pack_len, c.pack_sizes)
  return Lengths(start, c.length_buckets) if c.length_buckets else None


def _critic(run, settings, start: int, updates: int) -> critics.Critic | None:
  """The network beside the policy that the loss settings ask for, if any."""
  output, c = critics.kind_of(settings), run.config.rl.critic
  if output is None:
    return None
  tx = optim.make(c.optimizer, run.config.rl.steps * updates)
  trainable = config_lib.trainable(run.config)
  return critics.Critic(
    output, run.model, settings, tx, start, c.warmup_updates, trainable
  )


def build(run, name: str) -> Stage:
  """The stage `name` of a `train.Run`."""
  if name in ('pretrain', 'sft'):
    return _supervised(run, name)
  return _host(run) if run.config.rl.path == 'host' else _fused(run)


def _batches(run, source, encode, rows: int, k: int, name: str):
  """Dispatches of k steps of `rows` rows each."""
  mine = sharding.my_rows(run.mesh, rows)
  return pipeline.batches(
    source,
    encode,
    k * rows,
    # No two stages see the same order.
    seed=zlib.crc32(f'{name}/{run.config.seed}'.encode()),
    mine=np.concatenate([i * rows + mine for i in range(k)]),
  )


def _stacked(tree: Any, k: int) -> Any:
  """Rows [K*R,...] of a dispatch as [K,R,...]."""
  return jax.tree.map(lambda x: x.reshape(k, -1, *x.shape[1:]), tree)


def _supervised(run, name: str) -> Stage:
  c, d = run.config[name], run.config.data
  learn, k = learner(run, name), c.steps_per_dispatch
  steps = jitted.supervised(learn, name)
  encode = lambda i, e: pipeline.solution_row(
    i, e, run.tokenizer, d.prompt_len, d.completion_len
  )

  def dispatch(state, rows, ahead):
    del ahead
    rows = sharding.to_global(_stacked(rows, k), run.mesh, axis=1)
    return *steps(state, rows, run.root), {}

  data = _batches(run, run.problems.train, encode, c.rows, k, name)
  return Stage(learn, data, dispatch, k)


def rl_parts(run) -> tuple[fused_step.Generation, Sampling]:
  """How completions are made: what selects a program, and what does not."""
  c = run.config.rl
  gen = fused_step.Generation(
    n_samples=c.samples,
    max_new=run.config.data.completion_len,
    filter=c.filter,
    part_names=tuple(c.rewards),
    demos=c.demos,
    slots=c.slots,
    segments=c.cache_segments,
    reads=_reads(run) if c.path == 'fused' else (),
    routes=c.replay_routes,
    overlong=c.overlong,
  )
  sampling = Sampling.make(c.temperature, c.top_k, c.top_p, c.min_p)
  return gen, sampling


def prompt_encoder(run, encode_answer) -> Callable[[int, dict], dict]:
  """(index, example) -> the row of a `base.Prompts`."""
  d = run.config.data
  demo_len = d.completion_len if run.config.rl.demos else None
  return lambda i, e: pipeline.prompt_row(
    i, e, run.tokenizer, d.prompt_len, encode_answer, demo_len
  )


def _fused(run) -> Stage:
  c = run.config.rl
  learn, (gen, sampling) = learner(run, 'rl'), rl_parts(run)
  encode, reward_fn = device_rewards(run)
  k = c.steps_per_dispatch

  steps = jitted.steps(learn, gen, reward_fn)

  def dispatch(state, rows, ahead) -> tuple[TrainState, Metrics, dict]:
    del ahead
    prompts = Prompts(**sharding.to_global(_stacked(rows, k), run.mesh, axis=1))
    return *steps(state, prompts, run.root, sampling, run.stop), {}

  data = _batches(
    run, run.problems.train, prompt_encoder(run, encode), c.prompts, k, 'rl'
  )
  return Stage(learn, data, dispatch, k)


def _host(run) -> Stage:
  c = run.config.rl
  learn, (gen, sampling) = learner(run, 'rl'), rl_parts(run)
  pool = VerifierPool(
    host_spec(c.rewards.to_dict(), run.problems.reward),
    workers=c.workers,
    timeout_s=c.timeout_s,
  )
  step = _host_step(run, learn, gen, sampling, pool)
  source = run.problems.train
  stats = PromptStats(len(source)) if len(source) < pipeline.ENDLESS else None

  put = lambda rows: Prompts(**sharding.to_global(rows, run.mesh))

  def dispatch(state, rows, ahead):
    ids = np.asarray(rows['prompt_id'])
    examples = [source[int(i)] for i in ids]
    ahead = put(ahead) if c.staleness and ahead is not None else None
    state, metrics, timing, reward = step(state, put(rows), examples, ahead)
    host = {f'perf/{k}': v for k, v in timing.items()}
    host |= {f'pool/{k}': float(v) for k, v in pool.stats().items()}
    if stats is not None:
      ids = np.repeat(_everyone(run, ids), c.samples)
      stats.add(ids, reward.parts[:, 0], reward.valid)
      host |= stats.metrics()
    return state, metrics, host

  data = _batches(run, source, prompt_encoder(run, None), c.prompts, 1, 'rl')
  return Stage(learn, data, dispatch, 1, stats, pool.close)


def _host_step(run, learn, gen, sampling, pool) -> rollout.HostStep:
  own = lambda tree: jax.tree.map(
    lambda x: x[sharding.my_rows(run.mesh, len(x))], tree
  )
  return rollout.HostStep(
    learn,
    gen,
    pool,
    run.tokenizer,
    run.config.rl.parts,
    run.root,
    sampling,
    run.stop,
    to_device=lambda tree: sharding.to_global(own(tree), run.mesh),
    to_host=lambda x: sharding.to_local(x, run.mesh),
    all_rows=lambda tree: _everyone(run, tree),
  )


def _everyone(run, tree: Any) -> Any:
  """This process's rows [m,...] of a batch as all rows [N,...]."""
  n = sharding.rows_of_all(run.mesh, len(jax.tree.leaves(tree)[0]))
  return hosts.all_rows(sharding.my_rows(run.mesh, n), tree)


def device_rewards(run) -> tuple[Callable, Callable]:
  """(encode, reward_fn) of `rl.rewards` as kernels."""
  return device.make(
    run.config.rl.rewards.to_dict(),
    run.problems.kernel,
    run.tokenizer,
    run.config.data.completion_len,
  )


def _reads(run) -> tuple[str, ...]:
  return device.reads(run.config.rl.rewards.to_dict(), run.problems.kernel)


def check_rewards(run) -> None:
  """Refuses rewards that do not exist now, not after the stages before rl."""
  c = run.config.rl
  if 'rl' not in run.config.stages:
    return
  if c.path == 'fused':
    device_rewards(run)
  else:
    device.refuse_on_host(c.rewards.to_dict())
    compose.compose(host_spec(c.rewards.to_dict(), run.problems.reward))


def host_spec(rewards: dict, task_reward: str) -> dict:
  """The compose spec of `rl.rewards`, with 'task' given its meaning."""
  return {
    name: part | {'reward': task_reward} if part['reward'] == 'task' else part
    for name, part in rewards.items()
  }


def grader(run) -> Callable[[list[tuple[str, dict]]], list]:
  """How evaluations verify answers: the data's own host reward."""
  if run.problems.reward in resolve.POOL_ONLY:
    return lambda cases: _pooled(run, cases)
  reward = compose.build(run.problems.reward)
  return lambda cases: [judge(reward, text, ex) for text, ex in cases]


def _pooled(run, cases: list[tuple[str, dict]]) -> list:
  """Verdicts from workers that live for one evaluation."""
  c = run.config.rl
  with VerifierPool(
    run.problems.reward, workers=c.workers, timeout_s=c.timeout_s
  ) as pool:
    return pool.map(cases)
