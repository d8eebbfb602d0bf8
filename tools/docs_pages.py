"""Pages of the site that are no files of docs/, as a hook of mkdocs.

index         the README
notebooks     a row for each notebook, with its badge
recipes       the docstrings of configs/
glossary      the section of that name of docs/design.md
contributing, changelog        the files at the top
reference/X   the public docstrings of a room, by mkdocstrings

Links between files of the repository become links within the site where their
target has a page, and links to the repository where it has none.
"""

import ast
import json
import pathlib
import posixpath
import re
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / 'tools'))
import notebooks  # noqa: E402

PACKAGE = ROOT / 'jaxrl_reason'
# Files at the top that have a page: path -> page.
PAGES = {
  'README.md': 'index.md',
  'CONTRIBUTING.md': 'contributing.md',
  'CHANGELOG.md': 'changelog.md',
}
LINK = re.compile(r'(\]\()([^)#\s]*)(#[^)\s]*)?\)')
FENCE = re.compile(r'(^```.*?^```)', re.M | re.S)


def rooms() -> list[str]:
  """Returns the rooms of the package, files and folders."""
  found = {p.stem for p in PACKAGE.glob('*.py')}
  found |= {p.parent.name for p in PACKAGE.glob('*/__init__.py')}
  return sorted(room for room in found if not room.startswith('_'))


def target(path: str, page: str) -> str:
  """Returns where a link to a file of the repository leads from a page.

  Args:
    path: of the file, from the root.
  """
  if path in PAGES:
    return posixpath.relpath(PAGES[path], posixpath.dirname(page) or '.')
  if path.startswith('docs/'):
    own = path.removeprefix('docs/')
    return posixpath.relpath(own, posixpath.dirname(page) or '.')
  if not (ROOT / path).exists():
    raise ValueError(f'{page} links to {path}, which does not exist')
  kind = 'tree' if (ROOT / path).is_dir() else 'blob'
  if not notebooks.url():  # a site of this clone
    return (ROOT / path).as_uri()
  return f'{notebooks.url()}/{kind}/{notebooks.BRANCH}/{path}'


def linked(text: str, source: str, page: str) -> str:
  """Returns Markdown whose links lead where they should on the site.

  Args:
    source: the file it is from, from the root.
  """

  def replaced(match: re.Match) -> str:
    before, link, anchor = match[1], match[2], match[3] or ''
    if not link or '://' in link or link.startswith('mailto:'):
      return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return f'{before}{target(path, page)}{anchor})'

  parts = FENCE.split(text)  # links in code are code
  parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
  return ''.join(parts)


def glossary() -> str:
  """Returns the glossary of the design as a page."""
  text = (ROOT / 'docs/design.md').read_text()
  return (
    '# Glossary\n' + re.search(r'^## Glossary\n(.*?)^## ', text, re.M | re.S)[1]
  )


def notebook_rows() -> str:
  """Returns a page with the title, first lines and badge of each notebook."""
  out = [
    '# Notebooks\n',
    'They run on Colab, or with Jupyter on two CPU cores, in under three '
    'minutes each: `pip install jupyter`, then open `colabs/`.\n',
  ]
  for path in sorted(notebooks.FOLDER.glob('*.ipynb')):
    cells = json.loads(path.read_text())['cells']
    texts = (''.join(cell['source']) for cell in cells)
    title, _, text = next(t for t in texts if t[0] == '#').partition('\n')
    said = linked(text.strip(), f'colabs/{path.name}', 'notebooks.md')
    link = linked(f'[Open](colabs/{path.name})', '', 'notebooks.md')
    badge = notebooks.badge(path.name) or link
    out.append(f'#{title}\n\n{badge}\n\n{said}\n')
  return '\n'.join(out)


def recipes() -> str:
  """Returns a page with the docstrings of the recipes."""
  out = ['# Recipes\n']
  for path in sorted((ROOT / 'configs').glob('*.py')):
    text = ast.get_docstring(ast.parse(path.read_text()))
    out.append(f'## configs/{path.name}\n\n```text\n{text}\n```\n')
  return '\n'.join(out)


def pages_of(nav) -> set[str]:
  """Returns the names of the pages in a menu, at every depth."""
  if isinstance(nav, str):
    return {nav}
  parts = nav.values() if isinstance(nav, dict) else nav
  return set().union(*map(pages_of, parts))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
  """Enters the address, pages that the menu leaves out, and the reference."""
  # No repo_url: pages would ask GitHub for stars and releases.
  if notebooks.url():
    icon = 'fontawesome/brands/github'
    config.extra['social'] = [{'icon': icon, 'link': notebooks.url()}]
  groups = {name: pages for part in config.nav for name, pages in part.items()}
  listed = pages_of(config.nav)
  groups['Use'] += sorted(
    page.name
    for page in pathlib.Path(config.docs_dir).glob('*.md')
    if page.name not in listed
  )
  extend = groups['Extend']
  reference = next(part for part in extend if 'Reference' in part)
  reference['Reference'] = [f'reference/{room}.md' for room in rooms()]
  return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages that are no files of docs/."""
  made = {
    page: linked((ROOT / path).read_text(), path, page)
    for path, page in PAGES.items()
  }
  made |= {
    'glossary.md': glossary(),
    'notebooks.md': notebook_rows(),
    'recipes.md': recipes(),
  }
  for room in rooms():
    made[f'reference/{room}.md'] = f'# {room}\n\n::: jaxrl_reason.{room}\n'
  for page, text in made.items():
    files.append(File.generated(config, page, content=text))
  return files


def on_page_markdown(markdown: str, *, page, **_) -> str:
  """Mends the links of the pages of docs/."""
  path = page.file.src_uri
  if page.file.generated_by is not None:
    return markdown
  return linked(markdown, f'docs/{path}', path)
