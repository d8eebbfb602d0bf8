"""What the rl section must satisfy together with the loss it names."""

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses
from jaxrl_reason.models.config import PREFILL, sized_choice
from jaxrl_reason.rollouts import rescue
from jaxrl_reason.run import chunks, turns
from jaxrl_reason.update import packing
from jaxrl_reason.update.learner import OLD_LOGP

# What `step` can give a loss, of what `losses.needs` may ask for.
COMPUTED = frozenset(
  'ref_logp old_logp sampler_logp entropy entropy_grad reward_parts values '
  'process_reward greedy_reward old_mean_logp full_logits sft_mask selected '
  'key truncated is_offpolicy segment_reward segment_ids node_ids'.split()
)


# Advantages of the best of loss.pass_k samples.
BEST_OF = ('passk', 'pkpo')


def check_groups(
  c: ml_collections.ConfigDict, objective: losses.Objective
) -> None:
  """Refuses groups too small for the advantage to differ from 0."""
  name, advantage = objective['advantage'], objective.advantage
  if name in BEST_OF and objective['pass_k'] > c.samples:
    raise ValueError(
      f'rl.samples={c.samples}: rl.loss.advantage={name!r} is 0 with fewer '
      f'samples of a problem than rl.loss.pass_k={objective["pass_k"]}'
    )
  own = getattr(advantage, 'singleton', None) == 'reward'
  own |= name == 'segments' and objective['segment_baseline'] == 'none'
  own |= name in BEST_OF
  if c.samples == 1 and 'group' in advantage.reads and not own:
    raise ValueError(
      f'rl.samples=1: rl.algorithm={c.algorithm!r} compares the samples of a '
      f'problem (advantage={name!r}), and is 0 for one alone; use 2 or more, '
      'or another rl.loss.advantage (reinforce)'
    )


def _check_demos(c: ml_collections.ConfigDict, needs: frozenset[str]) -> None:
  """Demonstrations and a loss that knows them come together."""
  if c.demos >= c.samples:
    raise ValueError(
      f'rl.demos={c.demos} leaves no sample of rl.samples={c.samples}'
    )
  if c.demos_when not in rescue.WHEN:
    raise ValueError(
      f'rl.demos_when={c.demos_when!r}: choose {" or ".join(rescue.WHEN)}'
    )
  if c.demos and c.demos_when == 'failed':
    _check_rescue(c)
  if c.hints.learn and 'is_offpolicy' not in needs:
    raise ValueError(
      f'rl.hints.learn=True: rl.algorithm={c.algorithm!r} takes every token '
      "for the policy's own; set rl.loss.offpolicy to luffy or sft"
    )
  if c.hints.learn and not c.hints.room:
    raise ValueError('rl.hints.learn=True: there is none; set rl.hints.room')
  if c.demos and 'is_offpolicy' not in needs:
    raise ValueError(
      f'rl.demos={c.demos}: rl.algorithm={c.algorithm!r} takes every token for '
      "the policy's own; set rl.loss.offpolicy to luffy or sft"
    )
  if 'is_offpolicy' in needs and not (c.demos or c.hints.learn):
    raise ValueError(
      f'rl.algorithm={c.algorithm!r} learns from demonstrations: set '
      'rl.demos=1 or more, or rl.hints.learn=True'
    )


def _check_rescue(c: ml_collections.ConfigDict) -> None:
  """Demonstrations where nobody was right are put in once, by kernels."""
  if c.path != 'fused':
    raise ValueError(
      f'rl.demos_when={c.demos_when!r}: only with rl.path="fused", where '
      'rewards are known within the step'
    )
  others = {
    'rl.refill_rounds': c.refill_rounds,
    'rl.extra.groups': c.extra.groups,
    'rl.replay.rows': c.replay.rows,
    'rl.replay_routes': c.replay_routes,
    'rl.turns.env': c.turns.env,
  }
  for key, value in others.items():
    if value:
      raise ValueError(
        f'rl.demos_when={c.demos_when!r} and {key}={value!r} do not go '
        'together; set one of them to its default'
      )


def _check_old_logp(c: ml_collections.ConfigDict, needs: frozenset) -> None:
  if c.old_logp not in OLD_LOGP:
    raise ValueError(
      f'rl.old_logp={c.old_logp!r}: choose {" or ".join(OLD_LOGP)}'
    )
  off = c.demos or c.hints.learn
  if c.old_logp == 'sampler' and (off or 'old_mean_logp' in needs):
    raise ValueError(
      'rl.old_logp="sampler": the sampler knows no log-probs of demonstrations '
      '(rl.demos, rl.hints.learn) or whole vocabularies (rover); use "trainer"'
    )
  if c.staleness and c.path != 'host':
    raise ValueError(
      f'rl.staleness={c.staleness}: 0, or 1 with rl.path="host"; in the fused '
      'step nothing waits for a verifier'
    )
  if c.staleness and c.old_logp != 'sampler':
    raise ValueError(
      'rl.staleness=1 needs rl.old_logp="sampler": samples of an earlier '
      'policy are off-policy by the ratio to that policy'
    )


def _check_reference(config: ml_collections.ConfigDict, needs: frozenset):
  c = config.rl
  keys = 'every', 'kl', 'patience', 'ema'
  on = [f'rl.reference.{k}={c.reference[k]}' for k in keys if c.reference[k]]
  if c.reference.optimizer and not (
    c.reference.every or c.reference.kl or c.reference.patience
  ):
    raise ValueError(
      'rl.reference.optimizer=True goes with a reset: set rl.reference.every, '
      'rl.reference.kl or rl.reference.patience'
    )
  if not on:
    return
  if not needs & {'ref_logp', 'process_reward'}:
    raise ValueError(
      f'{on[0]}: rl.algorithm={c.algorithm!r} reads no reference; set '
      'rl.loss.kl_coef above 0'
    )
  if config.lora.rank or config.steering:
    raise ValueError(
      f'{on[0]}: the reference of a model with adapters is the model without '
      'them, which does not move'
    )
  if c.reference_memory != 'device':
    raise ValueError(
      f'{on[0]} and rl.reference_memory={c.reference_memory!r}: what moves '
      "stays on the device; set it to 'device'"
    )
  if c.reference.kl and config_lib.algorithm(config).kl is None:
    raise ValueError(
      f'rl.reference.kl={c.reference.kl}: the loss measures no kl; set '
      'rl.loss.kl_coef above 0'
    )


def _check_heat(c: ml_collections.ConfigDict, needs: frozenset) -> None:
  if c.heat.entropy and 'full_logits' in needs:
    raise ValueError(
      f'rl.heat.entropy={c.heat.entropy}: rl.algorithm={c.algorithm!r} has no '
      'entropy of what is sampled; set it to 0'
    )
  if c.heat.entropy and not c.heat.low <= c.temperature <= c.heat.high:
    raise ValueError(
      f'rl.temperature={c.temperature} is not within rl.heat.low='
      f'{c.heat.low} and rl.heat.high={c.heat.high}'
    )


def _check_shared(c: ml_collections.ConfigDict, packed) -> None:
  if not isinstance(packed, packing.Shared):
    return
  if c.demos and c.replay_routes:
    raise ValueError(
      f'rl.padding={c.padding!r} with rl.demos={c.demos} and '
      'rl.replay_routes=True: a demonstration and the samples beside it choose '
      'other experts for their prompt, which is then not one; choose whole'
    )
  if c.hints.learn:
    raise ValueError(
      f'rl.padding={c.padding!r} and rl.hints.learn=True: what is computed '
      'once for all samples has no loss; choose whole'
    )


def _check_packing(config: ml_collections.ConfigDict, needs: frozenset[str]):
  c, d = config.rl, config.data
  start = config_lib.prompt_room(config)
  room = start + d.completion_len
  if chunks.of(config) is not None:
    return  # their rows are other ones
  packed = packing.choose(c, start)
  _check_shared(c, packed)
  if not isinstance(packed, packing.Packing):
    return
  if packed.length < room:
    raise ValueError(
      f'rl.padding={c.padding!r} is less than data.prompt_len {d.prompt_len} '
      f'{f"+ rl.hints.room {c.hints.room} " if c.hints.room else ""}'
      f'+ data.completion_len {d.completion_len} = {room}, the longest sequence'
    )
  if 'full_logits' in needs:
    raise ValueError(
      f'rl.padding={c.padding!r}: rl.algorithm={c.algorithm!r} reads whole '
      'logits, which are not packed; choose buckets:N'
    )


def check(config: ml_collections.ConfigDict) -> None:
  c = config.rl
  settings = config_lib.algorithm(config)
  needs = losses.needs(settings)
  unmet = needs - COMPUTED
  if unmet:
    raise ValueError(
      f'rl.algorithm={c.algorithm!r} needs {", ".join(sorted(unmet))}, which '
      'this trainer does not compute; `losses` has it for your own loop'
    )
  check_groups(c, settings)
  _check_demos(c, needs)
  _check_old_logp(c, needs)
  _check_reference(config, needs)
  _check_heat(c, needs)
  _check_packing(config, needs)
  turns.check(config, needs)
  chunks.check(config, needs)
  sized_choice('model.prefill', config.model.prefill, PREFILL)
  if c.path not in ('fused', 'host'):
    raise ValueError(f'rl.path={c.path!r}: choose fused or host')
  if c.overlong > config.data.completion_len:
    raise ValueError(
      f'rl.overlong={c.overlong} tokens of data.completion_len='
      f'{config.data.completion_len}: choose from 0 to that'
    )
  if c.path == 'host' and c.steps_per_dispatch != 1:
    raise ValueError(
      'rl.steps_per_dispatch must be 1 with rl.path="host": rewards in Python '
      'stand between generation and update'
    )
