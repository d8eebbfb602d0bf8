"""Rules of a run's config, checked before anything is compiled.

`check` needs only the config; the other functions need the model as well.
Every message names the key, its value, and the values that are allowed.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses
from jaxrl_reason.config import RL, Data, Run, rules, unread
from jaxrl_reason.config.training import (
  Preference,
  RewardModel,
  Supervised,
  Training,
)
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.models.shape_checks import PREFILL
from jaxrl_reason.names import sized_choice
from jaxrl_reason.rollouts import filters
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.checks import (
  data_checks,
  mesh_checks,
  rl_checks,
  schedule_checks,
  selection_checks,
  teacher_checks,
)
from jaxrl_reason.run.records import trackers
from jaxrl_reason.run.rl import (
  proposal_settings,
  reward_functions,
  role_settings,
)
from jaxrl_reason.update import packing

SHARDS = 'row shards (mesh data x fsdp)'


def check(config: ml_collections.ConfigDict | Run, n_row_shards: int) -> None:
  """Refuses impossible configs.

  Args:
    n_row_shards: devices over which rows are split (data x fsdp).

  Raises:
    ValueError: names the key and shows the arithmetic.
  """
  run = config_lib.read(config)
  stages = staging.each(run)
  named = [p for p in stages if p.name.partition('#')[0] in run.named]
  kinds = dict.fromkeys(p.kind for p in stages if p not in named)
  plain = dataclasses.replace(run, stages=tuple(kinds), named={})
  configs = {f'named.{p.name}: ': p.config for p in named}
  rules.refuse(unread.unread_rules, ({'': plain} if kinds else {}) | configs)
  if kinds:
    _check_stages(plain, n_row_shards)
  if run.sampler_mesh:
    rules.refuse(unsampled_rules, run.sampler_mesh, {p.kind for p in stages})
  longest = run.data.completion_len
  for p in named:
    try:
      _check_stages(p.config, n_row_shards)
      rules.refuse(length_rules, p.config.data.completion_len, longest)
    except ValueError as e:
      raise ValueError(f'named.{p.name}: {e}') from e
  schedule_checks.check(run, stages)
  if named:
    stages = {p.name: p.config for p in named}
    rules.refuse(role_settings.stage_rules, run, stages)


def unsampled_rules(sizes: tuple, kinds: set[str]) -> rules.Rows:
  return (
    (
      'rl' not in kinds,
      f'sampler_mesh={tuple(sizes)} has no effect without an rl stage; set it '
      'to ()',
    ),
  )


def length_rules(length: int, longest: int) -> rules.Rows:
  return (
    (
      length > longest,
      f"data.completion_len={length} is above the run's own, {longest}, which "
      'evaluations use; raise that',
    ),
  )


def _check_stages(config: Run, shards: int) -> None:
  """Refuses a config whose stages have no settings of their own."""
  data_checks.check(config.rl, config.data, config.stages)
  patterns = {
    'trainable': config.trainable,
    'lora.targets': config.lora.targets,
  }
  rules.refuse(pattern_rules, patterns, config.frozen_dtype)
  schedule_checks.check_stages(config)
  for kind in dict.fromkeys(config.stages):
    c = config.training(kind)
    rows = rl_row_rules if kind == 'rl' else row_rules
    rules.refuse(rows, kind, c, shards)
    if kind == 'reward_model':
      rules.refuse(reward_model_rules, c)
    elif kind == 'preference':
      rules.refuse(preference_rules, c)
    elif kind != 'rl':
      rules.refuse(supervised_rules, kind, c)
      if c.loss != 'sft':
        rules.refuse(supervised_loss_rules, kind, c)
      if c.padding != 'whole':
        others = config.data, config.rl.chunks.tokens
        rules.refuse(supervised_padding_rules, kind, c, *others)
      if c.teacher or c.least_score or c.loss == 'topk':
        rules.refuse(teacher_checks.stored_rules, kind, c, config.data)
  trackers.names(config.track)
  if config.rl.roles:  # before rules that read losses of roles
    rules.refuse(role_settings.loss_rules, config)
  if config.rl.role_adapters:
    rules.refuse(role_settings.role_rules, config)
  if 'rl' in config.stages:
    reward_functions.check_keys(config.rl)
    if config.sampler_mesh:
      rules.refuse(mesh_checks.sampler_rules, config)
    if config.rl.propose:
      rules.refuse(proposal_settings.proposal_rules, config)
    _check_selection(config.rl)
    adapted = bool(config.lora.rank or config.steering)
    if config.rl.roles:
      every = role_settings.losses_of(config)
    else:
      every = [('', config.rl, config.objective)]
    for at, c, objective in every:
      try:
        rl_checks.check(c, config.data, objective, adapted)
      except ValueError as e:
        raise ValueError(f'{at}{e}') from e
    sized_choice('model.prefill', config.model.prefill, PREFILL)


def _check_selection(c: RL) -> None:
  """Refuses filters and rounds that drop everything, or have no effect."""
  if c.filter != 'none' and filters.make(c.filter, c.filter_args):
    rules.refuse(selection_checks.filter_rules, c)
  if c.extra.groups or c.refill_rounds:
    rules.refuse(selection_checks.round_rules, c)
  if c.replay.rows or c.replay.capacity:
    rules.refuse(selection_checks.replay_rules, c)
  if c.hints.room:
    rules.refuse(selection_checks.hint_rules, c)
  if c.shaping != RL.shaping:
    rules.refuse(selection_checks.shaping_rules, c)
  if c.archive:
    rules.refuse(selection_checks.archive_rules, c)


def pattern_rules(patterns: Mapping[str, str], frozen_dtype: str) -> rules.Rows:
  return (
    *(_pattern(key, pattern) for key, pattern in patterns.items()),
    rules.choice('frozen_dtype', frozen_dtype, frozen.DTYPES),
  )


def _pattern(key: str, pattern: str) -> tuple[bool, str]:
  """Returns the row that refuses a text that is no regular expression."""
  try:
    re.compile(pattern)
  except re.error as e:
    return True, f'{key}={pattern!r} is no regular expression: {e}'
  return False, ''


def row_rules(kind: str, c: Any, shards: int) -> rules.Rows:
  heldout = getattr(c, 'heldout', 0)
  parts = {
    f'{kind}.minibatches': c.minibatches,
    f'{kind}.micro_batches': c.micro_batches,
    SHARDS: shards,
  }
  of_pairs = {f'{kind}.rows': c.rows}
  return (
    rules.divides(f'{kind}.rows', c.rows, **parts),
    rules.divides(f'{kind}.heldout', heldout, **of_pairs),
  )


def supervised_rules(kind: str, c: Supervised) -> rules.Rows:
  return (
    rules.choice(f'{kind}.loss', c.loss, losses.SUPERVISED),
    (
      c.weights and kind != 'sft',
      f'{kind}.weights={c.weights!r} has no effect: only stages of kind sft '
      "have weights of a solution's tokens",
    ),
  )


def supervised_loss_rules(kind: str, c: Supervised) -> rules.Rows:
  return (
    (
      c.loss == 'psft' and c.minibatches == 1,
      f'{kind}.minibatches=1: with one update per batch of rows the ratio of '
      f"{kind}.loss='psft' is 1, and nothing is clipped; set it to 2 or more",
    ),
    (
      c.loss == 'eksft' and not c.left_out,
      f"{kind}.left_out=0: {kind}.loss='eksft' would leave out no token, and "
      f"its two terms would be 0; raise it, or set {kind}.loss='sft'",
    ),
    (
      c.loss == 'pear' and (kind != 'sft' or not c.behaviour),
      f"{kind}.loss='pear' reads the log-probabilities of the model that wrote "
      'the solutions: in a stage of kind sft, set sft.behaviour to the field '
      'that has them',
    ),
    (
      c.loss == 'pear' and not c.block and c.gamma != Supervised().gamma,
      f'{kind}.gamma={c.gamma} has no effect with {kind}.block=0: all tokens '
      'of a solution have one weight, without a factor for later tokens; leave '
      f'it at {Supervised().gamma}, or set {kind}.block to 1 or more',
    ),
  )


def supervised_padding_rules(
  kind: str, c: Supervised, d: Data, chunk_tokens: int
) -> rules.Rows:
  packed = packing.choose(c, 1, f'{kind}.padding')
  columns = d.prompt_len + d.completion_len
  return (
    (
      isinstance(packed, packing.Packing) and packed.length < columns,
      f'{kind}.padding={c.padding!r} is less than data.prompt_len + '
      f'data.completion_len = {columns}, the longest sequence',
    ),
    (
      chunk_tokens,
      f'{kind}.padding={c.padding!r} and rl.chunks.tokens='
      f'{chunk_tokens}: chunks have rows of their own; choose whole',
    ),
  )


def preference_rules(c: Preference) -> rules.Rows:
  key, loss = 'preference', f'preference.loss={c.loss!r}'
  return (
    rules.choice(f'{key}.loss', c.loss, losses.PREFERENCES),
    (
      not c.pairs,
      f"{key}.pairs='': name a file of rows with prompt, chosen and rejected, "
      'the workdir of a run with rollouts, or an rl stage before it',
    ),
    (
      c.loss == 'kto' and c.micro_batches > 1,
      f'{key}.micro_batches={c.micro_batches}: {loss} estimates a KL '
      'divergence over all pairs of an update; set it to 1',
    ),
  )


def reward_model_rules(c: RewardModel) -> rules.Rows:
  return (
    (
      not c.pairs and not c.labels,
      "reward_model.pairs='': name a file of rows with prompt, chosen and "
      'rejected, the workdir of a run with rollouts, or an rl stage before it; '
      'or set reward_model.labels',
    ),
    (
      c.pairs and c.labels,
      f'reward_model.pairs={c.pairs!r} and reward_model.labels={c.labels!r}: '
      'a reward model is trained on one of them; set the other to '
      '',
    ),
    (
      c.labels and not c.separator,
      f'reward_model.labels={c.labels!r}: set reward_model.separator to the '
      'text between two steps',
    ),
    *rules.apart(
      ': a reward model has no logits, and its loss has no other term; set it '
      'to 0',
      reward_model__logprob_chunk=c.logprob_chunk,
      reward_model__balance_coef=c.balance_coef,
    ),
  )


def rl_row_rules(kind: str, c: RL, shards: int) -> rules.Rows:
  del kind
  name = f'rl.prompts {c.prompts} x rl.samples {c.samples}'
  if c.propose:
    name += ' x (1 + rl.samples)'
  if c.replay.rows:
    name += f' + rl.replay.rows {c.replay.rows}'
  if c.extra.groups:
    name += f' + rl.extra.groups {c.extra.groups} x rl.samples'
  over = {SHARDS: shards}
  updates = {
    'rl.minibatches': c.minibatches,
    'rl.micro_batches': c.micro_batches,
  }
  # Episodes are not split into parts.
  in_parts = c.path == 'host' and not c.turns.env
  parts = {'rl.parts': c.parts} if in_parts else {}
  if c.in_flight.batches:
    parts = {'rl.in_flight.pieces': c.in_flight.pieces}
  return (
    rules.divides(name, c.trained_rows, **updates, **over),
    rules.divides('rl.extra.groups', c.extra.groups, **over),
    rules.divides('rl.prompts', c.prompts, **parts, **over),
  )


def check_trainable(run: Run, paths: Iterable[str]) -> None:
  """Refuses a `trainable` that names no parameter, or none of new adapters.

  Args:
    paths: of the model's parameters.

  Raises:
    ValueError: names the key and some of the paths.
  """
  pattern, paths = run.trained_paths, sorted(paths)
  trained = [path for path in paths if re.fullmatch(pattern, path)]
  if not trained:
    raise ValueError(
      f'trainable={pattern!r} matches none of the parameters, so nothing would '
      f'be trained; their paths are like {", ".join(paths[:3])}'
    )
  for key, added in run.adapter_paths.items():
    own = [path for path in paths if re.fullmatch(added, path)]
    if not run.init_from and not {*own} & {*trained}:
      raise ValueError(
        f'trainable={pattern!r} and {key}: the pattern matches none of the new '
        f'parameters, which would stay without effect; add {added} to it, or '
        f'turn {key.partition("=")[0]} off'
      )


def expert_rules(
  sections: Mapping[str, Training], replay_routes: bool, experts: int
) -> rules.Rows:
  """Refuses settings of experts for a model without experts.

  Args:
    sections: of the run's stages, by kind; experts: of the model.
  """
  dense = not experts
  return rules.apart(
    ': the model has no experts; set it to its default, or model.experts',
    **{
      f'{kind}.balance_coef': dense and c.balance_coef
      for kind, c in sections.items()
    },
    rl__replay_routes=dense and replay_routes,
  )


def position_rules(sections: Mapping[str, Training]) -> rules.Rows:
  """Refuses padding to other lengths than in generation, because the longrope
  positions of a model depend on the length.
  """
  return tuple(
    (
      c.padding not in ('whole', 'shared:1'),
      f'{kind}.padding={c.padding!r}: the longrope positions of this model '
      'depend on the length of rows; choose whole',
    )
    for kind, c in sections.items()
  )
