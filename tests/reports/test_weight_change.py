"""Figures of weight changes with a known rank and sparsity."""

import importlib.util

import numpy as np
import pytest
from paths import ROOT

spec = importlib.util.spec_from_file_location(
  'weight_change', ROOT / 'tools' / 'weight_change.py'
)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.mark.parametrize('rank', [1, 3])
def test_the_rank_of_a_change_is_found(rank):
  rng = np.random.default_rng(0)
  before = rng.normal(size=(2, 12, 10))
  q = np.linalg.qr(rng.normal(size=(12, rank)))[0]
  p = np.linalg.qr(rng.normal(size=(10, rank)))[0]
  # All singular values are equal, so each has the same share.
  found = tool.change(before, before + 0.1 * q @ p.T)
  assert found['rank90'] == rank and found['of'] == 10
  assert found['rank1'] == pytest.approx(1 / rank)
  assert found['stable'] == pytest.approx(rank)


def test_changes_below_a_rounding_count_as_the_same():
  before = np.ones((1, 2, 4), np.float32)
  after = before.copy()
  after[0, 0, 0] += 1e-4  # bfloat16 has 8 bits
  after[0, 0, 1] += 0.1
  found = tool.change(before, after)
  assert found['same'] == 7 / 8
  assert found['size'] == pytest.approx(
    np.hypot(1e-4, 0.1) / np.sqrt(8), rel=1e-3
  )
  nothing = tool.change(before, before)
  assert nothing['same'] == 1 and nothing['rank90'] == nothing['rank1'] == 0


def test_weights_are_split_where_they_are_squarest():
  assert tool.matrices(np.zeros((3, 16, 4, 4)), True).shape == (3, 16, 16)
  assert tool.matrices(np.zeros((8, 4)), False).shape == (1, 8, 4)
  assert tool.matrices(np.zeros((3, 5)), True).shape[0] == 3


def test_runs_of_other_shapes_are_named():
  with pytest.raises(ValueError, match='no weight of the same shape'):
    tool.compare({'a': np.zeros(2)}, {'a': np.zeros(3)})
  with pytest.raises(ValueError, match='is not the workdir of a run'):
    tool.read('/nowhere@3')


def drifting(rank, steps=(10, 20, 30, 40), layers=2):
  """Returns a function from a step to weights whose change is linear in steps,
  of the given rank.
  """
  rng = np.random.default_rng(rank)
  before = rng.normal(size=(layers, 6, 5))
  drift = rng.normal(size=(layers, 6, rank)) @ rng.normal(
    size=(layers, rank, 5)
  )
  return before, drift, lambda t: before + 0.01 * (t - 10) * drift


@pytest.mark.parametrize('rank, fitted', [(1, 1), (2, 2), (2, 0), (5, 0)])
def test_a_linear_change_is_predicted_exactly(rank, fitted):
  _, drift, at = drifting(rank)
  steps = (10, 20, 40)
  got = tool.predict(steps, [at(t) for t in steps], 90, fitted)
  np.testing.assert_allclose(got, 0.8 * drift, atol=1e-9)


def test_a_prediction_of_rank_one_is_a_line_along_the_last_direction():
  """Compares with numpy: the change outside of the first singular vectors is
  left out, and the coefficient is that of np.polyfit.
  """
  rng = np.random.default_rng(3)
  steps = [0, 5, 20]
  weights = [rng.normal(size=(1, 6, 5)) for _ in steps]
  got = tool.predict(steps, weights, 50, 1)[0]
  assert np.linalg.matrix_rank(got) == 1
  u, _, v = np.linalg.svd((weights[-1] - weights[0])[0])
  c = [u[:, 0] @ (w - weights[0])[0] @ v[0] for w in weights]
  slope, at_zero = np.polyfit(steps, c, 1)
  want = (at_zero + 50 * slope) * np.outer(u[:, 0], v[0])
  np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_a_prediction_reads_the_checkpoints_of_a_run_and_is_loaded(
  tmp_path, monkeypatch
):
  folder = tmp_path / 'run'
  for step in (5, 10, 20, 40, 80):
    (folder / 'checkpoints' / str(step)).mkdir(parents=True)
  _, drift, at = drifting(1)
  seen = []

  def read(name):
    step = int(name.partition('@')[2])
    seen.append(step)
    return {
      'layers/w': at(step).astype(np.float32),
      'b': np.full(3, step * 1.0),
    }

  monkeypatch.setattr(tool, 'read', read)
  found = tool.predicted(f'{folder}@10', f'{folder}@40', 90, 1)
  assert seen == [10, 20, 40]
  np.testing.assert_allclose(found['layers/w'], 0.8 * drift, atol=1e-5)
  np.testing.assert_allclose(found['b'], 80.0, rtol=1e-6)
  for before, after, to in (('10', '40', 39), ('40', '10', 90), ('', '9', 9)):
    with pytest.raises(ValueError, match=f'--to={to}: needs'):
      tool.predicted(f'{folder}@{before}', f'{folder}@{after}', to, 1)
