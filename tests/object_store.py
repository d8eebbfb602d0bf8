"""An object store in memory under gs://. Objects are written as a whole, and
cannot be appended to.
"""

from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem


class Store(MemoryFileSystem):
  """Paths as in gcsfs: listed paths do not begin with a slash."""

  cachable = False
  store, pseudo_dirs = {}, ['']

  @classmethod
  def _strip_protocol(cls, path):
    return '/' + str(path).removeprefix('gs://').strip('/')

  def glob(self, path, **kwargs):
    return [p.lstrip('/') for p in super().glob(path, **kwargs)]

  def open(self, path, mode='rb', **kwargs):
    assert 'a' not in mode and '+' not in mode, f'{path} cannot be appended to'
    return super().open(path, mode, **kwargs)


def install(monkeypatch) -> None:
  """Replaces gs:// by this store for one test."""
  store = Store()
  monkeypatch.setattr(
    backend.fsspec_backend, '_get_filesystem', lambda name: store
  )
