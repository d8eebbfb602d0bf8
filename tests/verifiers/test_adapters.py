"""Environments from other interfaces: verifiers, and objects with steps."""

import random

import pytest

from jaxrl_reason.verifiers import tasks, tools


class Doors:
  """An environment in the style of Gymnasium: the seed determines the correct
  one of three doors.
  """

  class action_space:  # noqa: N801  as the library has it
    n = 3

  made = 0

  def __init__(self, tries=2):
    Doors.made, self.left = Doors.made + 1, tries

  def reset(self, seed=None):
    self.door = random.Random(seed).randrange(3)
    return 'which door?', {}

  def step(self, action):
    assert isinstance(action, int), action
    self.left -= 1
    right = action == self.door
    return f'not {action}', float(right), right, self.left == 0, {}


def test_incorrect_tries_have_observations():
  example = tasks.example('arithmetic', seed=0, index=1, split='train')
  right = example['solution']
  env = tools.make('retry', {'reward': 'task', 'price': 0.25})
  said, state, reward, event = env('1#2', example, None)
  assert said == 'wrong\n' and reward == 0 and event == ''
  said, state, reward, event = env('nothing', example, state)
  assert said == 'wrong\n' and event == 'malformed'
  assert env(right, example, state) == (None, 2, 0.5, '')
  assert env(right, example, None) == (None, 0, 1.0, '')
  with pytest.raises(ValueError, match='price=-1 is below 0'):
    tools.make('retry', {'reward': 'task', 'price': -1})


def test_turns_of_objects_are_replayed():
  env = tools.make(
    'objects', {'make': f'{__file__}:Doors', 'args': {'tries': 3}}
  )
  assert env.opening(5) == 'which door?'
  for seed in range(6):
    example, state = {'meta': {'seed': seed}}, None
    door = random.Random(seed).randrange(3)
    wrong = str((door + 1) % 3)
    said, state, reward, _ = env(f'{wrong};', example, None)
    assert (said, reward) == (f'not {wrong}', 0.0)
    assert env(f'{door};', example, state) == (
      None,
      [*state, f'{door};'],
      1.0,
      '',
    )
    _, state, _, _ = env(wrong, example, state)
    assert env(wrong, example, state).observation is None  # its own limit


def test_a_real_package_plays():
  """OpenEnv's own protocol and types."""
  pytest.importorskip('openenv')
  args = {'make': f'{__file__}:echo_env', 'action': f'{__file__}:say'}
  env = tools.make('objects', args)
  assert env.opening(3) == 'seed 3'
  example = {'meta': {'seed': 3}}
  said, state, reward, _ = env('hey', example, None)
  assert (said, reward) == ('3: hey', 0.5)
  assert env('bye', example, state)[::2] == (None, 1.0)


def say(message):
  from openenv.core.env_server.types import Action

  class Say(Action):
    message: str

  return Say(message=message)


def echo_env():
  from openenv.core.env_server.interfaces import Environment
  from openenv.core.env_server.types import Observation, State

  class Heard(Observation):
    text: str

  class Echo(Environment):
    def reset(self, seed=None, episode_id=None, **more):
      self.seed = seed
      return Heard(text=f'seed {seed}')

    def step(self, action, timeout_s=None, **more):
      over = action.message == 'bye'
      text = f'{self.seed}: {action.message}'
      return Heard(text=text, done=over, reward=1.0 if over else 0.5)

    @property
    def state(self):
      return State()

  return Echo()
