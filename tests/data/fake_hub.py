"""A local server that speaks the Hub's interface, for data sets."""

import hashlib
import http.server
import io
import json
import re
import threading
import urllib.parse


class FakeHub:
  """Data sets in memory; `requests` has (method, path, range) of each request.

  Attributes:
    repos: name -> {revision: (commit, card, {path: bytes})}.
    cut: paths whose next download stops after half of the bytes.
  """

  def __init__(self):
    self.repos, self.cut, self.requests = {}, set(), []
    self.server = http.server.ThreadingHTTPServer(
      ('127.0.0.1', 0), self._handler()
    )
    threading.Thread(target=self.server.serve_forever, daemon=True).start()

  @property
  def address(self) -> str:
    return f'http://127.0.0.1:{self.server.server_port}'

  def add(self, repo, files, card=None, revision='main'):
    commit = hashlib.sha1(repr((repo, revision, files)).encode()).hexdigest()
    at = self.repos.setdefault(repo, {})
    at[revision] = at[commit] = commit, card or {}, files

  def close(self):
    self.server.shutdown()
    self.server.server_close()

  def _handler(hub):
    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = 'HTTP/1.1'

      def log_message(self, *args):
        pass

      def do_HEAD(self):
        self.answer(body=False)

      def do_GET(self):
        self.answer(body=True)

      def refuse(self, code):
        self.send_response(404)
        self.send_header('X-Error-Code', code)
        self.send_header('Content-Length', '0')
        self.end_headers()

      def answer(self, body):
        path = urllib.parse.unquote(self.path.partition('?')[0])
        hub.requests.append((self.command, path, self.headers.get('Range')))
        api = re.fullmatch(
          r'/api/datasets/([\w.-]+/[\w.-]+)(?:/revision/(.+))?', path
        )
        file = re.fullmatch(
          r'/datasets/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)', path
        )
        found = api or file
        if not found or found[1] not in hub.repos:
          return self.refuse('RepoNotFound')
        revisions = hub.repos[found[1]]
        if (found[2] or 'main') not in revisions:
          return self.refuse('RevisionNotFound')
        commit, card, files = revisions[found[2] or 'main']
        if api:
          about = {
            'id': found[1], 'sha': commit, 'cardData': card,
            'siblings': [{'rfilename': name} for name in files],
          }  # fmt: skip
          return self.send(json.dumps(about).encode(), {}, body)
        if found[3] not in files:
          return self.refuse('EntryNotFound')
        self.file(found[3], files[found[3]], commit, body)

      def file(self, name, data, commit, body):
        headers = {'X-Repo-Commit': commit, 'Accept-Ranges': 'bytes'}
        headers['ETag'] = f'"{hashlib.sha256(data).hexdigest()}"'
        start = re.fullmatch(r'bytes=(\d+)-', self.headers.get('Range') or '')
        if start:
          first, total = int(start[1]), len(data)
          headers['Content-Range'] = f'bytes {first}-{total - 1}/{total}'
          return self.send(data[first:], headers, body, 206)
        cut = body and name in hub.cut
        hub.cut -= {name} if cut else set()
        self.send(data, headers, body, most=len(data) // 2 if cut else None)

      def send(self, data, headers, body, status=200, most=None):
        self.send_response(status)
        for key, value in headers.items():
          self.send_header(key, value)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        if body:
          self.wfile.write(data[:most])
        if most is not None:
          self.close_connection = True

    return Handler


def parquet(rows) -> bytes:
  """Returns rows as the bytes of a Parquet file."""
  import pyarrow
  from pyarrow import parquet as library

  out = io.BytesIO()
  library.write_table(pyarrow.Table.from_pylist(rows), out)
  return out.getvalue()
