"""The public interface: `import jaxrl_reason as jr` and its names."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest
from paths import ROOT

import jaxrl_reason as jr

PACKAGES = ('jaxrl_reason', 'jaxrl_reason.verifiers')


def imported_after(code: str) -> set[str]:
  """Runs code in a fresh process and returns the names of its modules."""
  code = f'import sys\n{code}\nprint(*sys.modules)'
  process = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  return set(process.stdout.split())


def test_importing_the_package_imports_the_standard_library_only():
  new = imported_after('import jaxrl_reason') - imported_after('')
  new = {name.partition('.')[0] for name in new}
  assert new - sys.stdlib_module_names == {'jaxrl_reason'}


def test_verifiers_are_used_without_jax_or_numpy():
  """The example of README.md; the import of numpy takes a worker 0.1 s."""
  modules = imported_after(
    'import jaxrl_reason as jr\n'
    r"assert jr.verifiers.math.verify(r'\boxed{\frac{1}{2}}', '0.5')"
    "\nassert jr.verifiers.Verdict(1.0).valid and 'math' in dir(jr.verifiers)"
  )
  assert not modules & {'jax', 'numpy', 'jaxrl_reason.base'}


def test_every_name_is_imported_when_it_is_used():
  for package in (jr, jr.verifiers):
    for name in package.__all__:
      assert getattr(package, name) is not None, name
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
      package.nothing  # noqa: B018


@pytest.mark.parametrize('package', PACKAGES)
def test_type_checkers_see_the_names_that_are_imported_lazily(package):
  module = importlib.import_module(package)
  tree = ast.parse(pathlib.Path(module.__file__).read_text())
  block = next(node for node in tree.body if isinstance(node, ast.If))
  seen = {}
  for node in block.body:
    home = importlib.import_module(node.module)
    seen |= {a.asname or a.name: getattr(home, a.name) for a in node.names}
  assert seen == {name: getattr(module, name) for name in module.__all__}


def test_public_packages_have_all():
  room = jr.verifiers
  for info in pkgutil.iter_modules(room.__path__, f'{room.__name__}.'):
    if info.ispkg and info.name.rpartition('.')[2] in room.__all__:
      module = importlib.import_module(info.name)
      for name in module.__all__:
        assert getattr(module, name) is not None, f'{info.name}.{name}'


def test_the_package_is_marked_as_typed():
  assert (ROOT / 'jaxrl_reason' / 'py.typed').is_file()


def public_functions():
  rooms = [jr, *(getattr(jr.verifiers, name) for name in ('math', 'text'))]
  for room in rooms:
    for name in room.__all__:
      value = getattr(room, name)
      if inspect.isfunction(value):
        yield pytest.param(value, id=f'{room.__name__}.{name}')


@pytest.mark.parametrize('function', public_functions())
def test_a_public_function_has_types(function):
  signature = inspect.signature(function)
  bare = [
    p.name for p in signature.parameters.values() if p.annotation is p.empty
  ]
  assert not bare and signature.return_annotation is not signature.empty


def test_the_page_of_stable_names_lists_the_public_names():
  page = (ROOT / 'docs' / 'stable.md').read_text()
  names = re.findall(r'^\| `jr\.(\w+)` \|', page, re.M)
  assert sorted(names) == sorted(jr.__all__)
  row = next(line for line in page.splitlines() if '`jr.verifiers` |' in line)
  modules = set(re.findall(r'`(\w+)`', row))
  assert modules == {n for n in jr.verifiers.__all__ if n.islower()}
