"""Reads and writes metrics; accuracies equal numbers by hand."""

import itertools

import numpy as np
import object_store
import pytest
from etils import epath

from jaxrl_reason.evals import estimators
from jaxrl_reason.reports import metrics_file, plots
from jaxrl_reason.run.records import lines, metrics, trackers

pytestmark = pytest.mark.one_device


def test_the_writer_drops_rows_after_the_checkpoint(tmp_path):
  workdir = epath.Path(tmp_path)
  writer = metrics.Writer(workdir, None)
  for step in (2, 4, 6):
    writer.write(step, 'rl', {'train/loss': float(step)})
  writer.close()
  with (workdir / 'metrics.jsonl').open('a') as f:
    f.write('{"step": 8, "sta')  # cut off by a kill
  resumed = metrics.Writer(workdir, 4)
  resumed.write(6, 'rl', {'train/loss': 60.0})
  resumed.close()
  steps, values = metrics_file.series(metrics_file.read(workdir), 'train/loss')
  assert steps == [2, 4, 6] and values == [2.0, 4.0, 60.0]
  assert plots.save(workdir).exists()


def test_to_host_averages_and_takes_the_largest():
  out = metrics.to_host(
    [
      {'a': np.array([1.0, 2.0]), 'b_max': np.array([5.0, 1.0])},
      {'a': np.array([6.0, 7.0]), 'b_max': np.array([2.0, 3.0])},
    ]
  )
  assert out == {'a': 4.0, 'b_max': 5.0}


def test_means_over_tokens_leave_out_steps_without_a_trained_token():
  step = dict(entropy=2.0, ratio_mean=1.0, loss=3.0, trained_tokens=8.0)
  empty = dict.fromkeys(step, 0.0)
  out = metrics.to_host([empty, step])
  assert out == step | {'loss': 1.5, 'trained_tokens': 4.0}
  assert metrics.to_host([empty]) == empty


VERDICT = 'accuracy', 'auroc', 'loss', 'mass', 'right'


@pytest.mark.parametrize(
  'name', ['length_right', 'probe/auroc', *(f'verdict/{k}' for k in VERDICT)]
)
def test_means_of_some_rows_are_over_steps_that_have_such_rows(name):
  nan = np.nan
  assert metrics.to_host([{name: np.array([nan, 4.0, 6.0])}]) == {name: 5.0}
  assert metrics.to_host([{name: np.array([nan, nan])}]) == {}
  # NaN in any other metric is an error.
  assert np.isnan(metrics.to_host([{'loss': np.array([nan, 1.0])}])['loss'])


def test_a_bad_gradient_is_named():
  trained = ['x/a', 'x/b']
  fine = {'loss': 1.0, 'nonfinite_leaf_max': -1.0}
  metrics.check_finite(fine, trained, 3)
  with pytest.raises(FloatingPointError, match='x/b'):
    metrics.check_finite(fine | {'nonfinite_leaf_max': 1.0}, trained, 3)
  with pytest.raises(FloatingPointError, match='step 3.*the loss itself'):
    metrics.check_finite(fine | {'loss': float('nan')}, trained, 3)


@pytest.mark.parametrize('n, correct, k', [(5, 2, 1), (5, 2, 3), (6, 0, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n, correct, k):
  rows = [i < correct for i in range(n)]
  subsets = list(itertools.combinations(rows, k))
  want = sum(any(s) for s in subsets) / len(subsets)
  assert estimators.pass_at_k(n, correct, k) == pytest.approx(want)


def test_majority():
  assert estimators.majority(['7', '3', '7'], [1.0, 0.0, 1.0]) == 1.0
  assert estimators.majority(['7', '3', '3'], [1.0, 0.0, 0.0]) == 0.0
  assert estimators.majority([None, None, '3'], [0.0, 0.0, 1.0]) == 1.0
  assert estimators.majority([None, None], [0.0, 0.0]) == 0.0
  assert estimators.powers(6) == [1, 2, 4, 6]


def write_steps(workdir, resume_step, steps):
  writer = metrics.Writer(workdir, resume_step)
  for step in steps:
    writer.write(step, 'rl', {'train/loss': float(step)})
  writer.close()


def steps_in(workdir):
  return [row['step'] for row in metrics_file.read(workdir)]


def test_a_resumed_file_only_loses_its_end(tmp_path):
  """The rest is not written again, because a kill could lose it."""
  path = tmp_path / 'metrics.jsonl'
  write_steps(epath.Path(tmp_path), None, range(2, 20, 2))
  before, inode = path.read_bytes(), path.stat().st_ino
  with path.open('ab') as f:
    f.write(b'\0' * 100)  # what a power cut leaves of a line
  write_steps(epath.Path(tmp_path), 10, [])
  after = path.read_bytes()
  assert before.startswith(after) and path.stat().st_ino == inode
  assert steps_in(tmp_path) == [2, 4, 6, 8, 10]


def test_a_damaged_line_stays_and_is_named(tmp_path, caplog):
  path = tmp_path / 'metrics.jsonl'
  write_steps(epath.Path(tmp_path), None, [2, 4, 6])
  text = path.read_text().replace('"step": 4', '"step\x02: 4')
  path.write_text(text)
  write_steps(epath.Path(tmp_path), 6, [8])
  assert path.read_text().startswith(text)
  assert 'metrics.jsonl, line 2, is damaged' in caplog.text
  assert steps_in(tmp_path) == [2, 6, 8]


@pytest.mark.parametrize('remote', [False, True])
def test_a_new_run_moves_the_records_of_another(
  tmp_path, monkeypatch, caplog, remote
):
  workdir = epath.Path(tmp_path)
  if remote:
    object_store.install(monkeypatch)
    workdir = epath.Path(f'gs://bucket/{tmp_path.name}')
  folders = ('evaluations', 'samples', 'rollouts')
  for first in (2, 20, 200):
    lines.move_aside(workdir)
    for name in folders:
      (workdir / name).mkdir(parents=True)
      (workdir / name / f'{first}').write_text('')
    (workdir / 'track.json').write_text(f'{first}')
    write_steps(workdir, None, [first])
  assert steps_in(workdir) == [200]
  assert (workdir / 'track.before-2.json').read_text() == '20'
  for name in folders:
    found = [f'{name}{end}' for end in ('.before-1', '.before-2', '')]
    assert [next((workdir / x).iterdir()).name for x in found] == [
      '2', '20', '200',
    ]  # fmt: skip
  assert len(list((workdir / 'tensorboard.before-1').iterdir())) == 1
  name = 'metrics.before-1' + ('/000000.jsonl' if remote else '.jsonl')
  assert '"step": 2,' in (workdir / name).read_text()
  assert caplog.text.count('without a checkpoint') == 2


def test_a_short_write_goes_on_or_is_an_error(tmp_path, monkeypatch):
  writer = metrics.Writer(epath.Path(tmp_path), None)
  write = lines.os.write
  monkeypatch.setattr(lines.os, 'write', lambda fd, b: write(fd, b[:7]))
  writer.write(2, 'rl', {'train/loss': 2.0})
  assert steps_in(tmp_path) == [2]

  def full(fd, b):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(lines.os, 'write', full)
  with pytest.raises(
    OSError, match='metrics.jsonl could not be written: No sp'
  ):
    writer.write(4, 'rl', {'train/loss': 4.0})


def test_the_events_of_a_full_disk_are_an_error_not_a_wait(tmp_path):
  writer = trackers.Board(epath.Path(tmp_path), None)
  writer._file._py_recordio_writer._writer = open('/dev/full', 'wb', 0)
  with pytest.raises(OSError, match='could not be written: No space left'):
    for step in range(100):
      writer.write(step, {'a': 1.0})


@pytest.mark.parametrize('resume', [4, 50, 100, 101, 149, 250, 400])
def test_parts_of_an_object_store_are_the_same_file(
  tmp_path, monkeypatch, resume
):
  object_store.install(monkeypatch)
  far = epath.Path(f'gs://bucket/{tmp_path.name}')
  far.mkdir(parents=True)
  for workdir in (epath.Path(tmp_path), far):
    write_steps(workdir, None, range(1, 251))
    assert steps_in(workdir) == list(range(1, 251))
    write_steps(workdir, resume, [1000, 1001])
  assert steps_in(far) == steps_in(tmp_path)
  longest = max(len(x) for _, x in lines.read_parts(far / 'metrics'))
  assert longest <= lines.PART_LINES
