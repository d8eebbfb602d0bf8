"""Opens the tensors of a folder of *.safetensors by name, memory-mapped."""

import contextlib
import pathlib

from jaxrl_reason.checkpoints import packed
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import install

POINTER = b'version https://git-lfs'
INDEX, SINGLE = 'model.safetensors.index.json', 'model.safetensors'


class BadCheckpoint(ValueError):
  """A folder whose tensors do not match its config.json."""


def library():
  """Imports the library; the error names the extra to install."""
  try:
    import safetensors.numpy  # noqa: F401 (also imports safetensors)
  except ImportError as e:
    raise ImportError(
      f'*.safetensors need the safetensors library: {install("hf")}'
    ) from e
  return safetensors


def _files(folder: pathlib.Path) -> tuple[list[str], set[str] | None]:
  """Returns (names of the weight files, tensors listed in the index)."""
  if (folder / INDEX).is_file():
    listed = reading.json_object(folder / INDEX).get('weight_map')
    if not listed or not isinstance(listed, dict):
      raise BadCheckpoint(
        f'{folder / INDEX} maps no tensor to a file (weight_map='
        f'{listed!r:.60}); a file that was cut short must be fetched again'
      )
    with reading.explained(folder / INDEX):
      names = sorted(set(listed.values()))
    for name in names:
      if pathlib.PurePath(name).name != name:
        raise BadCheckpoint(f'{folder / INDEX}: {name!r} is no plain file name')
      if not (folder / name).is_file():
        raise BadCheckpoint(f'{folder / name}, listed in {INDEX}, is missing')
    return names, set(listed)
  if (folder / SINGLE).is_file():
    return [SINGLE], None
  found = sorted(p.name for p in folder.iterdir())
  raise BadCheckpoint(
    f'{folder} has neither {SINGLE} nor {INDEX}, only {found[:8]}. Pickles '
    '(*.bin, *.pt, *.pth) are never read: convert them to safetensors first.'
  )


def _refuse_pointer(path: pathlib.Path) -> None:
  """Refuses a pointer file of git-lfs."""
  with path.open('rb') as f:
    if f.read(len(POINTER)) == POINTER:
      raise BadCheckpoint(
        f'{path} is a pointer of git-lfs, not the weights: git lfs pull, or hf '
        'download'
      )


@contextlib.contextmanager
def open_folder(folder: pathlib.Path):
  """Yields the safetensors slices by name; the files are open meanwhile."""
  names, listed = _files(folder)
  with contextlib.ExitStack() as stack:
    slices, home = {}, {}
    for file in names:
      _refuse_pointer(folder / file)
      with reading.explained(folder / file):
        handle = stack.enter_context(
          library().safe_open(folder / file, framework='np')
        )
      for name in handle.keys():
        if name in home:
          raise BadCheckpoint(f'{name} is in both {home[name]} and {file}')
        home[name] = file
        slices[name] = handle.get_slice(name)
    if listed is not None and listed != slices.keys():
      raise BadCheckpoint(
        f'{folder / INDEX} and the files disagree on '
        f'{shown(listed ^ slices.keys())}'
      )
    yield packed.unpacked(folder, slices, home)


def shown(names) -> str:
  names = sorted(names)
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more
