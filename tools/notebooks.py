"""The repository's address in notebooks and pages: badges, install lines.

  python tools/notebooks.py                what does not agree with setup.cfg
  python tools/notebooks.py --write        made to agree

The address is `url` in setup.cfg and nowhere else is it chosen: whoever
publishes the code elsewhere changes that line and writes. A notebook's first
two cells are the badge that opens it on Colab and what installs the package
there. What it shows when it is run is not kept in it.
"""

import argparse
import configparser
import json
import pathlib
import re
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'colabs'
PAGES = ('README.md', 'CONTRIBUTING.md')
BRANCH = 'main'
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
IMAGE = 'https://colab.research.google.com/assets/colab-badge.svg'


def url() -> str:
  """Returns the repository's address."""
  parser = configparser.ConfigParser()
  parser.read(ROOT / 'setup.cfg')
  return parser['metadata']['url']


def badge(name: str) -> str:
  """Returns the Markdown of a link that opens a notebook on Colab."""
  return f'[![Open in Colab]({IMAGE})]({_on_colab()}/colabs/{name})'


def _on_colab() -> str:
  """The repository as Colab reads it."""
  place = url().removeprefix('https://github.com/')
  return f'{COLAB}/{place}/blob/{BRANCH}'


def requirement(name: str) -> str:
  """Returns what pip installs for a notebook."""
  extras = EXTRAS.get(name.partition('_')[0], '')
  return f'jaxrl_reason{extras and f"[{extras}]"} @ git+{url()}'


def install(name: str) -> str:
  """Returns the cell that installs the package where it is not there yet."""
  return (
    'try:\n'
    '  import jaxrl_reason  # noqa: F401\n'
    'except ImportError:\n'
    f'  %pip install -q "{requirement(name)}"'
  )


def settled(name: str, notebook: dict) -> dict:
  """Returns a notebook with the first cells it should have and no outputs."""
  cells = notebook['cells']
  own = [c for c in cells if not _is_head(c)]
  head = [
    {'cell_type': 'markdown', 'source': badge(name)},
    {'cell_type': 'code', 'source': install(name)},
  ]
  made = [_cell(i, cell) for i, cell in enumerate(head + own)]
  return {
    'cells': made, 'metadata': KERNEL, 'nbformat': 4, 'nbformat_minor': 5
  }  # fmt: skip


def settled_page(text: str) -> str:
  """Returns Markdown whose badges and clones are of the address."""
  text = re.sub(rf'{COLAB}/[^)\s]*?(?=/colabs/)', _on_colab(), text)
  return re.sub(r'(?<=git clone )https?://\S+', url(), text)


def _is_head(cell: dict) -> bool:
  """Whether a cell is one that this file writes."""
  text = ''.join(cell['source'])
  return text.startswith('[![Open in Colab]') or '%pip install -q' in text


def _cell(number: int, cell: dict) -> dict:
  """A cell with a number for a name, and nothing of when it was run."""
  text = ''.join(cell['source']).splitlines(keepends=True)
  made = {'cell_type': cell['cell_type'], 'id': f'cell-{number}'}
  if cell['cell_type'] == 'code':
    made |= {'execution_count': None, 'outputs': []}
  return made | {'metadata': {}, 'source': text}


def settled_file(path: pathlib.Path) -> str:
  """Returns what a notebook or page should hold."""
  text = path.read_text()
  if path.suffix == '.md':
    return settled_page(text)
  made = settled(path.name, json.loads(text))
  return json.dumps(made, indent=1, ensure_ascii=False) + '\n'


def stale(write: bool) -> Iterable[str]:
  """Yields the files that are not as they should be."""
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
  write = parser.parse_args().write
  found = list(stale(write))
  for name in found:
    print(f'{name}: {"written" if write else "differs; --write"}')
  return int(bool(found) and not write)


if __name__ == '__main__':
  sys.exit(main())
