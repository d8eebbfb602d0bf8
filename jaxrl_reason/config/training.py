"""Defines the sections of training stages: common keys and supervised ones."""

import dataclasses
from typing import ClassVar

from jaxrl_reason import losses
from jaxrl_reason.config.record import Record
from jaxrl_reason.ranges import (
  Amount,
  Count,
  CountOrNone,
  Memory,
  Nucleus,
  Positive,
  Share,
)

# Before the name of an earlier stage, in the value of a key that may name one.
OF_STAGE = 'stage:'


@dataclasses.dataclass(frozen=True)
class Optimizer(Record):
  """An optimizer and its learning rate; `optim.OPTIMIZERS` has the names."""

  read_with = {
    'b1 b2 eps': 'name!=adafactor',
    'b2 eps weight_decay': 'name!=sgd',
    'eps': 'name!=lion',
  }

  name: str = 'adamw'  # a name in update.optim.OPTIMIZERS
  lr: Amount = 1e-3  # peak learning rate
  schedule: str = 'constant'  # after warm-up: constant, linear, cosine, wsd
  warmup_steps: CountOrNone = 10  # updates of linear warm-up
  b1: Memory = 0.9  # decay of the mean gradient per update
  b2: Memory = 0.95  # decay of the mean squared gradient per update
  eps: Amount = 1e-8  # added to the root of the mean squared gradient
  state_dtype: str = 'float32'  # of the running means: float32 or bfloat16
  weight_decay: Amount = 0.0  # per update, times lr; not for norms and biases
  clip_norm: Amount = 1.0  # global norm of the gradient; 0: no clipping


@dataclasses.dataclass(frozen=True)
class Critic(Record):
  """The network of losses with values (PPO) or process rewards (PRIME)."""

  # Number of updates at the start that train only the critic.
  warmup_updates: CountOrNone = 0
  optimizer: Optimizer = Optimizer(lr=3e-4)


@dataclasses.dataclass(frozen=True)
class Training(Record):
  """The keys that every training stage has."""

  steps: Count = 100  # batches that are trained on
  micro_batches: Count = 1  # micro-batches that one gradient accumulates
  steps_per_dispatch: Count = 1  # K, fused steps per compiled call
  logprob_chunk: CountOrNone = 0  # columns of logits in memory at once; 0: all
  # Weight of the load-balancing loss of experts, about 1e-3. The loss of a
  # layer is E * sum of (share of uses) * (mean probability), which is
  # experts_per_token when balanced. It is averaged over layers and
  # micro-batches.
  balance_coef: Amount = 0.0
  optimizer: Optimizer = Optimizer()


@dataclasses.dataclass(frozen=True)
class Supervised(Training):
  """A supervised stage: next-token loss on worked solutions."""

  read_with = {
    'minibatches clip_high': 'loss=psft',
    'left_out entropy_coef kl_coef': 'loss=eksft',
    'behaviour gamma block': 'loss=pear',
    'divergence': 'loss=topk',
  }

  # Loss of a token. sft: its negative log-likelihood. dft: that times the
  # probability of the token, without gradient
  # (https://arxiv.org/abs/2508.05629). psft: minus its ratio to the policy
  # before the updates of the batch, clipped (https://arxiv.org/abs/2508.17784).
  # eksft: sft without the two sets of tokens of `left_out`, plus a term of each
  # (https://arxiv.org/abs/2605.29303). pear: sft weighted by the ratio of the
  # policy to the model that wrote the data, over the later tokens
  # (https://arxiv.org/abs/2602.01058). topk: a divergence from the stored
  # distributions of a teacher.
  loss: str = 'sft'
  minibatches: Count = 1  # updates per batch of rows; psft only, at least 2
  clip_high: Amount = 0.28  # the ratio is at most 1 + this; psft only
  # Share of the tokens in each of two sets that are left out: those with the
  # highest entropy, and those with the highest KL divergence from the policy at
  # the start; eksft only.
  left_out: Share = 0.2
  # Weight per nat of the mean entropy of the first set, which the loss raises;
  # eksft only. The default is the published 0.05 / log V, V = 151,936.
  entropy_coef: Amount = 0.0042
  # Weight per nat of the mean KL divergence of the second set, which the loss
  # lowers; eksft only.
  kl_coef: Amount = 0.05
  # Field of a row of the data with weights of the solution's tokens: a number,
  # or a list with a number for each token; sft only. '': all weights are 1.
  weights: str = ''
  # Field of a row of the data with log-probabilities of the solution's tokens
  # and the stop token, of the model that wrote them; pear only.
  behaviour: str = ''
  gamma: Nucleus = 0.999  # factor of the weight for each later token; pear only
  # Number of consecutive tokens with the same weight. 0: all tokens of a
  # solution, without `gamma`. pear only.
  block: CountOrNone = 1
  # Answers of a teacher in place of the solutions of the data: a file of
  # `jaxrl evaluate --top_logprobs=K`, or its folder.
  teacher: str = ''
  # Least score of the answers of `teacher` to learn from; 0: all answers.
  least_score: Share = 0.0
  # forward, reverse, jsd or tv, see rl.loss.distill; topk only.
  divergence: str = 'forward'
  # Padding in the passes over rows, as in rl.padding: whole, packed:TOKENS or
  # buckets:N.
  padding: str = 'whole'
  # The stage ends early when its negative log-likelihood over log_every steps,
  # in nats per token, is below this value. 0: never.
  stop_loss: Amount = 0.0
  rows: Count = 64  # examples per batch, over all devices

  def micro_batch(self) -> int:
    """Counts the rows of a micro-batch, over all devices."""
    return self.rows // (self.minibatches * self.micro_batches)


@dataclasses.dataclass(frozen=True)
class Preference(Training):
  """A stage that learns from pairs of a chosen and a rejected answer."""

  read_with = {'label_smoothing': 'loss=dpo', 'margin': 'loss=simpo'}

  # A file of rows with prompt, chosen and rejected, or the workdir of a run or
  # the name of an earlier rl stage, whose rollouts make pairs
  # (`data/preference_pairs.py`).
  pairs: str = ''
  loss: str = 'dpo'  # of a pair: dpo, ipo, kto, orpo or simpo
  # Scale of the log-probabilities in the loss; tau of ipo, lambda of orpo.
  beta: Positive = 0.1
  label_smoothing: Share = 0.0  # share of pairs with wrong labels; dpo only
  margin: Amount = 0.0  # in nats, gamma of simpo; simpo only
  rows: Count = 32  # pairs per update, over all devices
  # Pairs to evaluate on, a multiple of `rows`. No pair of their problems is
  # trained on. 0: none.
  heldout: CountOrNone = 0
  stop_loss: Amount = 0.0  # as sft.stop_loss

  # Settings of other supervised stages, which this stage does not have.
  labels: ClassVar[str] = ''
  minibatches: ClassVar[int] = 1
  padding: ClassVar[str] = 'whole'  # the rows of a pair keep their places

  def micro_batch(self) -> int:
    """Counts the rows of a micro-batch, over all devices."""
    blocks = losses.PREFERENCES[self.loss].blocks
    return blocks * self.rows // self.micro_batches


@dataclasses.dataclass(frozen=True)
class RewardModel(Training):
  """A stage that trains a reward model (docs/stages.md).

  It is trained on pairs, or on labels of steps. It begins as a copy of the
  policy with a new head. The stage does not change the policy.
  """

  read_with = {'separator': 'labels'}

  # As preference.pairs.
  pairs: str = ''
  # Instead of pairs: a file of rows with prompt, completions (a list of steps)
  # and labels (a list of true and false, one for each step).
  labels: str = ''
  separator: str = ''  # text of one token between two steps of `labels`
  rows: Count = 32  # pairs or solutions per update, over all devices
  heldout: CountOrNone = 0  # as preference.heldout

  # Settings of other supervised stages, which this stage does not have.
  loss: ClassVar[str] = ''
  minibatches: ClassVar[int] = 1
  padding: ClassVar[str] = 'whole'
  stop_loss: ClassVar[float] = 0.0

  def micro_batch(self) -> int:
    """Counts the rows of a micro-batch, over all devices."""
    return (1 if self.labels else 2) * self.rows // self.micro_batches
