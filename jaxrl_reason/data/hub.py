"""Data sets on the Hugging Face Hub, as files on this machine.

  files('hf:openai/gsm8k:main')      {'train': [path], 'test': [path]}
  files('hf:owner/name')             of its only or default configuration
  files('hf:owner/name@revision')    a branch, a tag or a commit

The splits of a configuration are those of the card's `configs`, or else go by
the names of files and folders. If a repository has neither JSON lines nor
Parquet, the Hub's own copy as Parquet is read (branch refs/convert/parquet).
huggingface_hub keeps the files in its cache and resumes a download that was
cut. The list of files is noted with its commit, so that the same files are read
when there is no network.
"""

import fnmatch
import functools
import json
import os
import pathlib
import re

from absl import logging

from jaxrl_reason import names
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import install

PREFIX = names.HUB
NAME = re.compile(r'hf:([\w.-]+/[\w.-]+?)(?::([\w.-]+))?(?:@([\w./-]+))?')
SUFFIXES = ('.parquet', '.jsonl')
CONVERTED = 'refs/convert/parquet'
SPLIT = re.compile(r'(train|test|validation|valid|val|dev)(?![a-z])')
# Configurations that are chosen unless another is named.
USUAL = ('default', 'main')


@functools.cache
def files(name: str) -> dict[str, list[pathlib.Path]]:
  """Returns the files of each split of a data set; downloads what is missing.

  Args:
    name: hf:owner/name[:configuration][@revision].

  Raises:
    ValueError: no such data set, configuration or revision, or no network and
      no copy in the cache.
    ImportError: huggingface_hub is not installed.
  """
  found = NAME.fullmatch(name)
  if not found:
    raise ValueError(
      f'{name}: a data set is {PREFIX}owner/name[:configuration][@revision]'
    )
  repo, wanted, revision = found[1], found[2] or '', found[3] or ''
  listing = _listing(name, repo, revision)
  if not any(n.endswith(SUFFIXES) for n in listing['names']) and not revision:
    listing = _listing(name, repo, CONVERTED)
  table = configurations(listing['names'], listing['configs'])
  chosen = _one(name, table, wanted, listing['configs'])
  commit = listing['commit']
  logging.info('%s: configuration %s, commit %s', name, chosen, commit)
  return {
    split: [_file(name, repo, file, commit) for file in some]
    for split, some in table[chosen].items()
  }


def configurations(
  listed: list[str], declared: list[dict]
) -> dict[str, dict[str, list[str]]]:
  """Returns the files of each split of each configuration.

  Args:
    listed: all files of the repository.
    declared: `configs` of the card.
  """
  data = sorted(n for n in listed if n.endswith(SUFFIXES))
  table = {
    c['config_name']: _declared(c['data_files'], data)
    for c in declared
    if c.get('data_files')
  }
  return {k: v for k, v in (table or _by_name(data)).items() if v}


def _declared(entries, data: list[str]) -> dict[str, list[str]]:
  """Returns the files of each split that a card declares."""
  entries = [entries] if isinstance(entries, str | dict) else entries
  out: dict[str, list[str]] = {}
  for entry in entries:
    entry = {'path': entry} if isinstance(entry, str) else entry
    paths = entry['path']
    paths = [paths] if isinstance(paths, str) else paths
    some = [n for n in data if any(fnmatch.fnmatch(n, p) for p in paths)]
    if some:
      out.setdefault(entry.get('split', 'train'), []).extend(some)
  return out


def _by_name(data: list[str]) -> dict[str, dict[str, list[str]]]:
  """Returns the files of each split by the names of files and folders: the
  first folder is the configuration, unless it is `data` or a split.
  """
  out: dict[str, dict[str, list[str]]] = {}
  for file in data:
    *folders, last = file.split('/')
    found = [m[1] for part in (*folders, last) if (m := SPLIT.match(part))]
    first = folders[0] if folders else 'data'
    config = 'default' if first == 'data' or SPLIT.match(first) else first
    split = found[-1] if found else ''
    out.setdefault(config, {}).setdefault(split, []).append(file)
  for splits in out.values():
    without = splits.pop('', [])
    if not splits:
      splits['train'] = without
  return out


def _one(name: str, table: dict, wanted: str, declared: list[dict]) -> str:
  """Returns the configuration that is named, or the only or default one."""
  if wanted and wanted not in table:
    raise ValueError(names.choice(f'{name}: configuration', wanted, table))
  marked = [c['config_name'] for c in declared if c.get('default')]
  for config in (wanted, *marked, *USUAL):
    if config in table:
      return config
  if len(table) == 1:
    return next(iter(table))
  if not table:
    raise ValueError(f'{name} has neither JSON lines nor Parquet')
  raise ValueError(
    f'{name} has the configurations {", ".join(table)}: write '
    f'{name.partition("@")[0]}:{next(iter(table))} for the first'
  )


def _library(name: str):
  """Returns huggingface_hub, or raises with the command that installs it."""
  try:
    import huggingface_hub
  except ImportError as e:
    raise ImportError(f'{name} needs huggingface_hub: {install("hf")}') from e
  return huggingface_hub


def _listing(name: str, repo: str, revision: str) -> dict:
  """Returns commit, files and card of a data set, from the Hub or as noted."""
  hub = _library(name)
  from huggingface_hub import errors

  slug = re.sub(r'[^\w.-]', '--', f'{repo}@{revision}')
  note = reading.cache_dir() / 'hub' / f'{slug}.json'
  try:
    info = hub.HfApi().dataset_info(repo, revision=revision or None)
  except (
    errors.RepositoryNotFoundError,
    errors.RevisionNotFoundError,
    errors.HFValidationError,
  ) as e:
    first = str(e).strip().splitlines()[0]
    raise ValueError(
      f'{name}: no such data set on the Hub, or one that needs a token '
      f'(hf auth login): {first}'
    ) from e
  # The Hub cannot be reached, or fails.
  except (errors.HTTPError, OSError) as e:
    if note.exists():
      return reading.json_object(note)
    raise ValueError(
      f'{name}: the Hub cannot be reached ({" ".join(str(e).split())}), and '
      'the cache has no copy. Fetch it where there is a network, or name '
      'a file.'
    ) from e
  card = info.card_data.to_dict() if info.card_data else {}
  listing = {
    'commit': info.sha,
    'names': [s.rfilename for s in info.siblings],
    'configs': card.get('configs') or [],
  }
  note.parent.mkdir(parents=True, exist_ok=True)
  aside = note.with_name(f'.{note.name}.{os.getpid()}')
  aside.write_text(json.dumps(listing))
  aside.replace(note)
  return listing


def _file(name: str, repo: str, file: str, commit: str) -> pathlib.Path:
  """Returns a file of a data set in the cache; downloads it if it is missing.

  A commit never changes, so that a file that is there needs no network.
  """
  hub = _library(name)
  from huggingface_hub import errors

  try:
    path = hub.hf_hub_download(repo, file, repo_type='dataset', revision=commit)
  except (errors.HTTPError, OSError, ValueError) as e:
    raise ValueError(
      f'{name}: {file} cannot be downloaded ({" ".join(str(e).split())}). The '
      'same command goes on where the download stopped'
    ) from e
  return pathlib.Path(path)
