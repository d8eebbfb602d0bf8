"""Benchmarks print their tables, at sizes too small to measure speed."""

import runpy
import sys

import jax
import pytest
from paths import ROOT

from jaxrl_reason import sharding

FOLDER = ROOT / 'tools' / 'benchmarks'
SMALL = '--layers=1 --width=16 --repeats=1 '
# Rows divide over the tests' eight devices.
RUNS = {
  'host_side': 'rewards --rows=2 --tokens=200 --workers=1',
  'group_size': SMALL + '--rows=64 --prompt=8 --new=4',
  'long_tail': SMALL + '--samples=4 --new=32',
  'losses': '--rows=4 --tokens=8 --repeats=1',
  'packing': SMALL + '--rows=4 --prompt=8 --new=24 --micro=1',
  'prefill': SMALL + '--rows=2 --prompt=32 --chunks=16',
  'shared_prompt': SMALL + '--rows=16 --tokens=16 --shares=0.5 --groups=2',
}


@pytest.mark.parametrize('name', RUNS)
def test_a_benchmark_prints_its_table(monkeypatch, capsys, name):
  path = FOLDER / f'{name}.py'
  monkeypatch.syspath_prepend(str(FOLDER))
  monkeypatch.setattr(sys, 'argv', [str(path), *RUNS[name].split()])
  with jax.set_mesh(sharding.make_mesh()):  # a benchmark may set its own
    runpy.run_path(str(path), run_name='__main__')
  assert len(capsys.readouterr().out.splitlines()) > 1
