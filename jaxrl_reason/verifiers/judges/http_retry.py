"""Posts JSON, with limits on time and retries for busy servers.

Each request has its own connection, of the standard library. A busy server, a
broken connection and a body that is not JSON are tried again, after

  max(Retry-After, uniform(0, min(backoff_s * 2^attempt, MAX_BACKOFF_S)))

seconds (full jitter, by tenacity) while attempts and time are left. Other
statuses (a wrong key, an unknown model) are final. Redirects are not followed:
they could send the key to another server.
"""

import contextlib
import dataclasses
import email.utils
import http.client
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable

import tenacity

# Too busy or broken for now: request timeout, conflict, too early, too many
# requests, and errors of servers and gateways (529: overloaded).
RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
MAX_BACKOFF_S = 30.0
MAX_BYTES = 8 * 2**20  # of a reply
MAX_READ = 5000  # of an error's text, before secrets are removed
MAX_QUOTED = 300  # characters of a server's text in a message


class PostError(Exception):
  """There is no reply; `status` is the verdict's: 'error' or 'timeout'."""

  def __init__(self, status: str, message: str):
    super().__init__(message)
    self.status = status


class _TemporaryError(PostError):
  """An error that may pass; the server asks for a pause of `wait_s`."""

  def __init__(self, status: str, message: str, wait_s: float = 0.0):
    super().__init__(status, message)
    self.wait_s = wait_s


@dataclasses.dataclass(frozen=True)
class Limits:
  """timeout_s: of one attempt; deadline_s: of all of them with their pauses;
  retries: attempts after the first; backoff_s: of the first pause."""

  timeout_s: float = 30.0
  deadline_s: float = 120.0
  retries: int = 5
  backoff_s: float = 0.5


def post_json(
  url: str,
  payload: dict,
  headers: dict,
  limits: Limits,
  hide: Callable[[str], str] = str,
) -> dict:
  """Returns the JSON object of the server's reply.

  Args:
    hide: removes secrets from a server's text, before a message quotes it.

  Raises:
    PostError: with the last attempt's reason.
  """
  body = json.dumps(payload).encode('ascii')
  headers = {'Content-Type': 'application/json', **headers}
  end = time.monotonic() + limits.deadline_s
  jitter = tenacity.wait_random_exponential(limits.backoff_s, MAX_BACKOFF_S)

  def attempt() -> dict:
    left = end - time.monotonic()
    return _attempt(url, body, headers, min(limits.timeout_s, left), hide)

  def pause(state: tenacity.RetryCallState) -> float:
    return max(state.outcome.exception().wait_s, jitter(state))

  def give_up(state: tenacity.RetryCallState):
    last, n = state.outcome.exception(), state.attempt_number
    if n > limits.retries:
      raise PostError(last.status, f'{last} ({n} attempts)') from last
    late = f'{last} (no time left within {limits.deadline_s:g} s)'
    raise PostError('timeout', late) from last

  stop = tenacity.stop_after_attempt(limits.retries + 1)
  return tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(_TemporaryError),
    wait=pause,
    stop=stop | tenacity.stop_before_delay(limits.deadline_s),
    retry_error_callback=give_up,
  )(attempt)


def _attempt(
  url: str, body: bytes, headers: dict, timeout_s: float, hide
) -> dict:
  """Returns the object of one reply; raises `_TemporaryError` if another may
  come.
  """
  try:
    status, after, data = _post(url, body, headers, timeout_s)
    if status == 200:
      return _object(data)
  except TimeoutError as e:
    raise _TemporaryError('timeout', f'no reply within {timeout_s:g} s') from e
  # Refused, reset, cut short, or not JSON (a proxy's page): may pass.
  except (OSError, http.client.HTTPException, ValueError) as e:
    text = hide(f'{type(e).__name__}: {e}'[:MAX_READ])
    raise _TemporaryError('error', text[:MAX_QUOTED]) from e
  text = hide(data[:MAX_READ].decode('utf-8', 'replace'))
  why = f'HTTP {status}: {text[:MAX_QUOTED]}'
  if status in RETRIED:
    raise _TemporaryError('error', why, wait_of(after))
  raise PostError('error', why)


def _object(data: bytes) -> dict:
  try:
    reply = json.loads(data)
  except RecursionError as e:
    raise ValueError('the reply is nested too deep') from e
  if not isinstance(reply, dict):
    raise ValueError(f'the reply is a {type(reply).__name__}, not an object')
  return reply


def wait_of(retry_after: str | None) -> float:
  """Returns the seconds of a Retry-After, a number or a date; else 0."""
  if not retry_after:
    return 0.0
  with contextlib.suppress(ValueError):
    seconds = float(retry_after)
    return seconds if 0 <= seconds < float('inf') else 0.0
  with contextlib.suppress(ValueError):
    at = email.utils.parsedate_to_datetime(retry_after).timestamp()
    return max(0.0, at - time.time())
  return 0.0


def _post(url: str, body: bytes, headers: dict, timeout_s: float):
  """Returns (status, Retry-After, body) of one attempt.

  A socket's timeout bounds one read, and a server may send a byte at a time: a
  timer ends the connection when the whole reply is late.
  """
  parts = urllib.parse.urlsplit(url)
  kinds = {
    'http': http.client.HTTPConnection,
    'https': http.client.HTTPSConnection,
  }
  begun = time.monotonic()
  late = threading.Event()
  connection = kinds[parts.scheme](
    parts.hostname, parts.port, timeout=max(timeout_s, 1e-3)
  )
  with contextlib.closing(connection):
    connection.connect()
    left = max(0.0, begun + timeout_s - time.monotonic())
    timer = threading.Timer(left, _cut, (connection.sock, late))
    timer.daemon = True
    timer.start()
    try:
      target = f'{parts.path}?{parts.query}' if parts.query else parts.path
      connection.request('POST', target, body, headers)
      response = connection.getresponse()
      data = response.read(MAX_BYTES)  # what is cut is not JSON
    # What a cut connection raises differs; only that it was cut matters.
    except (OSError, http.client.HTTPException):
      if late.is_set():
        raise TimeoutError from None
      raise
    finally:
      timer.cancel()
  if late.is_set():
    raise TimeoutError
  return response.status, response.getheader('Retry-After'), data


def _cut(sock: socket.socket, late: threading.Event):
  late.set()
  with contextlib.suppress(OSError):  # it may be closed already
    # Not the method of SSL sockets, which the reading thread is inside of.
    socket.socket.shutdown(sock, socket.SHUT_RDWR)
