"""The loop of one stage, without a device program."""

import contextlib
import types

import pytest

from jaxrl_reason.run import loop, stage_transition, train
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
    stats=None,
    invalid=None,
    data=types.SimpleNamespace(get_state=dict),
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


REDUCED = dict(done=6, total=6, reduced=True, record={'finished': False})


@pytest.mark.parametrize(
  'place, signal, calls',
  [
    (REDUCED, False, ['evaluate', 'save']),
    (REDUCED, True, []),
    (dict(done=4, total=4, ended=True, record={'finished': True}), False, []),
  ],
)
def test_a_stage_whose_steps_are_reduced_is_evaluated_and_saved(
  made, place, signal, calls
):
  own, _ = made
  done, facts = [], []
  own.evaluate = lambda state: done.append('evaluate') or True

  def save(state, keep, **more):
    done.append('save')
    facts.append((keep, own.ended))

  own.save = save
  own.checkpoints.save = 'the workdir'
  own.stopping._requested = float(signal)
  own.run(None, loop.Place(**place))
  assert done == calls
  assert facts == [('the workdir', True)] * calls.count('save')


@pytest.mark.parametrize(
  'done, finished, ended, reduced',
  [
    (3, False, False, False),
    (4, True, True, False),
    (4, False, False, True),
    (6, False, False, True),
    (6, True, True, False),
  ],
)
def test_reduced_steps_are_seen_in_the_record(
  monkeypatch, done, finished, ended, reduced
):
  planned = types.SimpleNamespace(config=Config(rl=Config(steps=4)), kind='rl')
  record = {'stage': 0, 'done': done, 'finished': finished}
  where = types.SimpleNamespace(template=None, shardings=None)
  monkeypatch.setattr(stage_transition, 'layout', lambda *_: where)
  checkpoints = types.SimpleNamespace(
    latest=lambda read: (done, read(done, record, lambda *_: 'state')),
    begin=lambda step: None,
  )
  place = train.restore([planned], checkpoints, None)
  assert (place.ended, place.reduced) == (ended, reduced)
  assert place.owes_evaluation == reduced
  assert (place.record, place.state) == (record, 'state')


@pytest.mark.parametrize('done, at', [(2, None), (4, 6), (6, 6)])
def test_the_end_of_a_reduced_stage_serves_later_stages(done, at):
  config = Config(rl=Config(steps=4))
  planned = [
    types.SimpleNamespace(name=name, kind='rl', config=config)
    for name in ('first', 'second')
  ]
  records = {
    6: {'stage': 0, 'done': done, 'finished': False},
    9: {'stage': 1, 'done': 3, 'finished': False},
  }
  checkpoints = types.SimpleNamespace(
    wait=lambda: None, steps=lambda: [6, 9], record=records.get
  )
  made = stage_transition.StageTransition(planned, 1, checkpoints, 'w', None)
  if at is None:
    with pytest.raises(ValueError, match='no end of stage first any more'):
      made._end_of('key', 'first')
  else:
    assert made._end_of('key', 'first') == ('w', at)
