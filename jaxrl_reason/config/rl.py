"""Defines the section of the rl stage."""

import dataclasses
import re
from typing import Annotated, Self

from jaxrl_reason import losses
from jaxrl_reason.config.record import (
  mapping,
)
from jaxrl_reason.config.rl_sections import (
  Chunks,
  Extra,
  FilterArgs,
  Hints,
  InFlight,
  League,
  Loss,
  Probe,
  Reference,
  Replay,
  RewardWeights,
  Shaping,
  Teacher,
  TemperatureControl,
  Tree,
  Turns,
  VerdictText,
  Views,
)
from jaxrl_reason.config.rules import is_number
from jaxrl_reason.config.search_section import Search
from jaxrl_reason.config.training import (
  Critic,
  Optimizer,
  Training,
)
from jaxrl_reason.ranges import (
  Count,
  CountOrNone,
  Memory,
  Nucleus,
  Penalty,
  Positive,
  Range,
  Share,
)

# The setting at the start of an error message of `losses.resolve`.
SETTING = re.compile(r'^losses: (\w+)=')


def _key_of(setting: re.Match[str]) -> str:
  """Returns the key of a setting, for an error message."""
  is_name = setting[1] == 'name'
  return 'rl.algorithm=' if is_name else f'rl.loss.{setting[1]}='


@dataclasses.dataclass(frozen=True)
class RL(Training):
  """The rl stage: sample, verify, update."""

  read_with = {
    'refill_keep': 'refill_rounds',
    'demos_when demos_prompt': 'demos',
    'invalid_limit': 'path=host',
    'role_adapters': 'lora.rank',
  }

  steps: Count = 200  # batches that are sampled and trained on
  prompts: Count = 32  # B, problems per step, over all devices
  samples: Count = 8  # G, completions per problem
  path: str = 'fused'  # fused: one program per step; host: rewards in Python
  algorithm: str = 'grpo'  # a name in losses.PRESETS
  loss: Loss = Loss()
  # name -> reward and weight. 'task' is the verifier of the data. Other rewards
  # are device kernels with path='fused', and any reward that
  # `verifiers.compose` accepts with path='host'.
  rewards: dict = mapping(answer=dict(reward='task', weight=1.0))
  # Text of one token after a problem that asks for a new one: the policy writes
  # `samples` problems and answers each of them (docs/proposals.md); '': none.
  propose: str = ''
  # Filters that select the rows to train on: names in rollouts.filters.FILTERS,
  # joined by +.
  filter: str = 'none'
  filter_args: FilterArgs = FilterArgs()
  # Largest number of further rounds of `prompts` problems, while the filter
  # leaves fewer than `prompts` groups (DAPO's dynamic sampling); 0: none.
  refill_rounds: CountOrNone = 0
  # Train on surplus groups in the next step, where they are one update old: set
  # old_logp='sampler', or a correction. False: drop them.
  refill_keep: bool = False
  hints: Hints = Hints()
  # Number of shortest solutions of a problem to store for later stages
  # (`rollouts/archive.py`); 0: none.
  archive: CountOrNone = 0
  extra: Extra = Extra()
  views: Views = Views()
  probe: Probe = Probe()
  verdict: VerdictText = VerdictText()
  # Your own parts of a step: name -> dict(part='file.py:Class', kwargs={...}),
  # where Class is a `jaxrl_reason.parts.Part` (docs/extending.md).
  step_parts: dict = mapping()
  replay: Replay = Replay()
  # Tokens at the end of data.completion_len over which a reward falls by 1
  # (DAPO's soft overlong punishment); 0: off.
  overlong: CountOrNone = 0
  shaping: Shaping = Shaping()
  # Decay of a running baseline of rewards for each link of
  # rl.turns.env='chain', or each player of a game, which replaces the group
  # baseline (SPIRAL, 0.95); 0: none (`rollouts/role_rewards.py`).
  role_decay: Memory = 0.0
  # Train adapters of its own for each role, proposer and solver or the two
  # players of a game, beside the same frozen weights (docs/role_adapters.md).
  role_adapters: bool = False
  # Loss of a role by its name: proposer and solver, or the players 0 and 1 of a
  # game -> dict(algorithm=..., loss={...}), which default to those of the run
  # (docs/role_adapters.md).
  roles: dict = mapping()
  epochs: Count = 1  # passes over a batch
  minibatches: Count = 1  # updates per pass
  # Route tokens in the update, for current and old log-probs, to the experts of
  # the sampler (https://arxiv.org/abs/2510.11370).
  replay_routes: bool = False
  # Memory of the reference weights: device; host: copied to the device for each
  # scoring pass.
  reference_memory: str = 'device'
  reference: Reference = Reference()
  teacher: Teacher = Teacher()
  reward_model: RewardWeights = RewardWeights()
  # Padding in the passes that compute log-probs (`update/packing.py`). whole:
  # padding is computed too; packed:TOKENS: sequences are packed into rows of
  # TOKENS tokens, at least prompt_len + completion_len; buckets:N: rows are
  # sorted by length, and a micro-batch is cut to the smallest sufficient of N
  # widths; shared:N: the samples of a problem attend to one copy of their
  # prompt (`models/shared.py`), with N widths as in buckets (1: not cut);
  # tree:N: also of the tokens with which several of their completions begin,
  # with N numbers of distinct tokens.
  padding: str = 'whole'
  temperature: Positive = 1.0  # of sampling, and of log-probs in the loss
  temperature_control: TemperatureControl = TemperatureControl()
  top_k: CountOrNone = 0  # 0: all tokens
  # Probability mass of the likeliest tokens that are sampled, after top_k.
  top_p: Nucleus = 1.0
  # Smallest probability of a sampled token, relative to the likeliest token.
  min_p: Share = 0.0
  # Divisor of positive logits, and factor of negative ones, for tokens of the
  # prompt or the completion so far (`logits.Penalties`); 1: none.
  repetition_penalty: Positive = 1.0
  # Number subtracted from the logits of tokens of the completion; 0: none.
  presence_penalty: Penalty = 0.0
  # Number subtracted from the logit of a token for each occurrence in the
  # completion; 0: none.
  frequency_penalty: Penalty = 0.0
  # Text of one token, or id:NUMBER -> number added to the logit of the token.
  logit_bias: dict = mapping()
  # Regular expression that completions match: other tokens have probability 0,
  # in the sampler and in the update. A completion that is cut off at
  # completion_len is a beginning of such a text.
  regex: str = ''
  # File with a JSON schema that completions follow, in place of rl.regex.
  json_schema: str = ''
  slots: CountOrNone = 0  # samples of a problem decoded at a time; 0: all
  # Largest number of segments in which the cache of completions grows.
  cache_segments: Count = 4
  turns: Turns = Turns()
  league: League = League()
  chunks: Chunks = Chunks()
  tree: Tree = Tree()
  search: Search = Search()
  # Samples of each problem that demonstrations replace: the reference solution,
  # or with `demos_prompt` at most this number of correct explanations.
  demos: CountOrNone = 0
  demos_when: str = 'always'  # always; failed: only if no sample was correct
  # Text with {prompt}, {solution} and {answer}: the prompt from which the
  # policy samples the demonstrations (ExPO). The update trains on them with the
  # usual prompt.
  # '': the reference solution is the demonstration.
  demos_prompt: str = ''
  critic: Critic = Critic()
  # Policy in the denominator of ratios. trainer: the policy before the updates
  # of a batch; with several updates per batch this needs a scoring pass, and
  # loss.correction corrects for the difference to the sampler. sampler: the
  # policy that sampled, without that pass. loglinear: a log-linear
  # interpolation between the sampler and the trained policy (AReaL), without
  # that pass.
  old_logp: str = 'trainer'
  # Policy lag of samples, in updates: batches wait in a queue for so many
  # steps, and the first steps only sample. path='host' with 1 has no queue: a
  # batch is sampled while the previous one is verified, except the first of
  # every log_every steps.
  staleness: Annotated[int, Range(0, 64)] = 0
  in_flight: InFlight = InFlight()
  # path='host': pieces of a batch: one is verified while the next is sampled.
  parts: Count = 2
  workers: Count = 2  # path='host': verifier processes
  # path='host': limit for one verification, seconds of wall clock.
  timeout_s: Positive = 5.0
  # path='host': largest share of invalid rewards (exceptions and timeouts) in
  # log_every steps. Above it the run stops; 1: never.
  invalid_limit: Share = 0.5
  optimizer: Optimizer = Optimizer(lr=1e-4)

  @property
  def plays_on_host(self) -> bool:
    """Returns whether turns are played by an environment in Python."""
    return bool(self.turns.env) and self.path == 'host'

  @property
  def overlaps(self) -> bool:
    """Returns whether a batch is sampled while the previous one is verified."""
    return self.path == 'host' and self.staleness == 1

  @property
  def delay(self) -> int:
    """Returns the steps that a batch waits in the queue; 0: there is none."""
    return 0 if self.overlaps else self.staleness

  @property
  def waiting(self) -> int:
    """Counts the first steps, which have nothing to train on."""
    return self.delay or max(self.in_flight.batches - 1, 0)

  @property
  def rows(self) -> int:
    """Counts the completions of the problems of a step in one round."""
    return self.prompts * self.samples

  @property
  def trained_rows(self) -> int:
    """Counts the rows that a step trains on."""
    rows = self.rows + self.replay.rows + self.extra.groups * self.samples
    return rows + bool(self.propose) * self.rows * self.samples

  @property
  def sampled_groups(self) -> int:
    """Counts the groups of `samples` completions that a step samples if all its
    rounds run.
    """
    again = bool(self.second_try or self.demos_prompt)
    rounds = (1 + self.refill_rounds) * (1 + again)
    groups = (self.prompts + self.extra.groups) * rounds
    return groups + bool(self.propose) * self.rows

  @property
  def second_try(self) -> str:
    """Returns `hints.when` if only second tries have hints; '' otherwise."""
    when = self.hints.when
    return when if self.hints.room and when == 'failed' else ''

  @property
  def reads_solutions(self) -> bool:
    """Returns whether rows have tokens of reference solutions: demonstrations
    or hints.
    """
    return bool(self.demos and not self.demos_prompt or self.hints.room)

  @property
  def demos_after(self) -> bool:
    """Returns whether demonstrations replace samples after verification."""
    late = self.demos_when == 'failed' or bool(self.demos_prompt)
    return self.demos > 0 and late

  @property
  def updates(self) -> int:
    """Counts the optimizer's updates in the stage."""
    return (self.steps - self.waiting) * self.epochs * self.minibatches

  @property
  def policy_updates(self) -> int:
    """Counts the updates of the policy, which rests while its critic warms up
    (a warm-up that covers the stage began in an earlier one).
    """
    warm = self.critic.warmup_updates
    return self.updates - (warm if warm < self.updates else 0)

  def micro_batch(self) -> int:
    """Counts the rows of a micro-batch, over all devices."""
    return self.rows // (self.minibatches * self.micro_batches)

  def objective(self, completion_len: int) -> losses.Objective:
    """Returns the objective: the algorithm with the settings of `loss`. If both
    roles have one of their own (`roles`), it is that of the first role.

    Args:
      completion_len: largest number of tokens of a completion, the divisor of
        Dr. GRPO.

    Raises:
      ValueError: names a setting that is unknown or has no effect.
    """
    if len(self.roles) == 2:
      return self.role_objective(min(self.roles), completion_len)
    changes = {k: v for k, v in self.loss.to_dict().items() if v is not None}
    settings = {'name': self.algorithm, **changes}
    try:
      return self._resolved(settings, completion_len)
    except ValueError as e:
      raise ValueError(SETTING.sub(_key_of, str(e))) from e

  def of_role(self, name: str) -> Self:
    """Returns the section with the algorithm and the loss of a role. If
    `rl.roles` names an algorithm for it, the settings of `loss` do not apply.

    Raises:
      ValueError: a setting of the loss is unknown.
    """
    own = self.roles.get(name, {})
    loss = Loss() if 'algorithm' in own else self.loss
    return dataclasses.replace(
      self,
      algorithm=own.get('algorithm', self.algorithm),
      loss=loss.changed(own.get('loss', {})),
      roles={},
    )

  def role_objective(self, name: str, length: int) -> losses.Objective:
    """Returns the objective of a role; errors begin with its key."""
    try:
      return self.of_role(name).objective(length)
    except ValueError as e:
      raise ValueError(f'rl.roles.{name}: {e}') from e

  def _resolved(self, settings: dict, completion_len: int) -> losses.Objective:
    """Returns the objective of settings, with those that the run decides."""
    resolved = losses.resolve(settings)
    aggregation = resolved.aggregation
    if 'part_weights' in resolved.part_keys and not resolved['part_weights']:
      settings['part_weights'] = self._part_weights()
    if 'fixed_length' in aggregation.keys_read and aggregation.length is None:
      settings['fixed_length'] = completion_len
    return losses.resolve(settings)

  def _part_weights(self) -> tuple[float, ...]:
    """Returns the weights of the parts of the reward, in their order; () if one
    is a schedule.
    """
    chain = self.turns.env == 'chain'
    parts = self.turns.links if chain else self.rewards
    weights = [part.get('weight', 1.0) for part in parts.values()]
    if self.turns.env and not chain:
      weights.append(self.turns.reward)
    return tuple(weights) if all(map(is_number, weights)) else ()
