"""Options of compilers depend on the chip and on the exchanges of a program."""

import types

import numpy as np
import pytest

from jaxrl_reason.run.process import chips


def options_for(monkeypatch, kind, n=4, known=True):
  """Returns the options for n devices of a compiler with or without support."""
  monkeypatch.setattr(chips, '_knows', lambda device, options: known)
  device = types.SimpleNamespace(device_kind=kind)
  mesh = types.SimpleNamespace(size=n, devices=np.array([device] * n))
  return chips.compiler_options(mesh)


@pytest.mark.parametrize(
  'kind, words',
  [
    ('TPU v6 lite', 'sparse_core'),
    ('TPU v5p', 'sparse_core'),
    ('TPU7x', 'sparse_core'),
    ('TPU v5 lite', 'fuse_all_reduce'),
    ('TPU v4', 'fuse_all_reduce'),
  ],
)
def test_a_chip_exchanges_beside_work_as_it_can(monkeypatch, kind, words):
  options = options_for(monkeypatch, kind)
  assert any(words in name for name in options) and all(options.values())


def test_options_are_empty_without_exchanges_or_support(monkeypatch):
  assert options_for(monkeypatch, 'TPU v6 lite', n=1) == {}
  assert options_for(monkeypatch, 'TPU v6 lite', known=False) == {}
  assert (
    options_for(monkeypatch, 'cpu')
    == options_for(monkeypatch, 'NVIDIA H200')
    == {}
  )


def test_the_environment_leaves_exchanges_to_the_compiler(monkeypatch):
  monkeypatch.setenv('JAXRL_OVERLAP', '0')
  assert options_for(monkeypatch, 'TPU v6 lite') == {}
