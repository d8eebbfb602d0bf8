"""Batches do not depend on the processes that make their rows, and are
resumed.
"""

import itertools

import numpy as np
import pytest

from jaxrl_reason.data import pipeline


class Squares:
  """A source of n examples."""

  def __init__(self, n: int):
    self._n = n

  def __len__(self) -> int:
    return self._n

  def __getitem__(self, i: int) -> dict:
    return {'square': i * i}


def encode(i: int, example: dict) -> dict:
  return {'id': np.int64(i), 'square': np.int64(example['square'])}


def make(n: int, mine=None):
  return pipeline.batches(Squares(n), encode, 4, seed=7, mine=mine)


def take(data, n: int) -> list[dict]:
  return list(itertools.islice(data, n))


@pytest.mark.parametrize('n', [10, pipeline.ENDLESS], ids=['epochs', 'endless'])
def test_processes_make_the_rows_of_one_batch(n):
  whole = take(make(n), 6)
  shares = [take(make(n, np.array(rows)), 6) for rows in ([0, 2], [3], [1])]
  for step, batch in enumerate(whole):
    rows = np.concatenate([share[step]['id'] for share in shares])
    np.testing.assert_array_equal(rows, batch['id'][[0, 2, 3, 1]])
    np.testing.assert_array_equal(batch['square'], batch['id'] ** 2)


def test_every_epoch_is_another_order_of_all():
  ids = np.concatenate([b['id'] for b in take(make(10), 5)])
  first, second = ids[:10], ids[10:]
  assert sorted(first) == sorted(second) == list(range(10))
  assert first.tolist() != second.tolist()


def test_a_state_is_restored_on_another_number_of_processes():
  data = make(10)
  take(data, 3)
  state, want = data.get_state(), take(data, 4)
  for rows in ([0, 1, 2, 3], [2, 3]):
    other = make(10, np.array(rows))
    take(other, 1)  # its position is lost
    other.set_state(state)
    for got, batch in zip(take(other, 4), want):
      np.testing.assert_array_equal(got['id'], batch['id'][rows])
