"""The reward functions of a run, by its configuration, and their trial before
anything is compiled.
"""

import collections
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxrl_reason import losses, trees
from jaxrl_reason.base import Rollout
from jaxrl_reason.config import RL, Data, nearest, rules
from jaxrl_reason.data import lengths
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.losses.imitation import REFERENCE
from jaxrl_reason.rewards.kernels import KERNELS, device, reference
from jaxrl_reason.rollouts import progress
from jaxrl_reason.rollouts.views import HIDDEN, REWARD, VERDICT
from jaxrl_reason.run.rl import python_tools as hosted
from jaxrl_reason.run.rl import verdict_settings
from jaxrl_reason.verifiers import compose, resolve
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.verdict import all_invalid, judge

# Rewards by the likelihood of the reference answer.
LIKELIHOODS = tuple(
  name for name, x in KERNELS.items() if reference.VIEWS & {*x.reads}
)


def check_keys(c: RL) -> None:
  """Refuses `rl.rewards` without a reward, or with wrong keys."""
  rules.refuse(reward_rules, c)
  for name, part in c.rewards.items():
    key, example = f'rl.rewards.{name}', "dict(reward='task', weight=1.0)"
    rules.refuse(rules.section, key, part, example)
    rules.refuse(part_rules, key, part)


def reward_rules(c: RL) -> rules.Rows:
  return (
    (
      not (c.rewards or c.turns.env),
      "rl.rewards is empty: name a reward, as answer=dict(reward='task'), or "
      'an environment, rl.turns.env',
    ),
    (
      not (c.rewards or c.turns.reward),
      f'rl.turns.reward={c.turns.reward} and rl.rewards={{}}: every reward is '
      '0; raise the weight of the environment, or name a reward',
    ),
  )


def part_rules(key: str, part: Mapping) -> rules.Rows:
  unknown = next((k for k in part if k not in compose.KEYS), '')
  reward, kwargs = part.get('reward', ''), part.get('kwargs', {})
  return (
    (
      unknown,
      f'unknown key {key}.{unknown}.{nearest(unknown, compose.KEYS)} A reward '
      f'has {", ".join(sorted(compose.KEYS))}',
    ),
    ('reward' not in part, f'{key} lacks the key reward'),
    (
      not isinstance(reward, str),
      f'{key}.reward={reward!r}: must be the name of a reward, or '
      'path/to/file.py:function',
    ),
    (
      not isinstance(kwargs, Mapping),
      f'{key}.kwargs={kwargs!r}: must be a section with the arguments of the '
      "reward, such as dict(ask='...')",
    ),
  )


def is_scheduled(rewards: Mapping) -> bool:
  """Returns whether the weight of any part of `rl.rewards` is a schedule."""
  return bool(_schedules(rewards))


def scheduled_by(rewards: Mapping, names: tuple[str, ...]) -> list[str]:
  """Returns the parts of `rl.rewards` whose weight is a schedule by one of
  these values of the progress.
  """
  found = _schedules(rewards).items()
  return [name for name, w in found if w.get('by') in names]


def _schedules(rewards: Mapping) -> dict[str, Mapping]:
  """Returns the weights of parts that are schedules, by the part's name."""
  weights = {name: part.get('weight') for name, part in rewards.items()}
  return {name: w for name, w in weights.items() if isinstance(w, Mapping)}


def reads_noise(rewards: Mapping) -> bool:
  """Returns whether a part of `rl.rewards` reads the random number of its
  row.
  """
  return any(part['reward'] == 'random' for part in rewards.values())


def of_group(rewards: Mapping) -> list[str]:
  """Returns the parts of `rl.rewards` that compare the completions of a
  problem.
  """
  found = resolve.OF_GROUP
  return [name for name, part in rewards.items() if part['reward'] in found]


def reads_reasoning_only(c: RL) -> bool:
  """Returns whether no reward depends on the sampled answer: every weighted
  part of `rl.rewards` is a likelihood of the reference answer, and no other
  setting adds a reward.
  """
  weighted = [p for p in c.rewards.values() if p.get('weight', 1.0) != 0]
  shaped = c.shaping != RL.shaping
  others = c.overlong or c.teacher.weights or shaped or c.step_parts
  likelihoods = all(p['reward'] in LIKELIHOODS for p in weighted)
  return bool(weighted) and likelihoods and not others


def answer_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses `sft_on='reference'` if a reward depends on the sampled answer, or
  with groups in flight.
  """
  key, trains = (
    f'rl.loss.sft_on={REFERENCE!r}',
    objective.likelihood_on(REFERENCE),
  )
  return (
    (
      trains and not reads_reasoning_only(c),
      f'{key} puts the reference answer in place of the sampled answer, so no '
      'reward may depend on the sampled answer: give a weight only to rewards '
      f'{", ".join(LIKELIHOODS)}, and set rl.shaping, rl.overlong, '
      'rl.step_parts and rl.teacher.weights to their defaults',
    ),
    (
      trains and c.in_flight.batches,
      f'{key} and rl.in_flight.batches={c.in_flight.batches}: groups in flight '
      'do not keep the reference answers; set rl.in_flight.batches to 0',
    ),
  )


def host_spec(rewards: dict, task_reward: str) -> dict:
  """Returns the compose spec of `rl.rewards`, with 'task' replaced by its
  reward, also as the verifier that rewards of a confidence read.
  """

  def named(name):
    return task_reward if name == 'task' else name

  def of(part):
    out = part | {'reward': named(part['reward'])}
    if part['reward'] in resolve.OF_CONFIDENCE:
      kwargs = {'correct': 'task'} | dict(part.get('kwargs', {}))
      kwargs['correct'] = named(kwargs['correct'])
      out['kwargs'] = kwargs
    return out

  return {name: of(part) for name, part in rewards.items()}


def check(c: RL, data: Data, problems: Problems, tokenizer):
  """Refuses rewards that do not exist or that fail. Each reward is called on a
  reference solution and on an empty text, before anything is compiled.

  Raises:
    ValueError: names the part, or quotes the exception of the reward; names the
      row whose answer a kernel cannot read.
  """
  rewards, example = c.rewards, problems.train[0]
  _check_schedules(rewards)
  if c.plays_on_host:
    hosted.try_out(c.turns, problems)
  if c.turns.env and not rewards:
    return  # only the environment's own rewards
  if c.path == 'fused':
    room = data.completion_len
    spec = verdict_settings.with_questions(c)
    encode, reward_fn = device.make(spec, problems.kernel, tokenizer, room)
    control = None
    if is_scheduled(rewards):
      control = {progress.CONTROL: progress.Progress().init()}
    _try_kernels(room, tokenizer, example, encode, reward_fn, control)
    lengths.check_encoded(problems, data, lambda i, example: encode(example))
    return
  device.refuse_on_host(rewards)
  spec = host_spec(rewards, problems.reward)
  compose.compose(spec)
  state = {name: 0.0 for name in progress.NAMES}
  cases = [
    (text, example | {'state': state, 'uniform': 0.5, 'others': ['']})
    for text in (example.get('solution') or '', '')
  ]
  with VerifierPool(spec, workers=1, timeout_s=c.timeout_s) as pool:
    failed = all_invalid(pool.map(cases), c.timeout_s)
  if failed:
    raise ValueError(
      'rl.rewards: tried on the first problem, before anything is compiled: '
      f'{failed}'
    )


def _check_schedules(rewards: Mapping) -> None:
  known = progress.NAMES
  for name, weight in _schedules(rewards).items():
    if weight.get('by') not in known:
      raise ValueError(
        f'rl.rewards.{name}.weight follows {weight.get("by")!r}: a run keeps '
        f'{", ".join(known)}'
      )


def _try_kernels(
  room: int, tokenizer, example, encode, reward_fn, control: dict | None
) -> None:
  """Traces the kernels by shapes alone, which finds their errors."""
  ids = tokenizer.encode(example.get('solution') or '')[:room]
  longest = reference.MAX_TOKENS

  def try_on(answers):
    tokens = (
      jnp.zeros((2, room), jnp.int32)
      .at[0, : len(ids)]
      .set(jnp.asarray(ids, jnp.int32))
    )
    sampled = jnp.arange(room) < jnp.array([[len(ids)], [0]])
    zeros = jnp.zeros((2, room))
    views = {name: zeros for name in ('logp', 'entropy', 'uniform_kl')}
    views |= {'mask': sampled, 'group': jnp.zeros(2, int)}
    views |= {'uniform': jnp.zeros(2), REWARD: jnp.zeros(2)}
    views[VERDICT] = collections.defaultdict(lambda: jnp.zeros(2))
    views |= {HIDDEN: jnp.zeros((1, 2, 4))}
    views |= {'reference_mask': sampled[:, :longest]}
    views |= dict.fromkeys(reference.VIEWS, zeros[:, :longest])
    rollout = Rollout(
      tokens, sampled, sampled.sum(1), zeros, jnp.zeros(2, bool), jnp.ones(2),
      zeros, zeros, zeros, views=views,
    )  # fmt: skip
    return reward_fn(rollout, answers, control)

  answers = trees.stacked([encode(example)] * 2)
  jax.eval_shape(try_on, answers)


def second_opinion(c: RL, problems: Problems):
  """Returns the data's own host reward (`grader`), if a kernel computes the
  rewards and this process can run the host reward; else None.
  """
  slow = resolve.POOL_ONLY & {*problems.verifiers}
  own = c.path == 'fused' and not slow
  return grader(c, problems) if own else None


def grader(
  c: RL, problems: Problems
) -> Callable[[list[tuple[str, dict]]], list]:
  """Builds the verifier of evaluations: the data's own host reward."""
  reward = problems.reward
  if not resolve.POOL_ONLY & {*problems.verifiers}:
    function = compose.build(reward)

    def here(cases):
      return [judge(function, text, example) for text, example in cases]

    return here

  def pooled(cases):
    """Returns verdicts from workers that are started for one evaluation."""
    with VerifierPool(reward, workers=c.workers, timeout_s=c.timeout_s) as pool:
      return pool.map(cases)

  return pooled
