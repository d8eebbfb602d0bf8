"""The site of docs/ and docstrings (tools/docs) is built without warnings and
dead links, and works in a browser.
"""

import functools
import html.parser
import http.server
import json
import pathlib
import posixpath
import shutil
import sys
import threading
import urllib.parse

import chromium
import pytest
from paths import ROOT

pytest.importorskip('mkdocs', reason='the extra docs is not installed')
pytest.importorskip('mkdocstrings', reason='the extra docs is not installed')
sys.path.insert(0, str(ROOT / 'tools'))

import docs_docstrings  # noqa: E402
import docs_pages  # noqa: E402
import notebooks  # noqa: E402
from mkdocs import config as mkdocs_config  # noqa: E402
from mkdocs import exceptions  # noqa: E402
from mkdocs.commands import build  # noqa: E402

HOME = 'http://127.0.0.1'


def built(folder, **changes):
  """Builds the site into a folder, as tools/docs does."""
  c = mkdocs_config.load_config(
    str(ROOT / 'mkdocs.yml'), strict=True, site_dir=str(folder), **changes
  )
  build.build(c)
  return folder


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  return built(tmp_path_factory.mktemp('site'))


class Links(html.parser.HTMLParser):
  """The links and the names of a page."""

  def __init__(self, text: str):
    super().__init__()
    self.links, self.names = [], set()
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    found = dict(attrs)
    self.names |= {found.get('id'), found.get('name')}
    for key in ('href', 'src'):
      if found.get(key):
        self.links.append(found[key])


def test_every_link_is_valid(site):
  pages = {
    p.relative_to(site).as_posix(): Links(p.read_text())
    for p in site.rglob('*.html')
    if p.name != '404.html'  # its links are from the root of a server
  }
  assert len(pages) > 40
  for name, page in pages.items():
    for link in page.links:
      url = urllib.parse.urlsplit(link)
      if url.scheme or url.netloc:
        if url.scheme == 'file':  # of this clone, if there is no address
          assert pathlib.Path(url.path).exists(), f'{name}: {link}'
        elif notebooks.url() and link.startswith(notebooks.url() + '/'):
          inside = link.split(f'/{notebooks.BRANCH}/')[1]
          assert (ROOT / inside).exists(), f'{name}: {link}'
        continue
      place = posixpath.normpath(
        posixpath.join(posixpath.dirname(name), url.path)
      )
      place = urllib.parse.unquote(place) if url.path else name
      found = site / place
      found = found / 'index.html' if found.is_dir() else found
      assert found.is_file(), f'{name}: {link}'
      if url.fragment and place in pages:
        assert urllib.parse.unquote(url.fragment) in pages[place].names, (
          f'{name}: {link}'
        )


def test_all_public_names_are_in_the_site(site):
  for room in docs_pages.rooms():
    assert (site / 'reference' / f'{room}.html').is_file()
  losses = (site / 'reference/losses.html').read_text()
  assert 'jaxrl_reason.losses.policy.ppo_clip' in losses
  shown = (site / 'notebooks.html').read_text()
  for path in notebooks.FOLDER.glob('*.ipynb'):
    assert f'/colabs/{path.name}' in shown
  assert 'zero-variance group' in (site / 'glossary.html').read_text()


@pytest.fixture
def copy(tmp_path):
  """Returns (folder of the pages, a function that builds them without
  docstrings).
  """
  docs = tmp_path / 'docs'
  shutil.copytree(ROOT / 'docs', docs)
  plain = dict(docs_dir=str(docs), plugins=['search'])
  return docs, functools.partial(built, tmp_path / 'site', **plain)


def test_a_page_missing_from_the_menu_is_added(copy):
  docs, make = copy
  (docs / 'new_page.md').write_text('# A new page\n')
  assert 'A new page' in (make() / 'plan.html').read_text()


@pytest.mark.parametrize('link', ['nowhere.md', 'design.md#nowhere'])
def test_a_dead_link_stops_the_build(copy, link):
  docs, make = copy
  (docs / 'plan.md').write_text(f'# Plan\n[there]({link})\n')
  with pytest.raises((exceptions.Abort, SystemExit)):
    make()


def test_docstrings_are_shown_unchanged():
  found = docs_docstrings.markdown(
    'Adds a*b*c of m[n][t].\n\n  x = <a>\n\nSee `p[0]`.\n\nArgs:\n  x: a*b'
  )
  text = '```text\n  x = <a>\n\n```'
  assert text.replace('\n\n```', '') in found
  assert 'a&#42;b&#42;c of m&#91;n&#93;&#91;t&#93;.' in found
  assert '`p[0]`' in found and '\n  x: a&#42;b' in found
  assert found.count('```') == 2


@pytest.fixture(scope='module')
def served(site):
  """Serves the site and returns its address."""

  class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
      pass

  handler = functools.partial(Quiet, directory=str(site))
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'{HOME}:{server.server_port}'
    server.shutdown()


def test_it_works_in_a_browser(served):
  page = chromium.Page(f'{served}/index.html')
  page.until('document.querySelectorAll(".md-nav__link").length > 50')
  tabs = page.js('document.body.innerText')
  for group in ('Start', 'Use', 'Extend', 'Understand', 'Operate', 'Glossary'):
    assert group in tabs
  page.js(
    'document.querySelector("[data-md-toggle=search]").click();'
    'var q = document.querySelector("[data-md-component=search-query]");'
    'q.focus(); q.value = "zero-variance";'
    'q.dispatchEvent(new Event("keyup")); q.dispatchEvent(new Event("input"));'
  )
  page.until('document.querySelectorAll(".md-search-result__item").length > 0')
  # Badges come from Colab. The page requests nothing else from the network.
  wrong = [e for e in page.errors if 'colab.research' not in json.dumps(e)]
  assert not wrong, wrong
  home = (served, 'blob:', 'data:', 'https://colab.research.google.com/assets')
  assert all(url.startswith(home) for url in page.requests), page.requests
  page.close()
