"""The rewards of a run, by its configuration: names to functions, and a trial
before anything is compiled.
"""

from collections.abc import Callable, Mapping

import ml_collections

from jaxrl_reason.data.problems import Problems
from jaxrl_reason.rewards import compose, resolve
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rewards.pool import VerifierPool
from jaxrl_reason.rewards.verdict import judge


def is_scheduled(rewards: Mapping) -> bool:
  """Whether the weight of any part of `rl.rewards` is a schedule."""
  weights = [part.get('weight', 1.0) for part in rewards.values()]
  return any(
    isinstance(w, Mapping | ml_collections.ConfigDict) for w in weights
  )


def host_spec(rewards: dict, task_reward: str) -> dict:
  """The compose spec of `rl.rewards`, with 'task' given its meaning."""
  return {
    name: part | {'reward': task_reward} if part['reward'] == 'task' else part
    for name, part in rewards.items()
  }


def check(config: ml_collections.ConfigDict, problems: Problems, tokenizer):
  """Refuses rewards that do not exist now, not after the stages before rl."""
  c = config.rl
  if 'rl' not in config.stages:
    return
  rewards = c.rewards.to_dict()
  if c.path == 'fused':
    room = config.data.completion_len
    device.make(rewards, problems.kernel, tokenizer, room)
  else:
    device.refuse_on_host(rewards)
    compose.compose(host_spec(rewards, problems.reward))


def grader(
  config: ml_collections.ConfigDict, reward: str
) -> Callable[[list[tuple[str, dict]]], list]:
  """How evaluations verify answers: the data's own host reward."""
  if reward not in resolve.POOL_ONLY:
    function = compose.build(reward)
    return lambda cases: [judge(function, text, ex) for text, ex in cases]

  def pooled(cases):
    """Verdicts from workers that live for one evaluation."""
    c = config.rl
    with VerifierPool(reward, workers=c.workers, timeout_s=c.timeout_s) as pool:
      return pool.map(cases)

  return pooled
