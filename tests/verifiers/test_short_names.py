"""Every short name is a function that a worker loads without jax."""

import subprocess
import sys

from jaxrl_reason.verifiers import resolve


def test_every_short_name_is_found_without_jax():
  code = (
    'import sys; from jaxrl_reason.verifiers import resolve;'
    '[resolve.load(name) for name in resolve.SHORT];'
    'print("jax" in sys.modules, "numpy" in sys.modules)'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True
  )
  assert done.stdout.split()[:1] == ['False'], done.stderr


def test_names_and_functions_are_inverse():
  names = list(resolve.SHORT)
  assert names == sorted(names)
  for name in names:
    assert resolve.name_of(resolve.load(name)) == resolve.SHORT[name]
