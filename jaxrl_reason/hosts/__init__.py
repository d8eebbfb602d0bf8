"""Several processes as one run: joining them, and what their hosts tell each
other beside the devices.

  join(...)           jax.distributed, by flags or by the cluster's environment
  gather(value)       every process's value, on every process
  zero_first()        files: process 0 makes them, the others find them
  together()          an error in one process ends it at once, and so all
  meet()              before what all must begin at about the same time

Every process runs the same program on the same mesh; what differs is the rows
it reads, verifies and decodes (`sharding.my_rows`). What hosts say to each
other goes through jax's coordination service, not through a collective: it
waits for no device. All processes must call `gather` in the same order.
"""

import contextlib
import itertools
import json
import os
import sys
import threading
import traceback
from typing import Any

import jax
import numpy as np

from jaxrl_reason.hosts import last_words, peers
from jaxrl_reason.hosts.joining import join as join
from jaxrl_reason.hosts.peers import at as at
from jaxrl_reason.hosts.service import client as _client
from jaxrl_reason.hosts.service import first_line, state

# Until one host gives up on another that is alive and late: a compilation on
# one of them, a slow disk. Dead ones are found by their heartbeat.
PATIENCE_S = 3600
_turns = itertools.count()
# How errors begin that a process has of its own, whoever else is there.
OWN = ('RESOURCE_EXHAUSTED', 'INVALID_ARGUMENT', 'UNIMPLEMENTED')


class Lost(RuntimeError):
  """What the processes do together failed: one of them has gone, or a device
  has.
  """


def is_main() -> bool:
  """Tells whether this process writes what is written once: logs, metrics,
  plots.
  """
  return jax.process_index() == 0


def gather(value: Any) -> list:
  """Returns every process's value, in their order; numbers, texts, lists and
  dictionaries by text (JSON).
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
    who = peers.active.behind() if peers.active else 'somebody'
    raise Lost(
      f'process {me} of {jax.process_count()} waited {PATIENCE_S} s for the '
      f'others; the last is {who}. {peers.AGAIN}'
    ) from e
  found = dict(client.key_value_dir_get_bytes(key(turn)))
  # All are past the turn before, so nobody reads what was said then.
  if turn:
    client.key_value_delete(f'{key(turn - 1)}{me}')
  by_process = {int(k.rpartition('/')[2]): v for k, v in found.items()}
  return [json.loads(by_process[i]) for i in range(jax.process_count())]


def meet() -> None:
  """Waits for all processes on the host: collectives that connect, as gloo's
  do, give up after 30 s on one that is late.
  """
  gather(None)


def refuse_unlike(facts: dict[str, Any]) -> None:
  """Refuses processes that were started with different things.

  Asks the coordination service only, so it can come before jax looks for
  devices, which waits for as many processes as this one was told of.

  Args:
    facts: by the names that an error shall have.

  Raises:
    ValueError: on every process, the same: who differs, and in what.
  """
  client = _client()
  if client is None:
    return
  told = facts | {'--num_processes': state().num_processes}
  key = f'jaxrl_reason/facts/{next(_turns)}'
  client.key_value_set(f'{key}/{state().process_id}', json.dumps(told))

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
  """Arrays of all rows of a batch, on every process.

  Args:
    rows: int [m], positions of this process's rows; a row that several
      processes have counts as the first one's, on all of them.
    tree: arrays [m,...] of them.
  """
  if jax.process_count() == 1:
    return tree
  leaves, treedef = jax.tree.flatten(tree)
  said = gather([rows.tolist(), [x.tolist() for x in leaves]])
  n = 1 + max(row for positions, _ in said for row in positions)
  whole = [np.zeros((n, *x.shape[1:]), x.dtype) for x in leaves]
  for positions, values in reversed(said):
    for out, x in zip(whole, values):
      out[positions] = np.asarray(x, out.dtype)
  return treedef.unflatten(whole)


@contextlib.contextmanager
def zero_first():
  """Process 0 does what is inside, then the others."""
  if not is_main():
    gather(None)
  yield
  if is_main():
    gather(None)


@contextlib.contextmanager
def explained():
  """Raises a failure of what the processes do together, as Lost, with who is
  gone.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as e:
    if jax.process_count() == 1 or str(e).startswith(OWN):
      raise
    who = peers.active.culprit() if peers.active else ''
    if not peers.claimed():
      threading.Event().wait()  # the thread that watches is ending all
    raise Lost(
      f'process {jax.process_index()} of {jax.process_count()} lost the '
      f'others: {who or first_line(e)}. {peers.AGAIN}'
    ) from e


@contextlib.contextmanager
def together():
  """Ends this process at once where something ends it in an error: the others
  wait for it in a collective, and its own exit would wait for them.
  """
  try:
    yield
    if peers.active is not None:
      peers.active.leave()
      last_words.none()
  except BaseException as e:
    if _client() is None:
      raise
    if not isinstance(e, SystemExit):
      traceback.print_exc()
    sys.stderr.flush()
    if peers.active is not None:
      peers.active.leave(_cause(e))
      last_words.none()
    code = e.code if isinstance(e, SystemExit) else 1
    os._exit(code if isinstance(code, int) else 1)


def _cause(e: BaseException) -> str:
  """Why this process ends, for the others to say."""
  if isinstance(e, SystemExit) and e.__context__ is not None:
    e = e.__context__  # what a command has said in its own line
  if isinstance(e, Lost):
    return first_line(e)
  return f'{peers.active.myself()} ended: {first_line(e) or type(e).__name__}'
