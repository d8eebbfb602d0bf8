"""The loop of one stage, without a device program."""

import contextlib
import dataclasses
import functools
import types

import pytest
import tiny_recipe

from jaxrl_reason.run import loop, stage_transition, stages, train
from jaxrl_reason.run.process import signals

pytestmark = pytest.mark.one_device


class Config(types.SimpleNamespace):
  """A section; `config[kind]` is the section of a kind."""

  def __getitem__(self, name):
    return getattr(self, name)


@pytest.fixture
def made():
  """Returns (a loop of a stage of four steps, names of what it closed)."""
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


def test_an_interval_is_read_before_rollouts_that_wait(made):
  """Otherwise its seconds include those of the next dispatch."""
  own, order = made[0], []
  own.done = own.total = 0
  own.stage.steps_per_dispatch, own.stage.wait = 1, None
  own.stage.data.seconds = 0.0
  own.stage.dispatch = lambda state, more: (state, {}, {})
  own.profiler.before = own.profiler.after = lambda _: None
  own.journal.dispatching = lambda other: contextlib.nullcontext()
  own.journal.flush = lambda: order.append('interval')
  own.rollouts.note = lambda *_: order.append('rollouts')
  own.dispatch(None, True)
  assert order == ['interval', 'rollouts'] and own.total == 1


@pytest.mark.parametrize('error', [FloatingPointError, KeyboardInterrupt])
def test_the_profiler_ends_with_an_error(made, error):
  own, closed = made

  def diverges(state):
    raise error

  own.evaluate = diverges
  with pytest.raises(error):
    own.run(None, loop.Place())
  assert closed == ['profiler']


def test_the_profiler_ends_with_the_stage(made):
  own, closed = made
  own.run(None, loop.Place(done=4, total=4, ended=True))
  assert closed == ['profiler']


@pytest.mark.parametrize(
  'broken', [(stage_transition.StageTransition, 'state'), (loop.Loop, 'run')]
)
def test_processes_of_a_stage_end_with_its_error(tmp_path, monkeypatch, broken):
  """A study goes on in this process after the error of one of its runs."""
  closed, build = [], stages.build

  def noted(*given):
    close = functools.partial(closed.append, 'stage')
    return dataclasses.replace(build(*given), close=close)

  def full(*given):
    raise FloatingPointError('no room')

  monkeypatch.setattr(stages, 'build', noted)
  monkeypatch.setattr(*broken, full)
  with pytest.raises(FloatingPointError):
    train.run(tiny_recipe.get_config(), tmp_path)
  assert closed == ['stage']


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


@pytest.mark.parametrize(
  'stop_loss, facts, ended',
  [
    (0.5, {'reached': True, 'nll': 0.4}, True),
    (0.4, {'reached': True, 'nll': 0.4}, True),
    (0.3, {'reached': True, 'nll': 0.4}, False),
    (0.0, {'reached': True, 'nll': 0.4}, False),
    (0.5, {'reached': False}, False),
    (0.5, {'reached': True}, True),  # of older records
    (0.5, {}, True),
    (0.0, {}, False),
  ],
)
def test_a_stage_is_over_while_its_loss_is_below_the_present_stop_loss(
  stop_loss, facts, ended
):
  section = Config(steps=9, stop_loss=stop_loss)
  planned = types.SimpleNamespace(config=Config(sft=section), kind='sft')
  record = {'stage': 0, 'done': 4, 'finished': True} | facts
  assert loop.ended(planned, record) == ended


def in_intervals(own):
  """Replaces the steps of a loop; returns the steps of (lines, saves,
  evaluations), and the facts of the saves.
  """
  lines, saves, evaluations, told = [], [], [], []

  def interval(state, n):
    own.done, own.begun = own.done + n, type(own.begun)()
    lines.append(own.done)
    own.boundary(state, False)

  def save(state, keep, **facts):
    saves.append(own.done)
    told.append(facts)

  own.interval, own.save = interval, save
  own.evaluate = lambda state: evaluations.append(own.done) or True
  own.flush = own.rollouts.flush = own.journal.paused = lambda: None
  own.journal.complete = lambda: None
  own.checkpoints.near_due = lambda step: False
  own.checkpoints.save = 'the workdir'
  return lines, saves, evaluations, told


def configured(own, kind, steps, log_every, every, **section):
  own.kind, own.stage.steps_per_dispatch = kind, 1
  own.config.log_every = log_every
  own.config.checkpoint = own.config.eval = Config(every=every)
  setattr(own.config, kind, Config(steps=steps, **section))


@pytest.mark.parametrize(
  'done, begun, log_every, saves',
  [
    (0, 0, 10, [50, 100, 150, 200, 250, 300]),  # from the start
    (100, 0, 10, [150, 200, 250, 300]),  # after a save
    (103, 3, 10, [150, 200, 250, 300]),  # after a signal
    (215, 0, 10, [250, 300]),  # after the end, when steps was 215
    (215, 0, 25, [250, 300]),  # log_every was 5
    (203, 3, 25, [250, 300]),  # log_every was 10
  ],
)
def test_saves_are_at_multiples_of_every_after_any_resume(
  made, done, begun, log_every, saves
):
  own, _ = made
  configured(own, 'rl', 300, log_every, 50)
  lines, saved, evaluated, _ = in_intervals(own)
  record = {'finished': False, 'begun': {'steps': begun}}
  place = loop.Place(done=done, total=done, record=record)
  own.run(None, place)
  assert lines == [n for n in range(done + 1, 301) if n % log_every == 0]
  assert (saved, evaluated[not done :]) == (saves, saves)


def test_a_record_has_the_loss_that_ended_its_stage(made):
  own, _ = made
  configured(own, 'sft', 100, 10, 10, stop_loss=0.5)
  *_, told = in_intervals(own)
  losses = iter([0.7, 0.4])
  own.flush = lambda: setattr(own.journal, 'nll', next(losses, 0.4))
  own.journal.nll = 9.0
  own.run(None, loop.Place(total=1))
  ends = [(facts['reached'], facts.get('nll')) for facts in told]
  assert ends == [(False, None), (True, 0.4)]


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
