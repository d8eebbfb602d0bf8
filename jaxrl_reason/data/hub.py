"""Data sets on the Hugging Face Hub, as files on this machine.

  files('hf:openai/gsm8k:main')      {'train': [path], 'test': [path]}
  files('hf:owner/name')             of its only or default configuration
  files('hf:owner/name@revision')    a branch, a tag or a commit

The splits of a configuration are those of the card's `configs`, or else go by
the words in the names of files and folders, as in the library datasets. If a
repository has neither JSON lines nor Parquet, the Hub's own copy as Parquet is
read (branch refs/convert/parquet). huggingface_hub keeps the files in its cache
and resumes a download that was cut. The list of files is noted with its commit,
so that the same files are read when there is no network.
"""

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
SPLITS = {
  'train': 'train', 'training': 'train', 'validation': 'validation',
  'valid': 'valid', 'val': 'val', 'dev': 'dev', 'test': 'test',
  'testing': 'test', 'eval': 'test', 'evaluation': 'test',
}  # fmt: skip
WORD = '|'.join(SPLITS)
# A word in a name, and the same with a capital after a small letter: gsmTest.
SPLIT = re.compile(
  rf'(?:(?<![a-z])|(?<=[a-z])(?-i:(?=[A-Z])))({WORD})(?![a-z])', re.IGNORECASE
)
# Part of a word that is not contest, latest or strain.
UNCLEAR = re.compile(r'(?<!con)(?<!la)test|(?<!s)train', re.IGNORECASE)
GLOB = re.compile(r'\*\*/|\*\*|\*|\?|\[[^\]]+\]')
REGEX = {'**/': '(?:.*/)?', '**': '.*', '*': '[^/]*', '?': '[^/]'}
# Configurations that are chosen unless another is named.
USUAL = ('default', 'main')


@functools.cache
def files(name: str) -> dict[str, list[pathlib.Path]]:
  """Returns the files of each split of a data set; downloads what is missing.

  Args:
    name: hf:owner/name[:configuration][@revision].

  Raises:
    ValueError: no such data set, configuration or revision, no network and no
      copy in the cache, or the files of a split are unknown.
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
  try:
    table = configurations(listing['names'], listing['configs'])
  except ValueError as e:
    raise ValueError(f'{name}: {e}') from e
  chosen = _one(name, table, wanted, listing['configs'])
  _refuse_empty(name, chosen, table[chosen])
  commit = listing['commit']
  logging.info('%s: configuration %s, commit %s', name, chosen, commit)
  return {
    split: [_file(name, repo, file, commit) for file in some]
    for split, some in table[chosen].items()
    if some
  }


def configurations(
  listed: list[str], declared: list[dict]
) -> dict[str, dict[str, list[str]]]:
  """Returns the files of each split of each configuration.

  Args:
    listed: all files of the repository.
    declared: `configs` of the card.

  Raises:
    ValueError: the name of a file does not show its split.
  """
  data = sorted(n for n in listed if n.endswith(SUFFIXES))
  table = {
    c['config_name']: _declared(c['data_files'], data)
    for c in declared
    if c.get('data_files')
  }
  found = table or _by_name(data)
  return {k: v for k, v in found.items() if any(v.values())}


def _declared(entries, data: list[str]) -> dict[str, list[str]]:
  """Returns the files of each split that a card declares, perhaps none."""
  entries = [entries] if isinstance(entries, str | dict) else entries
  out: dict[str, list[str]] = {}
  for entry in entries:
    entry = {'path': entry} if isinstance(entry, str) else entry
    paths = entry['path']
    paths = [paths] if isinstance(paths, str) else paths
    patterns = [_pattern(path) for path in paths]
    some = [n for n in data if any(p.fullmatch(n) for p in patterns)]
    out.setdefault(entry.get('split', 'train'), []).extend(some)
  return out


def _pattern(path: str) -> re.Pattern:
  """Returns the expression of a path with `*`, which matches no `/`, and `**`,
  which matches any folders or none.
  """
  path, out, end = path.removeprefix('./'), '', 0
  for m in GLOB.finditer(path):
    out += re.escape(path[end : m.start()])
    out += REGEX.get(m[0]) or m[0].replace('[!', '[^', 1)
    end = m.end()
  return re.compile(out + re.escape(path[end:]))


def _refuse_empty(name: str, chosen: str, splits: dict[str, list]) -> None:
  """Refuses a configuration whose declared training or held-out split has no
  file: another part of the data would take its place.
  """
  for split in (split for split, some in splits.items() if not some):
    if split in SPLITS:
      raise ValueError(
        f'{name}: the card declares the split {split!r} of {chosen!r} with '
        f'files that do not exist as {" or ".join(SUFFIXES)}; download the '
        'data set and name a folder with train.jsonl and test.jsonl'
      )


def _by_name(data: list[str]) -> dict[str, dict[str, list[str]]]:
  """Returns the files of each split by the names of files and folders: the
  first folder is the configuration, unless it is `data` or a split.

  Raises:
    ValueError: the name of a file does not show its split.
  """
  out: dict[str, dict[str, list[str]]] = {}
  for file in data:
    parts = file.split('/')
    found = [words for part in parts if (words := _words(part))]
    if found and len(found[-1]) > 1:
      raise ValueError(_unclear(file))
    first = parts[0] if parts[1:] else 'data'
    # A configuration may be called auxiliary_train.
    is_split = SPLIT.match(first) or (_words(first) and len(found) == 1)
    config = 'default' if first == 'data' or is_split else first
    split = next(iter(found[-1])) if found else ''
    out.setdefault(config, {}).setdefault(split, []).append(file)
  for splits in out.values():
    without = splits.pop('', [])
    for file in without:
      if UNCLEAR.search(file) and (splits or without[1:]):
        raise ValueError(_unclear(file))
    if not splits:
      splits['train'] = without
  return out


def _words(part: str) -> set[str]:
  """Returns the splits that the name of a file or folder has."""
  return {SPLITS[word.lower()] for word in SPLIT.findall(part)}


def _unclear(file: str) -> str:
  return (
    f'the name of {file} does not show whether its rows are held out: download '
    'the data set and name a folder with train.jsonl and test.jsonl'
  )


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
