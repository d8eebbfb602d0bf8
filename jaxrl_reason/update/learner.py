"""The static settings of an update, and its initial state."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_reason import losses, trees
from jaxrl_reason.base import Model, TrainState
from jaxrl_reason.parts import Chain
from jaxrl_reason.update import critics
from jaxrl_reason.update import packing as packing_lib

POLICY, REFERENCE, OWN = 'policy', 'reference', 'own'
SAME = POLICY, REFERENCE  # the policy's model


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
  """A model without gradient whose distribution the policy learns; static.

  Attributes:
    model: its functions.
    weights: OWN (`TrainState.teacher_params`), POLICY (the policy before the
      step's updates) or REFERENCE (the reference, which may move).
    memory: of its own weights: 'device', or 'host' to keep them in host memory
      and copy them to the device for each pass.
  """

  model: Model
  weights: str = OWN
  memory: str = 'device'


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
  """The static settings of an update; they select a program.

  Attributes:
    model: the policy's functions.
    objective: the loss, from `losses.resolve`.
    roles: names and losses of roles, which then replace `objective`; (): one
      loss of all rows.
    tx: the optimizer.
    start: first column trained on (the prompt length, or 1).
    epochs, minibatches: passes over a batch and updates per pass; 1 and 1 is
      on-policy, with a ratio of exactly 1.
    micro_batches: pieces over which a minibatch's gradient is summed.
    logprob_chunk: columns of logits in memory at once; 0 computes all at once.
    critic: the network whose output the advantages read, or None.
    trainable: regex over the paths of the parameters that are trained.
    old_logp: name in OLD_LOGP, the policy that ratios are relative to.
    balance_coef: coefficient of the experts' load balance in the loss.
    reference_memory: 'device', or 'host' to keep the reference in host memory
      and copy it to the device for each scoring pass.
    starts_as_reference: the reference of a model with adapters has those of the
      start of the stage; False: it has none.
    teacher: the model that a distillation loss reads, or None.
    reward_model: the model that a reward reads, or None.
    packing: how rows are packed to save padding; None computes padded rows.
    part_names: names of the reward's parts, for the metrics.
    chain: the parts that are applied around an update, with their memories.
    reprompted: samples may be trained on under another prompt than that of the
      sampler.
    waits: steps may have no token to train on; they leave the weights and the
      optimizer as they are.
  """

  model: Model
  objective: losses.Objective
  tx: optax.GradientTransformation
  start: int
  epochs: int = 1
  minibatches: int = 1
  micro_batches: int = 1
  logprob_chunk: int = 0
  roles: tuple[tuple[str, losses.Objective], ...] = ()
  critic: critics.Critic | None = None
  trainable: str = '.*'
  old_logp: str = 'trainer'
  balance_coef: float = 0.0
  reference_memory: str = 'device'
  starts_as_reference: bool = False
  teacher: Teacher | None = None
  reward_model: critics.Critic | None = None
  packing: packing_lib.How | None = None
  part_names: tuple[str, ...] = ()
  chain: Chain = Chain()
  reprompted: bool = False
  waits: bool = False

  # Derived from the fields above, once.
  needs: frozenset[str] = dataclasses.field(init=False)
  n_updates: int = dataclasses.field(init=False)
  reads_reference: bool = dataclasses.field(init=False)
  reads_entropy_early: bool = dataclasses.field(init=False)
  moves: bool = dataclasses.field(init=False)
  reads_before: bool = dataclasses.field(init=False)
  columns: dict[str, int] = dataclasses.field(init=False)

  def __post_init__(self):
    """Derives the arrays that the loss reads:

    needs: arrays and extras, by name.
    n_updates: updates per batch.
    reads_reference: log-probs of a reference; an implicit process reward is
      relative to it too.
    reads_entropy_early: advantages read the entropies before the update.
    moves: old log-probs need a pass of their own: the policy changes between
      the updates of a batch, correction weights are normalised over the batch,
      or advantages read log-probs that the sampler lacks.
    reads_before: any array that `scoring.add_arrays` adds.
    columns: which log-probs are computed and how many at a time, for
      `logprobs`.
    """
    updates = self.epochs * self.minibatches
    objectives = [x for _, x in self.roles] or [self.objective]
    needs = frozenset().union(*(x.needs for x in objectives))
    reference = bool(needs & {'ref_logp', 'process_reward'})
    entropy = any(x['entropy_alpha'] != 0 for x in objectives)
    corrections = [x.correction for x in objectives]
    lacks = self.reprompted or self.objective.offpolicy is not None
    ahead = updates > 1 or any(x and x.normalise for x in corrections)
    ahead = ahead or (lacks and any(x.scores_samples for x in objectives))
    moves = bool(ahead) and self.old_logp == 'trainer'
    before = reference or self.old_logp == 'sampler' or moves or entropy
    whole = {'old_mean_logp', 'sum_p_squared', 'teacher_logp'}
    before = before or bool(needs & whole)
    before = before or self.critic is not None
    decided = dict(needs=needs, n_updates=updates, reads_reference=reference)
    decided |= dict(reads_entropy_early=entropy, moves=moves)
    decided['columns'] = dict(start=self.start, chunk=self.logprob_chunk)
    shared = isinstance(self.packing, packing_lib.Shared)
    models = [self.model, *([self.teacher.model] if self.teacher else [])]
    if shared and any(model.hidden_shared is None for model in models):
      raise ValueError(
        "rl.padding='shared:N': this model, or its teacher, computes whole "
        'rows only; choose whole, packed:N or buckets:N'
      )
    for name, value in (decided | {'reads_before': before}).items():
      object.__setattr__(self, name, value)

  @property
  def offload(self) -> tuple[str, ...]:
    """Returns the names of the state's fields that are kept in host memory."""
    kept = self.reference_memory, self.teacher and self.teacher.memory
    names = zip(('ref_params', 'teacher_params'), kept)
    return tuple(name for name, memory in names if memory == 'host')

  @property
  def trains_critic_alone(self) -> bool:
    """Returns whether updates train a reward model and not the policy."""
    return bool(self.critic) and self.critic.output in critics.REWARD_MODELS

  def trained(self, state: TrainState) -> Any:
    """Returns the parameters that the stage trains."""
    if self.trains_critic_alone:
      return state.critic.params
    return trees.split(state.params, self.trainable)[0]

  @property
  def teacher_specs(self) -> Any:
    """Returns the specs of a teacher with weights of its own, or None."""
    taught = self.teacher is not None and self.teacher.weights == OWN
    return self.teacher.model.specs if taught else None

  @property
  def has_reference(self) -> bool:
    """Returns whether the state has a copy of the weights at the start."""
    taught = self.teacher is not None and self.teacher.weights == REFERENCE
    used = self.reads_reference or taught
    whole = self.model.adapters_off is None or self.starts_as_reference
    return used and whole


LOGLINEAR = 'loglinear'
OLD_LOGP = (
  # The policy when the updates of a batch begin. With several updates this
  # takes a pass over the batch; with one it takes none (the ratio is 1).
  'trainer',
  # The policy that sampled, with the log-probs of the samples. This takes no
  # pass, and is correct for samples of an earlier version.
  'sampler',
  # The policy when the updates of a batch begin, interpolated between the
  # policy that sampled and the policy that is trained, by the updates between
  # them (AReaL). This takes no pass.
  LOGLINEAR,
)
# Settings under which a coefficient of the loss changes during a run.
ADAPTIVE = ('kl_target', 'entropy_target', 'sft_coef_end')


def reference(learner: Learner, state: TrainState):
  """Returns the parameters of the reference policy: the model without its
  adapters, or the trained parameters as they were at the start of the stage.
  """
  if not learner.has_reference:
    return learner.model.adapters_off(state.params)
  _, frozen = trees.split(state.params, learner.trainable)
  ref = _on_device(state.ref_params, learner.reference_memory)
  return trees.join(ref, frozen)


def _on_device(params, memory: str):
  if memory == 'host':
    return jax.device_put(params, jax.memory.Space.Device)
  return params


def teacher_params(learner: Learner, state: TrainState):
  """Returns the parameters of the teacher, without gradient."""
  if learner.teacher.weights == POLICY:
    return jax.lax.stop_gradient(state.params)
  if learner.teacher.weights == REFERENCE:
    return reference(learner, state)
  return _on_device(state.teacher_params, learner.teacher.memory)


def init_state(learner: Learner, params, control=None) -> TrainState:
  """Builds the state at step 0. It contains only the arrays that the loss
  reads, and optimizer state only for trained parameters. The weights of a
  teacher are loaded, and put in afterwards.

  Args:
    control: the initial memories of parts and rounds; or None.
  """
  chosen, _ = trees.split(params, learner.trainable)
  ref = jax.tree.map(jnp.copy, chosen) if learner.has_reference else None
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
