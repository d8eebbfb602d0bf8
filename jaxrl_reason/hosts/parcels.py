"""Files on the hosts' own disks, which processes give each other over TCP.

  put(to, name)             a file of this process's folder into another's
  read(of, name, first, n)  bytes of a file of another process's folder

A request is a line of JSON with the run's secret, which process 0 has drawn and
told the others through the coordination service; bytes follow it. Devices are
not used: a copy travels while they compute.
"""

import contextlib
import hmac
import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import socketserver
import threading

from jaxrl_reason import hosts
from jaxrl_reason.hosts import service

# Of a folder, a number each: nothing else is read or written for others.
NAME = re.compile(r'[0-9a-f]+/[0-9]+\.[0-9]+\.[0-9]+')
SILENCE_S = 60.0  # until one side gives up on the other
BLOCK, LONGEST = 1 << 20, 4096  # bytes: of a copy's steps, of a request


class _Server(socketserver.ThreadingTCPServer):
  daemon_threads, request_queue_size = True, 128

  def __init__(self, family: int, folder: pathlib.Path):
    self.address_family, self.folder, self.secret = family, folder, ''
    super().__init__(('', 0), _Handler)


class _Handler(socketserver.StreamRequestHandler):
  """Answers one request with a line of JSON, and bytes behind it."""

  timeout = SILENCE_S

  def handle(self) -> None:
    try:
      self._answer(json.loads(self.rfile.readline(LONGEST)))
    except (OSError, ValueError, KeyError, TypeError) as e:
      with contextlib.suppress(OSError):  # the other side has gone
        self._say(error=f'{type(e).__name__}: {e!s:.200}')

  def _answer(self, asked: dict) -> None:
    secret = self.server.secret
    if not secret or not hmac.compare_digest(str(asked['secret']), secret):
      raise ValueError('not a process of this run')
    if not NAME.fullmatch(asked['name']):
      raise ValueError(f'{asked["name"]!r} is no name of a copy')
    path = self.server.folder / asked['name']
    if asked['do'] == 'put':
      self._receive(path, asked['size'])
    else:
      with path.open('rb') as f:
        f.seek(asked['first'])
        data = f.read(asked['n'])
      self._say(size=len(data))
      self.wfile.write(data)

  def _receive(self, path: pathlib.Path, size: int) -> None:
    # Processes of one host share a folder: it is there already.
    if path.exists() and path.stat().st_size == size:
      return self._say(there=True)
    self._say(there=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f'.{path.name}.{secrets.token_hex(4)}')
    try:
      with aside.open('wb') as out:
        while size:
          block = self.rfile.read(min(size, BLOCK))
          if not block:
            raise ConnectionError('the copy ended early')
          out.write(block)
          size -= len(block)
      os.replace(aside, path)
    finally:
      aside.unlink(missing_ok=True)
    self._say(kept=True)

  def _say(self, **facts) -> None:
    self.wfile.write(json.dumps(facts).encode() + b'\n')


class Parcels:
  """This process's folder, and those of the others; made by all at once.

  Args:
    folder: on a disk of this host.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    family, address = _own_address()
    self._server = _Server(family, folder)
    port = self._server.server_address[1]
    told = hosts.gather([address, port, secrets.token_hex(16)])
    self._where = [(host, port) for host, port, _ in told]
    self._secret = self._server.secret = told[0][2]
    serve = self._server.serve_forever
    threading.Thread(target=serve, name='parcels', daemon=True).start()

  @contextlib.contextmanager
  def _asked(self, of: int, **request):
    """A connection on which a request has been made, as a file."""
    request |= {'secret': self._secret}
    try:
      with socket.create_connection(self._where[of], SILENCE_S) as s:
        with s.makefile('rwb') as f:
          f.write(json.dumps(request).encode() + b'\n')
          f.flush()
          yield f
    except OSError as e:
      host, port = self._where[of]
      raise OSError(f'process {of} at {host}:{port}: {e}') from e

  def put(self, to: int, name: str) -> None:
    """Copies a file into the folder of process `to`.

    Raises:
      OSError: it did not get there; says why.
    """
    path = self._folder / name
    with path.open('rb') as source:
      size = os.fstat(source.fileno()).st_size
      with self._asked(to, do='put', name=name, size=size) as f:
        if not _heard(f)['there']:
          shutil.copyfileobj(source, f, BLOCK)
          f.flush()
          _heard(f)

  def read(self, of: int, name: str, first: int, n: int) -> bytes:
    """Reads bytes [first, first + n) of a file of process `of`.

    Raises:
      OSError: they did not come; says why.
    """
    with self._asked(of, do='get', name=name, first=first, n=n) as f:
      size = _heard(f)['size']
      data = f.read(size)
    if len(data) != n:
      raise OSError(f'process {of}: {name} has {len(data)} of {n} bytes there')
    return data

  def close(self) -> None:
    """Gives and takes nothing any more."""
    self._server.shutdown()
    self._server.server_close()


def _heard(f) -> dict:
  line = f.readline(LONGEST)
  if not line:
    raise ConnectionError('no answer')
  try:
    answer = json.loads(line)
  except ValueError as e:
    raise ConnectionError(f'an answer that is none: {line[:80]!r}') from e
  if 'error' in answer:
    raise OSError(answer['error'])
  return answer


def _own_address() -> tuple[int, str]:
  """(family, address) of this host, where its way to the coordinator begins."""
  coordinator = service.state().coordinator_address.rpartition(':')[0]
  host = coordinator.strip('[]')
  found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
  family, kind, protocol, _, address = found[0]
  # No packet is sent: a connected UDP socket only knows its way.
  with socket.socket(family, kind, protocol) as s:
    s.connect(address)
    return family, s.getsockname()[0]
