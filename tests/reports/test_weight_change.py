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
  # All singular values alike: each holds its share.
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
