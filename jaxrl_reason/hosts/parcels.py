"""Copies files between the disks of hosts over TCP.

  put(to, name)             copies a file of this process's folder to another's
  read(of, name, first, n)  reads bytes of a file of another process's folder

Process 0 draws a secret and shares it through the coordination service. A
server listens on the address of the job's network only. It sends a random
challenge; the request is a line of JSON behind its HMAC of secret, challenge
and line. The server reads nothing else of a connection before the HMAC is
right, within seconds, and serves a bounded number of connections at a time.
File contents are not encrypted. Devices are not used, so a copy travels while
they compute.
"""

import contextlib
import hmac
import json
import logging
import os
import pathlib
import re
import secrets
import shutil
import socket
import socketserver
import sys
import threading
import time

from jaxrl_reason import hosts
from jaxrl_reason.hosts import service

# Only files with such names are read or written for other processes.
NAME = re.compile(r'[0-9a-f]+/[0-9]+\.[0-9]+\.[0-9]+')
SILENCE_S = 60.0  # until one side gives up on the other
GREETING_S = 5.0  # until a connection has sent its request
CONNECTIONS = 64  # at a time; others wait in the kernel's queue
CHALLENGE, DIGEST = 16, 64  # characters, of hexadecimal numbers
MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError)
BLOCK, LONGEST = 1 << 20, 4096  # bytes: of a copy's steps, of a request


def _signature(secret: str, challenge: bytes, request: bytes) -> bytes:
  digest = hmac.digest(secret.encode(), challenge + request, 'sha256')
  return digest.hex().encode()


class _Server(socketserver.ThreadingTCPServer):
  daemon_threads, request_queue_size = True, 128

  def __init__(self, family: int, address: str, folder: pathlib.Path):
    self.address_family, self.folder, self.secret = family, folder, ''
    self._free = threading.BoundedSemaphore(CONNECTIONS)
    super().__init__((address, 0), _Handler)

  def process_request(self, request, client_address) -> None:
    self._free.acquire()  # a connection without a request is closed in seconds
    try:
      super().process_request(request, client_address)
    except RuntimeError:  # no thread can be started
      self._free.release()
      raise

  def process_request_thread(self, request, client_address) -> None:
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._free.release()

  def handle_error(self, request, client_address) -> None:
    kind = type(sys.exc_info()[1]).__name__
    logging.warning('parcels: %s with %s', kind, client_address[0])


class _Handler(socketserver.StreamRequestHandler):
  """Answers one request with a line of JSON, and bytes behind it."""

  timeout = SILENCE_S

  def handle(self) -> None:
    try:
      self._answer(json.loads(self._request()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
      with contextlib.suppress(OSError):  # the other side has gone
        self._reply(error=f'{type(e).__name__}: {e!s:.200}')

  def _request(self) -> bytes:
    """Returns the line of a request that a process of this run has signed.

    Raises:
      ValueError: another sender. TimeoutError: the line did not come in time.
    """
    challenge = secrets.token_hex(CHALLENGE // 2).encode()
    self.wfile.write(challenge)
    line, end = b'', time.monotonic() + GREETING_S
    while not line.endswith(b'\n') and len(line) < LONGEST:
      self.connection.settimeout(max(1e-3, end - time.monotonic()))
      data = self.connection.recv(LONGEST - len(line))
      if not data:
        break
      line += data
    self.connection.settimeout(SILENCE_S)
    signature, request = line[:DIGEST], line[DIGEST:]
    secret = self.server.secret
    right = _signature(secret, challenge, request)
    if not secret or not hmac.compare_digest(signature, right):
      raise ValueError('not a process of this run')
    return request

  def _answer(self, asked: dict) -> None:
    if not NAME.fullmatch(asked['name']):
      raise ValueError(f'{asked["name"]!r} is not the name of a copy')
    path = self.server.folder / asked['name']
    if asked['do'] == 'put':
      self._receive(path, asked['size'])
    else:
      with path.open('rb') as f:
        f.seek(asked['first'])
        data = f.read(asked['n'])
      self._reply(size=len(data))
      self.wfile.write(data)

  def _receive(self, path: pathlib.Path, size: int) -> None:
    # Processes of one host share a folder: it is there already.
    if path.exists() and path.stat().st_size == size:
      return self._reply(there=True)
    self._reply(there=False)
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
    self._reply(kept=True)

  def _reply(self, **fields) -> None:
    self.wfile.write(json.dumps(fields).encode() + b'\n')


class Parcels:
  """The folder of this process and those of all others.

  All processes build their instance at the same time.

  Args:
    folder: on a disk of this host.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    family, address = _own_address()
    self._server = _Server(family, address, folder)
    port = self._server.server_address[1]
    servers = hosts.gather([address, port, secrets.token_hex(16)])
    self._where = [(host, port) for host, port, _ in servers]
    self._secret = self._server.secret = servers[0][2]
    serve = self._server.serve_forever
    threading.Thread(target=serve, name='parcels', daemon=True).start()

  @contextlib.contextmanager
  def _asked(self, of: int, **request):
    """Sends a request on a new connection, which it yields as a file."""
    line = json.dumps(request).encode() + b'\n'
    try:
      with socket.create_connection(self._where[of], SILENCE_S) as s:
        with s.makefile('rwb') as f:
          challenge = f.read(CHALLENGE)
          f.write(_signature(self._secret, challenge, line) + line)
          f.flush()
          yield f
    except OSError as e:
      host, port = self._where[of]
      raise OSError(f'process {of} at {host}:{port}: {e}') from e

  def put(self, to: int, name: str) -> None:
    """Copies a file into the folder of process `to`.

    Raises:
      OSError: the copy failed.
    """
    path = self._folder / name
    with path.open('rb') as source:
      size = os.fstat(source.fileno()).st_size
      with self._asked(to, do='put', name=name, size=size) as f:
        if not _heard(f, 'there'):
          shutil.copyfileobj(source, f, BLOCK)
          f.flush()
          _heard(f, 'kept')

  def read(self, of: int, name: str, first: int, n: int) -> bytes:
    """Reads bytes [first, first + n) of a file of process `of`.

    Raises:
      OSError: the file or some of the bytes cannot be read.
    """
    with self._asked(of, do='get', name=name, first=first, n=n) as f:
      data = f.read(min(n, _heard(f, 'size')))
    if len(data) != n:
      raise OSError(f'process {of}: {name} has {len(data)} of {n} bytes there')
    return data

  def close(self) -> None:
    """Stops the server."""
    self._server.shutdown()
    self._server.server_close()


def _heard(f, field: str) -> int:
  """Reads a field, a boolean or a number, of the server's answer.

  Raises:
    OSError: the answer is an error. ConnectionError: it is not an answer.
  """
  line = f.readline(LONGEST)
  if not line:
    raise ConnectionError('no answer')
  try:
    answer = json.loads(line)
    if 'error' in answer:
      raise OSError(answer['error'])
    return int(answer[field])
  except (*MALFORMED, RecursionError) as e:
    raise ConnectionError(f'not an answer: {line[:80]!r}') from e


def _own_address() -> tuple[int, str]:
  """Returns (family, address) of this host on its way to the coordinator."""
  coordinator = service.state().coordinator_address.rpartition(':')[0]
  host = coordinator.strip('[]')
  infos = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
  family, kind, protocol, _, address = infos[0]
  # Connecting a UDP socket chooses its address and sends no packet.
  with socket.socket(family, kind, protocol) as s:
    s.connect(address)
    return family, s.getsockname()[0]
