"""The loop of one stage, without a device program."""

import contextlib
import types

import pytest

from jaxrl_reason.run import loop
from jaxrl_reason.run.process import signals

pytestmark = pytest.mark.one_device


class Config(types.SimpleNamespace):
  """A section; `config[kind]` is the section of a kind."""

  def __getitem__(self, name):
    return getattr(self, name)


@pytest.fixture
def made():
  """Returns (a loop of a stage of four steps, names of what was closed)."""
  closed = []
  nothing = types.SimpleNamespace()
  journal = types.SimpleNamespace(shown=lambda _: contextlib.nullcontext())
  planned = types.SimpleNamespace(
    config=Config(profile=Config(steps=''), rl=Config(steps=4)),
    kind='rl',
    name='rl',
  )
  stage = types.SimpleNamespace(
    learner=types.SimpleNamespace(trained=lambda _: {}),
    close=lambda: closed.append('stage'),
  )
  out = loop.Loop(
    planned,
    0,
    stage,
    journal=journal,
    evaluator=nothing,
    checkpoints=nothing,
    stopping=signals.Stopping(),
    spent=nothing,
    watchdog=types.SimpleNamespace(forget=lambda: None),
    rollouts=nothing,
    profile_dir='',
  )
  out.profiler.close = lambda: closed.append('profiler')
  return out, closed


@pytest.mark.parametrize('error', [FloatingPointError, KeyboardInterrupt])
def test_processes_and_threads_of_a_stage_end_with_its_error(made, error):
  own, closed = made

  def diverges(state):
    raise error

  own.evaluate = diverges
  with pytest.raises(error):
    own.run(None, loop.Place())
  assert closed == ['profiler', 'stage']


def test_processes_and_threads_of_a_stage_end_with_it(made):
  own, closed = made
  own.run(None, loop.Place(done=4, total=4, ended=True))
  assert closed == ['profiler', 'stage']
