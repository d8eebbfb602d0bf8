"""Reading and writing metrics; accuracies by hand."""

import itertools

import numpy as np
import pytest
from etils import epath

from jaxrl_reason.evals import accuracy
from jaxrl_reason.reports import metrics_file, plots
from jaxrl_reason.run import metrics


def test_writer_drops_what_is_past_the_checkpoint(tmp_path):
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
  assert accuracy.pass_at_k(n, correct, k) == pytest.approx(want)


def test_majority():
  assert accuracy.majority(['7', '3', '7'], [1.0, 0.0, 1.0]) == 1.0
  assert accuracy.majority(['7', '3', '3'], [1.0, 0.0, 0.0]) == 0.0
  assert accuracy.majority([None, None, '3'], [0.0, 0.0, 1.0]) == 1.0
  assert accuracy.majority([None, None], [0.0, 0.0]) == 0.0
  assert accuracy.powers(6) == [1, 2, 4, 6]
