"""The stages of a run: a list of names, kinds and settings.

  stages = ('sft', 'short', 'long')
  named = {
    'short': dict(kind='rl', rl=dict(steps=50), data=dict(completion_len=8)),
    'long': dict(kind='rl', keep=('optimizer',)),
  }

`each` returns every stage with a complete config: the run's, with the stage's
changes. Code that builds a stage reads that config and no other.
"""

import collections
import dataclasses
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import names
from jaxrl_reason.config import STAGES, Run, leaves, nearest, rules
from jaxrl_reason.config.training import OF_STAGE

# Parts of the state that may continue from the stage before: key of
# `named.<name>.keep` -> field of the TrainState.
KEEP = {
  'optimizer': 'opt_state',
  'reference': 'ref_params',
  'critic': 'critic',
  'control': 'control',
}
# Keys that may name an earlier stage: (kind of their stage, key, kind of the
# earlier one).
OF_EARLIER = (
  ('rl', 'rl.reward_model.weights', 'reward_model'),
  ('preference', 'preference.pairs', 'rl'),
  ('reward_model', 'reward_model.pairs', 'rl'),
)
START = 'start'  # `named.<name>.weights`: the run's first weights
STAGE_KEYS = ('kind', 'weights', 'keep')
# Keys that a stage may change besides its kind's section.
CHANGES = re.compile(
  r'data\.(completion_len|solutions|controller\..*)'
  r'|eval\.every|checkpoint\.every|log_every'
)


@dataclasses.dataclass(frozen=True)
class Planned:
  """One stage of a run.

  Attributes:
    name: as in config.stages; a repeated stage has its number, as rl#2.
    kind: a name in config.STAGES.
    config: the run's, with the changes of this stage; its `stages` are (kind,).
    weights: '': of the stage before; START, or the name of an earlier stage.
    keep: names in KEEP.
  """

  name: str
  kind: str
  config: Run
  weights: str = ''
  keep: tuple[str, ...] = ()

  @property
  def origin(self) -> str:
    """Returns the stage's entry in a checkpoint: its name, with another kind
    if that differs.
    """
    plain = self.name.partition('#')[0] == self.kind
    return self.name if plain else f'{self.name}:{self.kind}'

  @property
  def archives(self) -> bool:
    """Returns whether the stage keeps an archive of solutions."""
    return self.kind == 'rl' and bool(self.config.rl.archive)


def each(config: ml_collections.ConfigDict | Run) -> list[Planned]:
  """Returns the stages of a run, in their order.

  Raises:
    ValueError: names the key of a stage that is impossible.
  """
  run = config_lib.read(config)
  for name, values in run.named.items():
    rules.refuse(named_rules, name, values)
    _planned(run, name, name)
  rules.refuse(list_rules, run.stages, [*STAGES, *run.named])
  out, seen = [], collections.Counter()
  for name in run.stages:
    seen[name] += 1
    number = f'#{seen[name]}' if seen[name] > 1 else ''
    planned = _with_archive(_planned(run, name, name + number), out)
    planned = _with_earlier(planned, out)
    planned = _with_warm_critic(planned, out)
    rules.refuse(order_rules, planned, out)
    rules.refuse(reward_model_rules, planned, out)
    out.append(planned)
  return out


def last_of_each_kind(stages: Iterable[Planned]) -> Run:
  """Returns one config with every kind of stage once, as its last stage is.
  Keys outside the sections of stages are those of the rl stage, if there is
  one, or of the last kind.
  """
  last = {p.kind: p.config for p in stages}
  base = last.get('rl') or [*last.values()][-1]
  sections = {kind: own.training(kind) for kind, own in last.items()}
  return dataclasses.replace(base, stages=tuple(last), **sections)


def one(stages: Iterable[Planned], name: str) -> Run:
  """Returns the config of one stage, by its name in metrics, such as `rl#2`.

  Raises:
    ValueError: there is no such stage.
  """
  configs = {p.name: p.config for p in stages}
  if name not in configs:
    words = f'choose one of {", ".join(configs)}.{nearest(name, configs)}'
    raise ValueError(f'stage {name!r}: {words}')
  return configs[name]


def _planned(run: Run, key: str, name: str) -> Planned:
  """Returns the stage `key` of config.stages, with its changes applied."""
  values = run.named.get(key, {'kind': key})
  kind, keep = values['kind'], values.get('keep', ())
  keep = (keep,) if isinstance(keep, str) else tuple(keep)
  own = dataclasses.replace(run, named={}, stages=(kind,))
  if key not in run.named:
    return Planned(name, kind, own)
  sections = {k: v for k, v in values.items() if k not in STAGE_KEYS}
  changes = leaves(sections, Run, f'named.{key}.')
  rules.refuse(change_rules, kind, key, changes)
  try:
    own = own.changed(_without_warmup(kind, keep) | changes)
  except ValueError as e:
    raise ValueError(f'named.{key}: {e}') from e
  return Planned(name, kind, own, values.get('weights', ''), keep)


def _without_warmup(kind: str, keep: tuple[str, ...]) -> dict[str, int]:
  """Returns the changes for optimizers whose state continues."""
  out = {}
  if 'optimizer' in keep:
    out[f'{kind}.optimizer.warmup_steps'] = 0
  own = {'rl': 'rl.critic', 'reward_model': 'reward_model'}
  if 'critic' in keep and kind in own:
    out[f'{own[kind]}.optimizer.warmup_steps'] = 0
  return out


def change_rules(kind: str, name: str, keys: Iterable[str]) -> rules.Rows:
  own = f'{kind}.'
  fixed = (k for k in keys if not (k.startswith(own) or CHANGES.fullmatch(k)))
  key = next(fixed, '')
  return (
    (
      key,
      f'named.{name}.{key}: a stage of kind {kind!r} changes keys of {kind}, '
      'data.completion_len, data.solutions, data.controller, eval.every, '
      "checkpoint.every and log_every; set the run's own",
    ),
  )


def named_rules(name: str, values: Any) -> rules.Rows:
  key = f'named.{name}'
  kind = values.get('kind') if isinstance(values, Mapping) else None
  keep = values.get('keep', ()) if kind else ()
  several = isinstance(keep, list | tuple)
  named = all(isinstance(x, str) for x in (keep if several else (keep,)))
  return (
    (
      name in STAGES or not re.fullmatch(r'\w+', name),
      f'{key}: a stage needs another name than {", ".join(STAGES)}, of letters '
      'and digits',
    ),
    (
      kind is None,
      f"{key}={values!r}: must be a section such as dict(kind='rl', "
      'rl=dict(steps=50))',
    ),
    (
      kind not in STAGES,
      names.choice(f'{key}.kind', kind, STAGES),
    ),
    (
      not named,
      f'{key}.keep={keep!r}: must be names of {", ".join(KEEP)}, such as '
      "('optimizer',)",
    ),
  )


def list_rules(stages: tuple, known: list[str]) -> rules.Rows:
  unknown = [name for name in stages if name not in known]
  near = nearest(str(unknown[0]), known) if unknown else ''
  return (
    (
      unknown or not stages,
      f'stages={stages}: choose from {known}.{near}',
    ),
  )


def _with_archive(planned: Planned, before: list[Planned]) -> Planned:
  """Returns the stage with the newest archive of the stage that it names.

  Stages that alternate read the archive of the last repetition.
  """
  archives = [p.name for p in before if p.archives]
  newest = _newest(planned.config.data.solutions, archives)
  if not newest:
    return planned
  config = planned.config.changed({'data.solutions': newest})
  return dataclasses.replace(planned, config=config)


def _newest(wanted: str, names: list[str]) -> str:
  """Returns the last repetition of the stage `wanted` among names; '' if there
  is none.
  """
  same = [name for name in names if name.partition('#')[0] == wanted]
  return same[-1] if same else ''


def _with_earlier(planned: Planned, before: list[Planned]) -> Planned:
  """Returns the stage with the newest repetition of the stage that a key of
  `OF_EARLIER` names, if a stage has that name.
  """
  changes = {}
  for kind, key, of in OF_EARLIER:
    if kind == planned.kind:
      wanted = operator.attrgetter(key)(planned.config)
      if newest := _newest(wanted, [p.name for p in before if p.kind == of]):
        changes[key] = OF_STAGE + newest
  if not changes:
    return planned
  return dataclasses.replace(planned, config=planned.config.changed(changes))


def _with_warm_critic(planned: Planned, before: list[Planned]) -> Planned:
  """Returns the stage without the critic's warm-up if the critic that it keeps
  has had it in earlier stages.
  """
  if planned.kind != 'rl' or 'critic' not in planned.keep:
    return planned
  updates, kept = 0, planned
  for p in reversed(before):
    if 'critic' not in kept.keep or p.kind != 'rl':
      break
    updates, kept = updates + p.config.rl.updates, p
  warm = planned.config.rl.critic.warmup_updates
  if not updates or updates < warm:
    return planned
  config = planned.config.changed({'rl.critic.warmup_updates': 0})
  return dataclasses.replace(planned, config=config)


def _own_pairs(planned: Planned) -> str:
  """Returns the name of the stage whose rollouts are the stage's pairs, or
  ''.
  """
  pairs = getattr(planned.config.training(planned.kind), 'pairs', '')
  return pairs.removeprefix(OF_STAGE) if pairs.startswith(OF_STAGE) else ''


def _partly(sampled: Planned) -> str:
  """Returns the key by which completions of an rl stage have tokens that the
  policy did not sample, or ''.
  """
  rl = sampled.config.rl
  return (
    'rl.hints.room' if rl.hints.room else 'rl.turns.env' * bool(rl.turns.env)
  )


def reward_model_rules(planned: Planned, before: list[Planned]) -> rules.Rows:
  """Refuses to read the reward model of an earlier stage in another way than it
  was trained.
  """
  c, key = planned.config.rl.reward_model, 'rl.reward_model'
  name = c.weights.removeprefix(OF_STAGE)
  wanted = planned.kind == 'rl' and c.weights.startswith(OF_STAGE)
  trained = next((p for p in before if wanted and p.name == name), None)
  if trained is None:
    return ()
  own = trained.config.reward_model
  return (
    (
      own.labels and not c.steps,
      f'{key}.weights={name!r}: the stage was trained on labels of steps; set '
      f'{key}.steps',
    ),
    (
      c.steps and not own.labels,
      f'{key}.steps={c.steps!r}: {name!r} was trained on pairs, and has no '
      "rewards of steps; set it to ''",
    ),
    (
      own.labels and c.separator not in ('', own.separator),
      f'{key}.separator={c.separator!r}: the stage has '
      f'{own.separator!r}; set the same',
    ),
  )


def order_rules(planned: Planned, before: list[Planned]) -> rules.Rows:
  """Refuses a stage that needs the weights, state or archive of a stage that is
  not before it.
  """
  wanted, keep = planned.config.data.solutions, planned.keep
  if not (planned.weights or wanted or keep or _own_pairs(planned)):
    return ()
  key, names = f'named.{planned.name}', [p.name for p in before]
  archives = [p.name for p in before if p.archives]
  unknown = next((name for name in keep if name not in KEEP), '')
  partly = next(
    (_partly(p) for p in before if p.name == _own_pairs(planned)), ''
  )
  last = before[-1] if before else None
  refresh = last.config.data.controller.refresh if last else 0
  return (
    (
      planned.weights not in ('', START, *names),
      f'{key}.weights={planned.weights!r}: {START!r}, or a stage before it: '
      f'{", ".join(names) or "there is none"}',
    ),
    (
      wanted and wanted not in archives,
      f'{key}.data.solutions={wanted!r}: must be a stage before it with '
      f'rl.archive above 0: {", ".join(archives) or "there is none"}',
    ),
    (
      _own_pairs(planned) and not planned.config.rollouts.every,
      f'{planned.kind}.pairs={_own_pairs(planned)!r}: rollouts.every=0 writes '
      'no rollouts of that stage; set it to 1',
    ),
    (
      partly,
      f'{planned.kind}.pairs={_own_pairs(planned)!r}: the completions of that '
      f'stage follow hints or replies that the pairs would lack; set {partly} '
      'of that stage to its default',
    ),
    (
      unknown,
      f'{key}.keep={unknown!r}: choose from {", ".join(KEEP)}',
    ),
    (
      keep and planned.weights,
      f'{key}.keep={keep} continues the state of the stage before, and '
      f'{key}.weights={planned.weights!r} has other weights; set one',
    ),
    (
      'control' in keep and refresh,
      f"{key}.keep='control': the problems of the stage before have moved on "
      f'(data.controller.refresh={refresh}), and this stage begins with the '
      'first; leave it out',
    ),
    (
      keep and not (last and last.kind == planned.kind),
      f'{key}.keep={keep}: the stage before ({last.name if last else "none"}) '
      f'is not of kind {planned.kind!r}',
    ),
  )
