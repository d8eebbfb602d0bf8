"""Runs several processes as one: joining, messages, and the end of all.

  join(...)           starts jax.distributed, by flags or by the cluster
  gather(value)       returns the value of every process, on every process
  zero_first()        lets process 0 make files before the others read them
  exit_on_error()     ends this process at once after an error, and so all
  explained()         names the process that is gone when a collective fails
  meet()              waits for all before something that must start together

Every process runs the same program on the same mesh; each reads, verifies and
decodes its own rows (`sharding.my_rows`). Messages between hosts go through
jax's coordination service, not through a collective: they wait for no device.
All processes must call `gather` in the same order.
"""

import contextlib
import itertools
import json
import os
import re
import sys
import threading
import traceback
from typing import Any

import jax
import numpy as np

from jaxrl_reason.hosts import last_words, peers
from jaxrl_reason.hosts.joining import find_devices as find_devices
from jaxrl_reason.hosts.joining import join as join
from jaxrl_reason.hosts.peers import at as at
from jaxrl_reason.hosts.service import client as _client
from jaxrl_reason.hosts.service import first_line, state

# Seconds to wait for a host that is alive and late, because it compiles or its
# disk is slow. A lost host is found by its heartbeat.
PATIENCE_S = 3600
_turns = itertools.count()
# The beginnings of jax's errors that concern only this process.
LOCAL_ERROR_PREFIXES = (
  'RESOURCE_EXHAUSTED',
  'INVALID_ARGUMENT',
  'UNIMPLEMENTED',
)
# Texts of errors of collectives and of the coordination service that jax, or a
# library that copies arrays, raises as another type (ValueError).
COLLECTIVE = re.compile(
  r'\bGloo\b|\bNCCL\b|'
  r'^(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL): '
)


class Lost(RuntimeError):
  """A collective failed because a process, or a device, is gone."""


def is_main() -> bool:
  """Returns True in the process that writes logs, metrics and plots."""
  return jax.process_index() == 0


def gather(value: Any) -> list:
  """Returns the values of all processes, in the order of their indices.

  Args:
    value: numbers, texts, lists and dictionaries, sent as JSON.
  """
  if jax.process_count() == 1:
    return [value]
  client, turn, me = _client(), next(_turns), jax.process_index()

  def key(turn):
    return f'jaxrl_reason/{turn:09d}/'

  text = json.dumps(value).encode()
  client.key_value_set_bytes(f'{key(turn)}{me}', text)
  try:
    client.wait_at_barrier(f'jaxrl_reason/{turn}', PATIENCE_S * 1000)
  except jax.errors.JaxRuntimeError as e:
    if not str(e).startswith('DEADLINE_EXCEEDED'):
      raise
    who = peers.active.behind() if peers.active else 'unknown'
    raise Lost(
      f'process {me} of {jax.process_count()} waited {PATIENCE_S} s for the '
      f'others; the last is {who}. {peers.AGAIN}'
    ) from e
  entries = dict(client.key_value_dir_get_bytes(key(turn)))
  # All processes are past the previous turn, so its values are not needed.
  if turn:
    client.key_value_delete(f'{key(turn - 1)}{me}')
  by_process = {int(k.rpartition('/')[2]): v for k, v in entries.items()}
  return [json.loads(by_process[i]) for i in range(jax.process_count())]


def meet() -> None:
  """Waits for all processes on the host.

  Gloo's collectives, when they connect, give up on a process 30 s late.
  """
  gather(None)


def refuse_unlike(facts: dict[str, Any]) -> None:
  """Refuses processes that were started with different commands or code.

  Uses the coordination service only, so that it can run before jax looks for
  devices, which waits for `num_processes` processes.

  Args:
    facts: by the names that an error message uses.

  Raises:
    ValueError: the same on every process: which process differs, and in what.
  """
  client = _client()
  if client is None:
    return
  facts = facts | {'--num_processes': state().num_processes}
  key = f'jaxrl_reason/facts/{next(_turns)}'
  client.key_value_set(f'{key}/{state().process_id}', json.dumps(facts))

  def wait(i):
    return json.loads(
      client.blocking_key_value_get(f'{key}/{i}', PATIENCE_S * 1000)
    )

  first = wait(0)
  for i in range(1, first['--num_processes']):
    _refuse_differing(i, first, wait(i))


def _refuse_differing(i: int, first: dict, other: dict) -> None:
  unlike = [
    f'{k}={other.get(k, "missing")!r} where process 0 has '
    f'{first.get(k, "nothing")!r}'
    for k in sorted(first.keys() | other.keys())
    if first.get(k) != other.get(k)
  ]
  if unlike:
    more = f' and {len(unlike) - 3} more' if len(unlike) > 3 else ''
    raise ValueError(
      f'process {i} was started with {"; ".join(unlike[:3])}{more}: start the '
      'same command, from the same code, on every host'
    )


def all_rows(rows: np.ndarray, tree: Any) -> Any:
  """Returns arrays of all rows of a batch, on every process.

  Args:
    rows: int [m], positions of this process's rows. If several processes have
      a row, all take the values of the first of them.
    tree: arrays [m,...] of these rows.
  """
  if jax.process_count() == 1:
    return tree
  leaves, treedef = jax.tree.flatten(tree)
  parts = gather([rows.tolist(), [x.tolist() for x in leaves]])
  n = 1 + max(row for positions, _ in parts for row in positions)
  arrays = [np.zeros((n, *x.shape[1:]), x.dtype) for x in leaves]
  for positions, values in reversed(parts):
    for out, x in zip(arrays, values):
      # A process may have no row, of which a list has no shape.
      out[positions] = np.asarray(x, out.dtype).reshape(-1, *out.shape[1:])
  return treedef.unflatten(arrays)


@contextlib.contextmanager
def zero_first():
  """Runs the body in process 0 first, then in the others."""
  if not is_main():
    gather(None)
  yield
  if is_main():
    gather(None)


@contextlib.contextmanager
def explained():
  """Raises the failure of a collective as `Lost`, naming the lost process.

  Raises:
    Lost: names process, host and step of the process that is gone.
  """
  try:
    yield
  except Lost:
    raise
  except Exception as e:
    failure = _of_collective(e)
    if jax.process_count() == 1 or failure is None:
      raise
    gone = peers.active.culprit() if peers.active else ''
    if not peers.claimed():
      threading.Event().wait()  # another thread is ending the process
    raise Lost(
      f'process {jax.process_index()} of {jax.process_count()} lost the '
      f'others: {gone or first_line(failure)}. {peers.AGAIN}'
    ) from e


def _of_collective(e: BaseException | None) -> BaseException | None:
  """Returns the failed collective behind an error, or None.

  Errors of files and object stores do not count.
  """
  while e is not None and not isinstance(e, OSError):
    text = str(e)
    if not text.startswith(LOCAL_ERROR_PREFIXES):
      of_jax = isinstance(e, jax.errors.JaxRuntimeError)
      if of_jax or COLLECTIVE.search(text):
        return e
    e = e.__cause__ or e.__context__
  return None


@contextlib.contextmanager
def exit_on_error():
  """Ends this process at once if the body raises an error.

  The others wait for it in a collective, and a normal exit would wait for them.
  """
  try:
    yield
    if peers.active is not None:
      peers.active.leave()
      last_words.cancel()
  except BaseException as e:
    if _client() is None:
      raise
    if not isinstance(e, SystemExit):
      traceback.print_exc()
    sys.stderr.flush()
    if peers.active is not None:
      peers.active.leave(_cause(e))
      last_words.cancel()
    code = e.code if isinstance(e, SystemExit) else 1
    os._exit(code if isinstance(code, int) else 1)


def _cause(e: BaseException) -> str:
  """Returns why this process ends, for the messages of the others."""
  if isinstance(e, SystemExit) and e.__context__ is not None:
    e = e.__context__  # the error that a command has printed in one line
  if isinstance(e, Lost):
    return first_line(e)
  return f'{peers.active.myself()} ended: {first_line(e) or type(e).__name__}'
