"""Writes the repository's address into notebooks and pages.

  python tools/notebooks.py                list files that differ from setup.cfg
  python tools/notebooks.py --write        update these files
  python tools/notebooks.py --url=ADDRESS  change the address in all files;
                                           origin: the address of the remote

The address is `url` in setup.cfg. Without an address there are no badges. A
notebook installs the clone or the wheel beside it, or else from the address.
Notebooks are written without outputs.
"""

import argparse
import configparser
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'colabs'
PAGES = ('README.md', 'CONTRIBUTING.md')
BRANCH = 'main'
# First cell of a notebook's table row: the badge.
ROW = r'^\| (?:\[!\[Open in Colab\]\S+ )?\| (?=\[\d\]\(colabs/([^)]+)\))'
COLAB = 'https://colab.research.google.com/github'
# Extras that a notebook needs beside the package, by its number.
EXTRAS = {'4': 'gguf,hf', '8': 'tpu'}
KERNEL = {
  'kernelspec': {
    'display_name': 'Python 3',
    'language': 'python',
    'name': 'python3',
  },
  'language_info': {'name': 'python'},
}
INSTALL = '%pip install -q'
IMAGE = 'https://colab.research.google.com/assets/colab-badge.svg'


def url() -> str:
  """Returns the repository's address, or '' before it is published."""
  parser = configparser.ConfigParser()
  parser.read(ROOT / 'setup.cfg')
  return parser['metadata'].get('url', '')


def origin() -> str:
  """Returns the address of the clone's remote, for browsers.

  Raises:
    CalledProcessError: the clone has no remote of that name.
  """
  command = ['git', '-C', ROOT, 'remote', 'get-url', 'origin']
  result = subprocess.run(command, check=True, capture_output=True, text=True)
  address = result.stdout.strip().removesuffix('.git')
  return re.sub(r'^(?:ssh://)?git@([^:/]+)[:/]', r'https://\1/', address)


def with_url(text: str, address: str) -> str:
  """Returns setup.cfg with another address."""
  text = re.sub(r'^url = .*\n', '', text, flags=re.M)
  line = f'url = {address}\n' if address else ''
  return re.sub(r'^(?=description = )', line, text, count=1, flags=re.M)


def badge(name: str) -> str:
  """Returns a link in Markdown that opens a notebook on Colab, or ''."""
  if not url():
    return ''
  return f'[![Open in Colab]({IMAGE})]({_on_colab()}/colabs/{name})'


def _on_colab() -> str:
  """Returns the address of the repository on Colab."""
  place = url().removeprefix('https://github.com/')
  return f'{COLAB}/{place}/blob/{BRANCH}'


def install(name: str) -> str:
  """Returns the cell that installs the package unless it is installed."""
  extras = EXTRAS.get(name.partition('_')[0], '')
  extras = extras and f'[{extras}]'
  lines = [
    'try:',
    '  import jaxrl_reason  # noqa: F401',
    'except ImportError:',
    '  import pathlib',
    '',
    '  # The clone or the wheel beside this notebook.',
    "  beside = [p.parent for p in pathlib.Path('..').glob('setup.cfg')]",
    "  beside += pathlib.Path().glob('jaxrl_reason-*.whl')",
    f"  places = [f'{{p.resolve()}}{extras}' for p in beside]",
  ]
  if url():
    lines.append(f"  places.append('jaxrl_reason{extras} @ git+{url()}')")
  lines.append('  place = places[0]  # IndexError: put a clone or wheel there')
  return '\n'.join([*lines, f'  {INSTALL} "{{place}}"'])


def settled(name: str, notebook: dict) -> dict:
  """Returns a notebook with new first cells and without outputs."""
  body = [c for c in notebook['cells'] if not _is_head(c)]
  head = [{'cell_type': 'code', 'source': install(name)}]
  if url():
    head.insert(0, {'cell_type': 'markdown', 'source': badge(name)})
  cells = [_cell(i, cell) for i, cell in enumerate(head + body)]
  return {
    'cells': cells, 'metadata': KERNEL, 'nbformat': 4, 'nbformat_minor': 5
  }  # fmt: skip


def settled_page(text: str) -> str:
  """Returns Markdown with the address in its badges and clone commands."""
  clone = f' (`git clone {url()}`)' if url() else ''
  text = re.sub(r'(?<=n a clone of this repository)( \(`.*?`\))?', clone, text)

  def row(match: re.Match) -> str:
    shown = badge(match[1])
    return f'| {shown} | ' if shown else '| | '

  return re.sub(ROW, row, text, flags=re.M)


def _is_head(cell: dict) -> bool:
  """Returns whether this tool wrote a cell: a badge or the install cell."""
  text = ''.join(cell['source'])
  return text.startswith('[![Open in Colab]') or INSTALL in text


def _cell(number: int, cell: dict) -> dict:
  """Returns a cell with its number as id, without outputs and counts."""
  text = ''.join(cell['source']).splitlines(keepends=True)
  clean = {'cell_type': cell['cell_type'], 'id': f'cell-{number}'}
  if cell['cell_type'] == 'code':
    clean |= {'execution_count': None, 'outputs': []}
  return clean | {'metadata': {}, 'source': text}


def settled_file(path: pathlib.Path) -> str:
  """Returns the updated text of a notebook or page."""
  text = path.read_text()
  if path.suffix == '.md':
    return settled_page(text)
  notebook = settled(path.name, json.loads(text))
  return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


def stale(write: bool) -> Iterable[str]:
  """Yields the files whose text differs from the updated text."""
  pages = [ROOT / name for name in PAGES]
  for path in (*pages, *sorted(FOLDER.glob('*.ipynb'))):
    new = settled_file(path)
    if new != path.read_text():
      yield str(path.relative_to(ROOT))
      if write:
        path.write_text(new)


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--write', action='store_true', help='change the files')
  parser.add_argument('--url', help='the address, or origin')
  a = parser.parse_args()
  if a.url is not None:
    address = origin() if a.url == 'origin' else a.url
    path = ROOT / 'setup.cfg'
    path.write_text(with_url(path.read_text(), address))
  write = a.write or a.url is not None
  names = list(stale(write))
  for name in names:
    print(f'{name}: {"written" if write else "differs: run with --write"}')
  return int(bool(names) and not write)


if __name__ == '__main__':
  sys.exit(main())
