"""Serves the report of runs that continue, on this machine only.

The page is that of `html`. It receives an event when a file of a run changes,
and then reads the page again: new points and answers appear without reloading.
"""

import http.server
import threading
import time
from collections.abc import Sequence
from typing import Any

from absl import logging
from etils import epath

from jaxrl_reason.reports import html, workdirs

HOST = '127.0.0.1'
EVERY_S = 1.0  # between two looks at the files
ALIVE_S = 10.0  # between two events, so that a closed page is noticed
FIRST_TOKENS = 200_000  # of a run's rollouts in the first page; 1.5 s
FOLDERS = ('', 'metrics', 'rollouts', 'evaluations', 'samples')


class Live:
  """The newest page of some runs.

  Attributes:
    version: counts the pages.
    files: path -> (text, content type), as served.
    unread: number of rollout files that the newest page left to the next one.
  """

  def __init__(
    self, paths: Sequence[str], evaluations: Sequence[str], defaults: dict
  ):
    self._runs = [*zip(paths, workdirs.names([*paths]))]
    self._report = html.Report(len(paths), evaluations, defaults)
    self._seen: Any = None
    self._changed = threading.Condition()
    self._limit = FIRST_TOKENS
    self.version = self.unread = 0
    self.look()

  def look(self) -> None:
    """Makes a new page if a file has changed since the last one.

    While rollouts are unread, every page reads twice as many tokens as the one
    before. So the first page comes soon, and few pages are made.
    """
    seen = [_files(path) for path, _ in self._runs]
    if seen == self._seen and not self.unread:
      return
    runs = [workdirs.read(*run) for run in self._runs]
    version = self.version + 1
    page = ''.join(self._report.stream(runs, version, self._limit))
    files = {'/': (page, 'text/html; charset=utf-8')}
    files['/plotly.js'] = (self._report.plotly, 'text/javascript')
    for name, block in self._report.blocks.named().items():
      files[f'/{name}'] = (block, 'text/plain')
    self.unread = self._report.unread
    self._limit *= 2 if self.unread else 1
    with self._changed:
      self.files, self.version, self._seen = files, version, seen
      self._changed.notify_all()

  def wait(self, version: int) -> int:
    """Returns the version, after it differs from `version` or `ALIVE_S`."""
    with self._changed:
      self._changed.wait_for(lambda: self.version != version, ALIVE_S)
      return self.version


def _files(path: str) -> list[tuple[str, int, float]]:
  """Returns (name, size, time of change) of a run's files."""
  folders = [epath.Path(path) / name for name in FOLDERS]
  found = [p for f in folders if f.exists() for p in f.iterdir()]
  kinds = ('.jsonl', '.json')
  stats = [(str(p), p.stat()) for p in found if p.suffix in kinds]
  return sorted((name, s.length, s.mtime) for name, s in stats)


class Server(http.server.ThreadingHTTPServer):
  """A server of a Live page. Requests to other host names are refused, so that
  no other site can read it through a name that leads here.

  Attributes:
    live: the page; to be set before the first request is answered.
  """

  daemon_threads = True
  live: Live

  def __init__(self, port: int):
    super().__init__((HOST, port), _Handler)

  @property
  def address(self) -> str:
    return f'http://{HOST}:{self.server_port}/'

  def follow(self) -> None:
    """Looks at the files until the process ends."""
    threading.Thread(target=self.serve_forever, daemon=True).start()
    while True:
      time.sleep(0 if self.live.unread else EVERY_S)
      try:
        self.live.look()
      except FileNotFoundError as e:
        # The run removed a file between listing and reading.
        logging.info('%s; the files are read again', e)


class _Handler(http.server.BaseHTTPRequestHandler):
  server: Server

  def do_GET(self):
    port = self.server.server_port
    if self.headers.get('Host') not in (f'{HOST}:{port}', f'localhost:{port}'):
      self.send_error(403)
    elif self.path == '/events':
      self._events()
    elif self.path in self.server.live.files:
      text, kind = self.server.live.files[self.path]
      content = text.encode('utf-8', 'replace')
      self._begin(kind, {'Content-Length': str(len(content))})
      self.wfile.write(content)
    else:
      self.send_error(404)

  def _begin(self, kind: str, more: dict[str, str]) -> None:
    self.send_response(200)
    headers = {'Content-Type': kind, 'Cache-Control': 'no-store'} | more
    for name, value in headers.items():
      self.send_header(name, value)
    self.end_headers()

  def _events(self) -> None:
    """Sends the version now and whenever it changes."""
    self._begin('text/event-stream', {})
    version = self.server.live.version
    try:
      while True:
        self.wfile.write(f'data: {version}\n\n'.encode())
        self.wfile.flush()
        version = self.server.live.wait(version)
    except OSError:
      return  # the page was closed

  def log_message(self, *args) -> None:
    """Prints nothing: the terminal is for the address."""
