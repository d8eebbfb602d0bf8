"""Writes the repository's address into notebooks and pages.

  .venv/bin/python tools/notebooks.py
      list files that differ from setup.cfg
  .venv/bin/python tools/notebooks.py --write        update these files
  .venv/bin/python tools/notebooks.py --url=ADDRESS
      change the address in all files; origin: the address of the remote
  .venv/bin/python tools/notebooks.py --execute
      run the notebooks without outputs

The address is `url` in setup.cfg. Without an address there are no badges. A
notebook installs the clone or the wheel beside it, or else from the address. A
notebook has its outputs and a checksum of the code that made them. --write
removes outputs if the code has changed since. --execute needs the extra `test`;
it writes each notebook when it has run, and can be interrupted.
"""

import argparse
import base64
import configparser
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'colabs'
PAGES = (
  'README.md', 'CONTRIBUTING.md', 'docs/first_hour_tpu.md', 'CITATION.cff'
)  # fmt: skip
# Text before, and the advice that a page has while there is no address.
OUTPUT = 'the output of an earlier notebook.'
UNTIL = (
  ' Until\nthe repository has a public address, add a wheel (`pip wheel '
  '--no-deps .`) to the folder\nof the notebook.'
)
BRANCH = 'main'
# First cell of a notebook's table row: the badge.
ROW = r'^\| (?:\[!\[Open in Colab\]\S+ )?\| (?=\[\d\]\(colabs/([^)]+)\))'
COLAB = 'https://colab.research.google.com/github'
# Extras that a notebook needs beside the package, by its number.
EXTRAS = {'4': 'gguf,hf', '8': 'tpu', '9': 'tpu,hf'}
KERNEL = {
  'kernelspec': {
    'display_name': 'Python 3',
    'language': 'python',
    'name': 'python3',
  },
  'language_info': {'name': 'python'},
}
INSTALL = '%pip install -q'
# Entry of a notebook's metadata: the checksum of the code of its outputs.
CODE = 'outputs_of_code'
COLORS = 32
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


def with_url(
  text: str, address: str, key: str = 'url = ', before: str = 'description = '
) -> str:
  """Returns a file of metadata with another address.

  Args:
    key: start of the line of the address; before: of the line after it.
  """
  text = re.sub(rf'^{key}.*\n', '', text, flags=re.M)
  line = f'{key}{address}\n' if address else ''
  return re.sub(rf'^(?={before})', line, text, count=1, flags=re.M)


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
  """Returns a notebook with new first cells, and with its outputs if they are
  those of its code.
  """
  body = [c for c in notebook['cells'] if not _is_head(c)]
  code = checksum(body)
  shown = notebook['metadata'].get(CODE) == code
  head = [{'cell_type': 'code', 'source': install(name)}]
  if url():
    head.insert(0, {'cell_type': 'markdown', 'source': badge(name)})
  cells = [_cell(i, cell, shown) for i, cell in enumerate(head + body)]
  metadata = KERNEL | ({CODE: code} if shown else {})
  return {
    'cells': cells, 'metadata': metadata, 'nbformat': 4, 'nbformat_minor': 5
  }  # fmt: skip


def checksum(cells: list[dict]) -> str:
  """Returns the checksum of the code of cells, except those of this tool."""
  code = [c for c in cells if c['cell_type'] == 'code' and not _is_head(c)]
  text = '\0'.join(''.join(c['source']) for c in code)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def execute(path: pathlib.Path) -> None:
  """Runs a notebook in an empty folder, and writes it with its outputs."""
  import nbclient
  import nbformat

  notebook = nbformat.read(path, as_version=4)
  os.environ['PYTHONPATH'] = str(ROOT)
  with tempfile.TemporaryDirectory() as folder:
    place = {'metadata': {'path': folder}}
    nbclient.NotebookClient(
      notebook, timeout=None, coalesce_streams=True, resources=place
    ).execute()
  found = json.loads(nbformat.writes(notebook))
  for cell in found['cells']:
    for output in cell.get('outputs', ()):
      shrink(output)
  found['metadata'][CODE] = checksum(found['cells'])
  path.write_text(text_of(settled(path.name, found)))


def shrink(output: dict) -> None:
  """Leaves the last state of progress bars, and few colours in pictures."""
  from PIL import Image

  if 'text' in output:
    lines = ''.join(output['text']).split('\n')
    last = [line.rpartition('\r')[2] for line in lines]
    kept = [line for line in last if not line.endswith('so far')]
    output['text'] = '\n'.join(kept).splitlines(keepends=True)
  if picture := output.get('data', {}).get('image/png'):
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    small = io.BytesIO()
    image.convert('RGB').quantize(COLORS).save(small, 'png', optimize=True)
    output['data'] = {'image/png': base64.b64encode(small.getvalue()).decode()}


def settled_page(text: str) -> str:
  """Returns Markdown with the address in its badges and clone commands, or with
  the advice for a repository without an address.
  """
  text = text.replace(UNTIL, '')
  text = text.replace(OUTPUT, OUTPUT + ('' if url() else UNTIL))
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


def _cell(number: int, cell: dict, shown: bool) -> dict:
  """Returns a cell with its number as id and without counts.

  Args:
    shown: with its outputs.
  """
  text = ''.join(cell['source']).splitlines(keepends=True)
  clean = {'cell_type': cell['cell_type'], 'id': f'cell-{number}'}
  if cell['cell_type'] == 'code':
    outputs = cell.get('outputs', []) if shown else []
    clean |= {'execution_count': None, 'outputs': outputs}
  return clean | {'metadata': {}, 'source': text}


def settled_file(path: pathlib.Path) -> str:
  """Returns the updated text of a notebook or page."""
  text = path.read_text()
  if path.suffix == '.md':
    return settled_page(text)
  if path.suffix == '.cff':
    return with_url(text, url(), 'repository-code: ', 'license: ')
  return text_of(settled(path.name, json.loads(text)))


def text_of(notebook: dict) -> str:
  """Returns a notebook as the text of its file."""
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
  parser.add_argument('--execute', action='store_true', help='run notebooks')
  parser.add_argument('names', nargs='*', help='notebooks to run, as 1 2 5')
  a = parser.parse_args()
  if a.url is not None:
    address = origin() if a.url == 'origin' else a.url
    path = ROOT / 'setup.cfg'
    path.write_text(with_url(path.read_text(), address))
  write = a.write or a.execute or a.url is not None
  names = list(stale(write))
  for name in names:
    print(f'{name}: {"written" if write else "differs: run with --write"}')
  for path in sorted(FOLDER.glob('*.ipynb')) if a.execute else ():
    chosen = not a.names or path.name.partition('_')[0] in a.names
    if chosen and CODE not in json.loads(path.read_text())['metadata']:
      execute(path)
      print(f'{path.name}: executed, {path.stat().st_size:,} bytes')
  return int(bool(names) and not write)


if __name__ == '__main__':
  sys.exit(main())
