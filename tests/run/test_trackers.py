"""Trackers receive the rows of metrics.jsonl, and their errors never end a
run.
"""

import glob
import json
import sys

import object_store
import pytest
import tiny_recipe
from etils import epath

from jaxrl_reason.reports import metrics_file
from jaxrl_reason.run import train
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.records import metrics, trackers

ROWS = [
  (2, {'train/loss': 1.5}),
  (4, {'train/loss': 0.5, 'eval/a/pass@4': 1.0}),
]
CONFIG = {'seed': 0, 'rl.algorithm': 'grpo', 'stages': ['sft', 'rl']}


def track_run(workdir, name, rows=ROWS):
  """Makes a run and sends it to tracker `name`."""
  (tracker,) = trackers.start(epath.Path(workdir), CONFIG, name)
  for step, values in rows:
    tracker.write(step, values)
  tracker.text(4, 'samples', 'so <b> 3')
  tracker.histogram(4, 'rollouts/entropy', [0.1, 0.2, 0.4, 0.4])
  tracker.close()
  assert tracker._tracker is not None, 'it failed'


def read_mlflow(workdir):
  mlflow = pytest.importorskip('mlflow')
  pytest.importorskip('sqlalchemy')
  client = mlflow.MlflowClient(f'sqlite:///{workdir}/mlflow.db')
  run_id = json.loads((workdir / trackers.IDS).read_text())['mlflow']

  def series(name):
    found = client.get_metric_history(run_id, name)
    return [(m.step, m.value) for m in found]

  return series, client.get_run(run_id).data.params


def test_mlflow(tmp_path):
  pytest.importorskip('mlflow')
  pytest.importorskip('sqlalchemy')
  track_run(tmp_path, 'mlflow')
  track_run(tmp_path, 'mlflow', [(6, {'train/loss': 0.25})])  # resumed
  series, params = read_mlflow(tmp_path)
  assert series('train/loss') == [(2, 1.5), (4, 0.5), (6, 0.25)]
  assert series('eval/a/pass_at_4') == [(4, 1.0)]
  assert params['rl.algorithm'] == 'grpo'
  (text,) = glob.glob(f'{tmp_path}/mlflow/**/00000004.txt', recursive=True)
  assert open(text).read() == 'so <b> 3'


def test_wandb_offline(tmp_path, monkeypatch):
  pytest.importorskip('wandb')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_SILENT', 'true')
  track_run(tmp_path, 'wandb')
  found = glob.glob(f'{tmp_path}/wandb/offline-run-*/*.wandb')
  data = open(found[0], 'rb').read()
  for word in (b'train/loss', b'rl.algorithm', b'rollouts/entropy', b'samples'):
    assert word in data
  first = json.loads((tmp_path / trackers.IDS).read_text())
  assert first['wandb'].encode() in data


def test_trackio(tmp_path, monkeypatch):
  pytest.importorskip('trackio')
  monkeypatch.setenv('TRACKIO_DIR', str(tmp_path / 'trackio'))
  for name in [m for m in sys.modules if m.partition('.')[0] == 'trackio']:
    monkeypatch.delitem(sys.modules, name)  # reads its folder when imported
  track_run(tmp_path, 'trackio')
  import trackio

  (run,) = trackio.Api().runs(trackers.PROJECT)
  assert (
    run.name == json.loads((tmp_path / trackers.IDS).read_text())['trackio']
  )
  names = [run.config.get('rl.algorithm')]
  assert names == ['grpo']


def test_a_failed_tracker_receives_nothing_more(caplog):
  class Broken:
    calls = 0

    def write(self, step, values):
      self.calls += 1
      raise ConnectionError('no route to host')

  broken = Broken()
  guarded = trackers.Guarded('wandb', broken)
  for step in (1, 2):
    guarded.write(step, {})
  guarded.close()
  assert broken.calls == 1 and caplog.text.count('no route to host') == 1


@pytest.mark.parametrize('track', ['wandbb', 'wandb,tensorflow'])
def test_an_unknown_tracker_is_named(track):
  c = tiny_recipe.get_config()
  c.track = track
  with pytest.raises(ValueError, match='choose one of wandb, mlflow, trackio'):
    config_checks.check(c, 1)


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  with pytest.raises(ValueError, match=r'pip install "jaxrl_reason\[wandb\]"'):
    trackers.start(epath.Path(tmp_path), CONFIG, 'wandb')


def test_a_tracker_that_does_not_start_is_named(tmp_path, monkeypatch):
  def refused(*_):
    raise ConnectionError('no API key')

  monkeypatch.setitem(trackers.TRACKERS, 'wandb', refused)
  with pytest.raises(ValueError, match="track='wandb': wandb did not start: n"):
    trackers.start(epath.Path(tmp_path), CONFIG, 'wandb')


@pytest.mark.parametrize('remote', [False, True])
def test_a_kill_after_a_checkpoint_leaves_its_curves(
  tmp_path, monkeypatch, remote
):
  """`sync` is called before a save; nothing is closed, as by kill -9."""
  workdir = epath.Path(tmp_path)
  if remote:
    object_store.install(monkeypatch)
    workdir = epath.Path(f'gs://bucket/{tmp_path.name}')
    workdir.mkdir(parents=True)
  writer = metrics.Writer(workdir, None)
  writer.write(2, 'rl', {'train/loss': 1.5})
  writer.sync()
  (path,) = (workdir / 'tensorboard').iterdir()
  assert b'train/loss' in path.read_bytes()
  writer.close()


def test_tensorboard_has_texts_parameters_and_histograms(tmp_path):
  loading = pytest.importorskip(
    'tensorboard.backend.event_processing.event_accumulator',
    reason='tensorboard is not installed',
  )
  writer = metrics.Writer(epath.Path(tmp_path), None)
  writer.hyper_parameters(CONFIG)
  writer.write(2, 'rl', {'train/loss': 1.5})
  writer.text(2, 'samples', 'a\nb')
  writer.histogram(2, 'rollouts/entropy', [0.1, 0.2, 0.4])
  writer.close()
  found = loading.EventAccumulator(str(tmp_path / 'tensorboard'))
  tags = found.Reload().Tags()
  assert tags['histograms'] == ['rollouts/entropy']
  assert found.Histograms('rollouts/entropy')[0].histogram_value.num == 3
  assert {'config/text_summary', 'samples/text_summary'} <= {*tags['tensors']}
  plugins = found.summary_metadata
  assert any(p.startswith('_hparams_') for p in plugins)


def test_tensorboard_in_an_object_store(tmp_path, monkeypatch):
  """Without appending, whole event files are written, and long ones are split.
  Flushed events survive a kill, and a resumed run purges repeated steps.
  """
  loading = pytest.importorskip(
    'tensorboard.backend.event_processing.event_accumulator',
    reason='tensorboard is not installed',
  )
  object_store.install(monkeypatch)
  monkeypatch.setattr(trackers, 'OBJECT_BYTES', 500)
  monkeypatch.setattr(trackers, 'FLUSH_S', 0.0)
  far = epath.Path(f'gs://bucket/{tmp_path.name}')
  far.mkdir(parents=True)
  killed = metrics.Writer(far, None)
  for step in range(1, 31):
    killed.write(step, 'rl', {'train/loss': float(step)})
  resumed = metrics.Writer(far, 20)
  resumed.write(21, 'rl', {'train/loss': 210.0})
  resumed.close()
  objects = list((far / 'tensorboard').iterdir())
  assert len(objects) > 3
  for found in objects:
    (tmp_path / found.name).write_bytes(found.read_bytes())
  told = loading.EventAccumulator(str(tmp_path)).Reload()
  values = {e.step: e.value for e in told.Scalars('train/loss')}
  assert values == {i: float(i) for i in range(1, 21)} | {21: 210.0}


def test_a_tracker_receives_the_rows_of_metrics(tmp_path):
  """Trains the command's run with a database in its workdir."""
  pytest.importorskip('mlflow')
  pytest.importorskip('sqlalchemy')
  c = tiny_recipe.get_config()
  c.stages, c.mesh, c.track = ('rl',), (4, 1, 2), 'mlflow'
  c.rl.update(steps=4)
  c.eval.update(every=4, problems=2, samples=1)
  c.checkpoint.every = 4
  c.rollouts.update(every=2)
  train.run(c, tmp_path)
  series, params = read_mlflow(tmp_path)
  rows = metrics_file.read(tmp_path)
  for name in ('train/reward_mean', 'train/loss'):
    assert series(name) == list(zip(*metrics_file.series(rows, name)))
  assert [s for s, _ in series('rollouts/entropy/p50')] == [2, 4]
  assert params['rollouts.every'] == '2'
