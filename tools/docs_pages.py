"""Adds pages of the site that are not files of docs/, as a hook of mkdocs.

index         the README
notebooks     a row for each notebook, with its badge
recipes       the docstrings of configs/
glossary      the section of that name of docs/design.md
contributing, changelog        the files in the root of the repository
reference/X   the public docstrings of a room, by mkdocstrings

If the target of a link has a page, the link becomes a link within the site, and
otherwise a link to the repository.
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
# Files in the root that have a page: path -> page.
PAGES = {
  'README.md': 'index.md',
  'CONTRIBUTING.md': 'contributing.md',
  'CHANGELOG.md': 'changelog.md',
}
LINK = re.compile(r'(\]\()([^)#\s]*)(#[^)\s]*)?\)')
FENCE = re.compile(r'(^```.*?^```)', re.M | re.S)


def rooms() -> list[str]:
  """Returns the names of the package's modules and folders."""
  names = {p.stem for p in PACKAGE.glob('*.py')}
  names |= {p.parent.name for p in PACKAGE.glob('*/__init__.py')}
  return sorted(name for name in names if not name.startswith('_'))


def target(path: str, page: str) -> str:
  """Returns the address of a repository file, for a link on a page.

  Args:
    path: path of the file from the root.
  """
  if path in PAGES:
    return posixpath.relpath(PAGES[path], posixpath.dirname(page) or '.')
  if path.startswith('docs/'):
    inside = path.removeprefix('docs/')
    return posixpath.relpath(inside, posixpath.dirname(page) or '.')
  if not (ROOT / path).exists():
    raise ValueError(f'{page} links to {path}, which does not exist')
  kind = 'tree' if (ROOT / path).is_dir() else 'blob'
  if not notebooks.url():  # without an address, link to this clone
    return (ROOT / path).as_uri()
  return f'{notebooks.url()}/{kind}/{notebooks.BRANCH}/{path}'


def linked(text: str, source: str, page: str) -> str:
  """Replaces the links of a Markdown text by links of the site.

  Args:
    source: path of the text's file from the root.
  """

  def replaced(match: re.Match) -> str:
    before, link, anchor = match[1], match[2], match[3] or ''
    if not link or '://' in link or link.startswith('mailto:'):
      return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return f'{before}{target(path, page)}{anchor})'

  parts = FENCE.split(text)  # odd parts are code, without links
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
    intro = linked(text.strip(), f'colabs/{path.name}', 'notebooks.md')
    link = linked(f'[Open](colabs/{path.name})', '', 'notebooks.md')
    badge = notebooks.badge(path.name) or link
    out.append(f'#{title}\n\n{badge}\n\n{intro}\n')
  return '\n'.join(out)


def recipes() -> str:
  """Returns a page with the docstrings of the recipes."""
  out = ['# Recipes\n']
  for path in sorted((ROOT / 'configs').glob('*.py')):
    text = ast.get_docstring(ast.parse(path.read_text()))
    out.append(f'## configs/{path.name}\n\n```text\n{text}\n```\n')
  return '\n'.join(out)


def pages_of(nav) -> set[str]:
  """Returns the names of all pages in a nested menu."""
  if isinstance(nav, str):
    return {nav}
  parts = nav.values() if isinstance(nav, dict) else nav
  return set().union(*map(pages_of, parts))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
  """Adds the address, pages missing from the menu, and the reference."""
  # repo_url is not set, because pages would then request stars and releases
  # from GitHub.
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
  """Adds the pages that are not files of docs/."""
  texts = {
    page: linked((ROOT / path).read_text(), path, page)
    for path, page in PAGES.items()
  }
  texts |= {
    'glossary.md': glossary(),
    'notebooks.md': notebook_rows(),
    'recipes.md': recipes(),
  }
  for room in rooms():
    texts[f'reference/{room}.md'] = f'# {room}\n\n::: jaxrl_reason.{room}\n'
  for page, text in texts.items():
    files.append(File.generated(config, page, content=text))
  return files


def on_page_markdown(markdown: str, *, page, **_) -> str:
  """Replaces the links of the pages in docs/ by links of the site."""
  path = page.file.src_uri
  if page.file.generated_by is not None:
    return markdown
  return linked(markdown, f'docs/{path}', path)
