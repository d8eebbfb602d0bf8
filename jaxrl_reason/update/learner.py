"""What an update is made of, and the state it starts from."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxrl_reason import losses, trees
from jaxrl_reason.base import Batch, Metrics, Model, TrainState
from jaxrl_reason.update import critics
from jaxrl_reason.update import packing as packing_lib
from jaxrl_reason.update.refresh import Refresh


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
  """What an update is made of; static, so it selects a program.

  Attributes:
    model: the policy's functions.
    objective: the loss, from `losses.resolve`.
    tx: the optimizer.
    start: first column trained on (the prompt length, or 1).
    epochs, minibatches: passes over a batch and updates per pass; 1 and 1 is
      on-policy, with a ratio of exactly 1.
    micro_batches: pieces a minibatch's gradient is summed over.
    logprob_chunk: columns of logits alive at once; 0: all.
    critic: what the advantages read besides rewards, where they do.
    trainable: regex over the paths of the parameters that are trained.
    old_logp: name in OLD_LOGP, what ratios are measured against.
    balance_coef: of the experts' load balance in the loss.
    reference_memory: 'device', or 'host' where the state keeps the reference in
      the hosts' memory: a program then has it on the device while it scores.
    packing: how padding is saved; None: rows are computed as they are.
    select: batch -> (batch, metrics), chooses what is learnt from; None: all.
    part_names: of the reward's parts, for the metrics.
    observe: (control, Outcomes, chosen batch, step) -> (control, metrics), what
      is known of problems after a step; None: nothing.
    shaping: (control, Outcomes, chosen batch) -> (control, batch, metrics),
      adds terms to rewards that go by the run; None: rewards are as they are.
    archive: (control, batch) -> (control, metrics), keeps what solves problems;
      None: nothing is kept.
    refresh: moves the reference after a step; None: it stands still.
    heat: (control, metrics) -> (control, metrics), steers the temperature of
      the next step; None: it stands still.
    shown: (learner, state, batch, chosen, sampling) -> arrays of a few rows,
      for `rollouts/*.jsonl` (`update.shown`); None: nothing.
  """

  model: Model
  objective: losses.Objective
  tx: optax.GradientTransformation
  start: int
  epochs: int = 1
  minibatches: int = 1
  micro_batches: int = 1
  logprob_chunk: int = 0
  critic: critics.Critic | None = None
  trainable: str = '.*'
  old_logp: str = 'trainer'
  balance_coef: float = 0.0
  reference_memory: str = 'device'
  packing: packing_lib.How | None = None
  select: Callable[[Batch], tuple[Batch, Metrics]] | None = None
  part_names: tuple[str, ...] = ()
  observe: Callable[..., tuple[dict, Metrics]] | None = None
  shaping: Callable[..., tuple[dict, Batch, Metrics]] | None = None
  archive: Callable[..., tuple[dict, Metrics]] | None = None
  refresh: Refresh | None = None
  heat: Callable[..., tuple[dict, Metrics]] | None = None
  shown: Callable[..., Metrics] | None = None

  # What follows from these, decided once.
  needs: frozenset[str] = dataclasses.field(init=False)
  n_updates: int = dataclasses.field(init=False)
  reads_reference: bool = dataclasses.field(init=False)
  reads_entropy_early: bool = dataclasses.field(init=False)
  moves: bool = dataclasses.field(init=False)
  reads_before: bool = dataclasses.field(init=False)
  columns: dict[str, int] = dataclasses.field(init=False)

  def __post_init__(self):
    """Decides what the loss reads:

    needs: arrays and extras, by name.
    n_updates: of a batch.
    reads_reference: log-probs of a reference; an implicit process reward is
      measured against it too.
    reads_entropy_early: advantages read the entropies before the update.
    moves: the policy leaves the one that ratios are measured against while a
      batch is learnt from, so that old log-probs take a pass of their own.
    reads_before: anything that `scoring.add_arrays` adds.
    columns: which log-probs are computed and how many at a time, for
      `logprobs`.
    """
    needs, updates = self.objective.needs, self.epochs * self.minibatches
    reference = bool(needs & {'ref_logp', 'process_reward'})
    entropy = self.objective['entropy_alpha'] != 0
    moves = updates > 1 and self.old_logp == 'trainer'
    before = reference or self.old_logp == 'sampler' or moves or entropy
    before = before or 'old_mean_logp' in needs or self.critic is not None
    decided = dict(needs=needs, n_updates=updates, reads_reference=reference)
    decided |= dict(reads_entropy_early=entropy, moves=moves)
    decided['columns'] = dict(start=self.start, chunk=self.logprob_chunk)
    shared = isinstance(self.packing, packing_lib.Shared)
    if shared and self.model.hidden_shared is None:
      raise ValueError(
        "rl.padding='shared:N': this model computes whole rows only; choose "
        'whole, packed:N or buckets:N'
      )
    for name, value in (decided | {'reads_before': before}).items():
      object.__setattr__(self, name, value)

  @property
  def offload(self) -> tuple[str, ...]:
    """Names the fields of the state that are kept in the hosts' memory."""
    return ('ref_params',) if self.reference_memory == 'host' else ()


OLD_LOGP = (
  # The policy as it stands when the updates of a batch begin; a pass over the
  # batch where there are several, none where there is one (the ratio is 1).
  'trainer',
  # The policy as it sampled, whose log-probs came with the samples: no pass,
  # and right for samples of an earlier version.
  'sampler',
)
# Settings under which a coefficient of the loss changes during a run.
ADAPTIVE = ('kl_target', 'entropy_target', 'sft_coef_end')


def reference(learner: Learner, state: TrainState):
  """Gives the parameters of the reference policy: the model with its adapters
  off, or with what is trained as it was at the start of the stage.
  """
  if learner.model.adapters_off is not None:
    return learner.model.adapters_off(state.params)
  _, frozen = trees.split(state.params, learner.trainable)
  ref = state.ref_params
  if learner.reference_memory == 'host':
    ref = jax.device_put(ref, jax.memory.Space.Device)
  return trees.join(ref, frozen)


def init_state(learner: Learner, params, control=None) -> TrainState:
  """Makes a state at step 0; it keeps only what the loss asks for, and
  optimizer state only of what is trained.

  Args:
    control: what sources and rewards remember, as at the start; or None.
  """
  chosen, _ = trees.split(params, learner.trainable)
  copied = learner.reads_reference and learner.model.adapters_off is None
  ref = jax.tree.map(jnp.copy, chosen) if copied else None
  critic = learner.critic and critics.init_state(learner.critic, params)
  adaptive = any(learner.objective[k] is not None for k in ADAPTIVE)
  return TrainState(
    step=jnp.int32(0),
    params=params,
    opt_state=learner.tx.init(chosen),
    ref_params=ref,
    critic=critic,
    coefs=losses.init_coefs(learner.objective) if adaptive else None,
    control=control,
  )
