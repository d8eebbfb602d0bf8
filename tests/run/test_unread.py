"""Values without effect are refused if the setting that reads them is off."""

import dataclasses
import re

import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason.config import unread
from jaxrl_reason.config.record import Record, kind_of
from jaxrl_reason.config.rl_sections import FilterArgs
from jaxrl_reason.config.run import STAGES
from jaxrl_reason.rollouts import filters
from jaxrl_reason.run.checks import config_checks


def sections(record, prefix=''):
  """Yields (prefix of keys, section), from the outermost inwards."""
  yield prefix, record
  for key in vars(record):
    if isinstance(record[key], Record):
      yield from sections(record[key], f'{prefix}{key}.')


SECTIONS = dict(sections(config_lib.Run()))
READ_WITH = [
  (prefix, keys, settings)
  for prefix, section in SECTIONS.items()
  for keys, settings in section.read_with.items()
]


def other(value, annotation):
  """Returns a value of the type that differs, for a key of a section."""
  kind = kind_of(annotation)
  if isinstance(value, bool):
    return not value
  if isinstance(value, int | float):
    near = (value + 1, value / 2, value + 0.25)
    return next(
      x
      for x in near
      if x != value and kind.type(x) == x and kind.range.holds(x)
    )
  return {str: 'other', tuple: (0.25,), dict: {'other': {}}}[kind.type]


def turned(prefix, setting):
  """Returns a setting's dotted key, with values that turn it off and on."""
  key, test, named = re.fullmatch(r'([\w.]+)(!?=)?(.*)', setting).groups()
  if '.' not in key:
    while not hasattr(SECTIONS[prefix], key):
      prefix = re.sub(r'\w+\.$', '', prefix)
    key = prefix + key
  outer, last = re.fullmatch(r'(.*\.)?(\w+)', key).groups('')
  types = {f.name: f.type for f in dataclasses.fields(SECTIONS[outer])}
  off = kind_of(types[last]).type()
  values = {None: (off, other(off, types[last]))}
  values |= {'=': ('other', named), '!=': (named, 'other')}
  return key, *values[test]


@pytest.mark.parametrize('prefix, keys, settings', READ_WITH)
def test_a_value_is_read_with_one_of_its_settings_only(prefix, keys, settings):
  """It is refused with the names of key and setting, unless one of them is
  on.
  """
  section, own = SECTIONS[prefix], settings.split()
  others = [
    turned(prefix, setting)
    for p, _, more in READ_WITH
    for setting in more.split()
    if p == prefix and setting not in own
  ]
  base = {'stages': STAGES} | {key: on for key, _, on in others}
  off = {key: value for key, value, _ in (turned(prefix, x) for x in own)}
  fields = {f.name: f.type for f in dataclasses.fields(section)}
  for key in {*fields} - {*own} if keys == '*' else keys.split():
    if isinstance(section[key], Record):
      continue
    change = {f'{prefix}{key}': other(section[key], fields[key])}
    message = unread_of(base | off | change)
    needs = re.search(r' has no effect without (.*): set that', message)[1]
    assert message.startswith(f'{prefix}{key}=')
    assert needs.startswith(next(iter(off)))
    for name, _, on in (turned(prefix, setting) for setting in own):
      again = unread_of(base | off | {name: on} | change)
      assert f'without {needs}: ' not in again


def unread_of(changes):
  """Returns the message about a value without effect; '' if there is none."""
  run = config_lib.Run().changed(changes)
  return next((m for x, m in unread.unread_rules({'': run}) if x), '')


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'rl.optimizer.name': 'sgd', 'rl.optimizer.weight_decay': 0.1}, "'sgd'"),
    ({'rl.optimizer.name': 'adafactor', 'rl.optimizer.b1': 0.8}, 'adafactor'),
    ({'sft.optimizer.name': 'lion', 'sft.optimizer.eps': 1e-6}, "'lion'"),
    ({'rl.turns.env': 'chain', 'rl.turns.most': 3}, "env other than 'chain'"),
    ({'rl.turns.env': 'calculator', 'rl.turns.links': {'a': {}}}, "='chain'"),
    ({'rl.turns.env': 'calculator', 'rl.turns.burst': 4}, "rl.path='host'"),
  ],
)
def test_a_value_that_another_choice_does_not_read_is_refused(changes, words):
  with pytest.raises(ValueError, match=f'has no effect without .*{words}'):
    config_checks.check(config_lib.Run().changed(changes), 1)


def test_the_message_has_all_defaults_that_one_setting_needs():
  off = {'rl.turns.most': 2, 'rl.turns.tokens': 8, 'rl.hints.by': 'luck'}
  assert unread_of(off) == (
    "rl.hints.by='luck' has no effect without rl.hints.room: set that, or "
    "rl.hints.by='step'"
  )
  del off['rl.hints.by']
  assert unread_of(off).endswith('or rl.turns.most=4, rl.turns.tokens=0')


def test_arguments_of_filters_are_read_with_the_filters_that_take_them():
  read = {name: set() for name in filters.FILTERS}
  for keys, settings in FilterArgs.read_with.items():
    for setting in settings.split():
      read[setting.removeprefix('filter=')] |= {*keys.split()}
  for name, f in filters.FILTERS.items():
    assert read[name] == {*(filters.arguments(f) if f else ())}
  both = {'rl.filter': 'dead_groups+best', 'rl.filter_args.keep': 2}
  assert not unread_of(both)


def test_settings_of_a_critic_are_accepted_if_a_stage_has_one():
  named = {'again': {'kind': 'rl', 'rl': {'algorithm': 'ppo'}}}
  run = config_lib.Run().changed({'rl.critic.warmup_updates': 2})
  run = run.changed({'named': named, 'stages': ('rl', 'again')})
  config_checks.check(run, 1)
  with pytest.raises(ValueError, match='critic.warmup_updates=2: no algorithm'):
    config_checks.check(run.changed({'stages': ('rl',)}), 1)
  config_checks.check(run.changed({'stages': ('sft',)}), 1)


UNIFORM = {'rl.replay.by': 'uniform', 'rl.old_logp': 'sampler'}
STORED = {'rows': 8, 'capacity': 32}
UNREAD = "rl.replay.by='uniform' has no effect without rl.replay.rows"


def stages_of(*stages, **replay):
  named = {'again': {'kind': 'rl', 'rl': {'replay': replay}}}
  run = config_lib.Run().changed(UNIFORM)
  return run.changed({'stages': stages, 'named': named})


@pytest.mark.parametrize('stages', [('sft',), ('pretrain', 'sft')])
def test_sections_of_stages_that_are_not_run_keep_their_values(stages):
  config_checks.check(stages_of(*stages), 1)


def test_a_value_is_accepted_if_one_of_the_stages_reads_it():
  config_checks.check(stages_of('sft', 'again', **STORED), 1)
  for stages, message in (
    (('rl',), f'^{UNREAD}'),
    (('sft', 'again'), f'^named.again: {UNREAD}'),
  ):
    with pytest.raises(ValueError, match=message):
      config_checks.check(stages_of(*stages), 1)
