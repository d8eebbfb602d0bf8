"""Where the weights of a run come from: a folder, or the Hugging Face Hub.

  begin(name, workdir)   finds the model once, and keeps its small files
                         (config.json, tokenizer, templates) in workdir/hf
  load(workdir, ...)     its weights, streamed into their shards

The revision found is noted, and a resumed run reads what the workdir keeps:
neither a moved branch nor a lost network changes it.
"""

import json
import pathlib
from typing import Any

from etils import epath

from jaxrl_reason.checkpoints import hf
from jaxrl_reason.models.config import Config

HUB = 'hf:'
FOLDER, SOURCE = 'hf', 'source.json'
# Beside the weights of a run, for `convert`.
HF_CONFIG = 'hf_config.json'
KEPT = ('.json', '.jinja', '.model', '.txt')  # tokenizer, templates
WANTED = (
  'config.json',
  f'{hf.SINGLE} or {hf.INDEX}',
  'tokenizer.json or tokenizer.model',
)
PATTERNS = ['*.json', '*.safetensors', '*.jinja', '*.model', '*.txt']


def resolve(name: str, revision: str = '') -> tuple[pathlib.Path, str]:
  """(folder, revision or '') of a folder or of `hf:owner/model[@revision]`.

  Raises:
    ValueError: names what it looked for, and where.
  """
  if name.startswith(HUB):
    repo, _, asked = name.removeprefix(HUB).partition('@')
    folder = _snapshot(repo, revision or asked)
    return folder, folder.name  # of a snapshot: its commit
  folder = pathlib.Path(name)
  if not folder.is_dir():
    raise ValueError(f'model {name!r} is no folder; one looks for {_wanted()}')
  return folder, ''


def _wanted() -> str:
  return ', '.join(WANTED)


def _snapshot(repo: str, revision: str) -> pathlib.Path:
  """The cached or downloaded files of a model on the Hub."""
  try:
    import huggingface_hub
    from huggingface_hub import constants, errors
  except ImportError as e:
    raise ImportError(
      f'{HUB}{repo} needs huggingface_hub: pip install huggingface_hub'
    ) from e
  try:
    folder = huggingface_hub.snapshot_download(
      repo, revision=revision or None, allow_patterns=PATTERNS
    )
  # Not found, not allowed, no network, a malformed name.
  except (errors.HfHubHTTPError, OSError, ValueError) as e:
    cache = pathlib.Path(constants.HF_HUB_CACHE)
    raise ValueError(
      f'{HUB}{repo}{revision and "@" + revision}: looked for {_wanted()} in '
      f'{cache / ("models--" + repo.replace("/", "--"))} and on the Hub: {e} '
      'Fetch it where there is a network (hf download), or name a folder.'
    ) from e
  return pathlib.Path(folder)


def begin(name: str, workdir) -> epath.Path:
  """The folder in the workdir with the model's small files; made at first.

  Raises:
    ValueError: no such model, or the workdir began from another one.
  """
  workdir = epath.Path(workdir)
  kept, marker = workdir / FOLDER, workdir / HF_CONFIG
  if marker.exists():  # written last, so the rest is complete
    before = json.loads((kept / SOURCE).read_text())['name']
    if before != name:
      raise ValueError(
        f'{workdir} began from model_dir={before!r}, not {name!r}; use another '
        '--workdir'
      )
    return kept
  folder, revision = resolve(name)
  config = hf.read_config(folder)
  kept.mkdir(parents=True, exist_ok=True)
  _copy_small(folder, kept)
  source = {'name': name, 'revision': revision}
  (kept / SOURCE).write_text(json.dumps(source))
  marker.write_text(json.dumps(config, indent=1))
  return kept


def _copy_small(folder: pathlib.Path, kept: epath.Path) -> None:
  """All but weights: templates of a name lie one folder down."""
  for path in sorted([*folder.glob('*'), *folder.glob('*_templates/*')]):
    if path.suffix in KEPT and path.is_file() and path.name != hf.INDEX:
      target = kept / path.relative_to(folder)
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_bytes(path.read_bytes())


def load(workdir, c: Config, kept: Any, where: Any) -> Any:
  """The weights that a run begins from; kept: their specs; where: their
  shardings.
  """
  source = json.loads((epath.Path(workdir) / FOLDER / SOURCE).read_text())
  folder, _ = resolve(source['name'], source['revision'])
  return hf.load(folder, c, where=where, kept=kept)
