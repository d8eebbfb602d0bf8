"""Several processes as one run: joining them, and what their hosts tell each
other beside the devices.

  join(...)           jax.distributed, by flags or by the cluster's environment
  gather(value)       every process's value, on every process
  zero_first()        files: process 0 makes them, the others find them
  together()          an error in one process ends it at once, and so all

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
import time
import traceback
from typing import Any

import jax
import numpy as np

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


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  join_timeout_s: int = 300,
  heartbeat_s: int = 60,
) -> None:
  """Makes this process one of several, before jax looks for devices.

  What of the three is not given is taken from JAX_COORDINATOR_ADDRESS,
  JAX_NUM_PROCESSES and JAX_PROCESS_ID, and then from the cluster (Cloud TPU,
  GKE, SLURM, Open MPI, by jax's own detection). Without any it is alone.

  Args:
    coordinator: host:port of process 0.
    join_timeout_s: until all must have reached the coordinator.
    heartbeat_s: after which a silent process counts as dead, and all stop.

  Raises:
    ValueError: some of the three are missing, or out of range. Where the others
      do not come, the process says so and ends.
  """
  where = _whereabouts(coordinator, num_processes, process_id)
  if where is None:
    return
  # The run has its own way to stop on SIGTERM; this one would take the signal.
  jax.config.update('jax_enable_preemption_service', False)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # At its own timeout jax aborts with a C++ stack: speak first.
  named = where[0] or 'the detected address'
  waiting = threading.Timer(join_timeout_s, _give_up, (named, join_timeout_s))
  waiting.daemon = True
  waiting.start()
  try:
    jax.distributed.initialize(
      *where,
      initialization_timeout=join_timeout_s + 60,
      heartbeat_timeout_seconds=heartbeat_s,
      shutdown_timeout_seconds=heartbeat_s,
    )
  except jax.errors.JaxRuntimeError as e:
    raise ValueError(
      f'process {where[2]} of --num_processes={where[1]} could not join the '
      f'others at {named}: {_first_line(e)}. Do all name the same '
      '--num_processes, and each another --process_id?'
    ) from e
  finally:
    waiting.cancel()


def _whereabouts(coordinator, num_processes, process_id) -> tuple | None:
  """(coordinator, number of processes, this one's), None where the cluster
  knows; or None: alone.
  """
  given = {
    '--coordinator': coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS'),
    '--num_processes': _number(num_processes, 'JAX_NUM_PROCESSES'),
    '--process_id': _number(process_id, 'JAX_PROCESS_ID'),
  }
  missing = [k for k, v in given.items() if v is None]
  if missing and _cluster_of_several():
    return tuple(given.values())
  if len(missing) == 3:
    return None
  if missing:
    raise ValueError(
      f'{", ".join(given)} (or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, '
      f'JAX_PROCESS_ID) come together; {missing[0]} is not given'
    )
  _check(*given.values())
  return tuple(given.values())


def _number(given: int | None, variable: str) -> int | None:
  text = os.environ.get(variable)
  if given is not None or not text:
    return given
  if not text.isdigit():
    raise ValueError(f'{variable}={text!r} in the environment is no number')
  return int(text)


def _give_up(coordinator: str, seconds: int) -> None:
  print(
    f'error: not all processes met at --coordinator={coordinator} within '
    f'{seconds} s. Is process 0 running there, is the port free and open, and '
    'do all name the same --num_processes?',
    file=sys.stderr,
    flush=True,
  )
  os._exit(1)


def _cluster_of_several() -> bool:
  # jax has no public way to ask before `initialize`, which raises where it
  # finds nothing.
  from jax._src.clusters import ClusterEnv

  for kind in ClusterEnv._cluster_types:
    if not kind.opt_in_only_method and kind.is_env_present():
      return kind.get_process_count() > 1
  return False


def _check(coordinator: str, num_processes: int, process_id: int) -> None:
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdigit():
    raise ValueError(f'--coordinator={coordinator!r}: write host:port')
  if not 0 <= process_id < num_processes:
    raise ValueError(
      f'--process_id={process_id} is not in 0..{num_processes - 1} '
      f'(--num_processes={num_processes})'
    )


def _first_line(e: BaseException) -> str:
  return str(e).strip().partition('\n')[0][:300]


def is_main() -> bool:
  """Whether this process writes what is written once: logs, metrics, plots."""
  return jax.process_index() == 0


def _client():
  # The coordination service has no public name; orbax takes it from here too.
  from jax._src import distributed

  return distributed.global_state.client


def gather(value: Any) -> list:
  """Every process's value, in their order; numbers, texts, lists and
  dictionaries by text (JSON).
  """
  if jax.process_count() == 1:
    return [value]
  client, turn, me = _client(), next(_turns), jax.process_index()

  def key(turn):
    return f'jaxrl_reason/{turn:09d}/'

  text = json.dumps(value).encode()
  client.key_value_set_bytes(f'{key(turn)}{me}', text)
  client.wait_at_barrier(f'jaxrl_reason/{turn}', PATIENCE_S * 1000)
  found = dict(client.key_value_dir_get_bytes(key(turn)))
  # All are past the turn before, so nobody reads what was said then.
  if turn:
    client.key_value_delete(f'{key(turn - 1)}{me}')
  by_process = {int(k.rpartition('/')[2]): v for k, v in found.items()}
  return [json.loads(by_process[i]) for i in range(jax.process_count())]


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
  from jax._src import distributed

  state, turn = distributed.global_state, next(_turns)
  told = facts | {'--num_processes': state.num_processes}
  key = f'jaxrl_reason/facts/{turn}'
  client.key_value_set(f'{key}/{state.process_id}', json.dumps(told))

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
  """A failure of what the processes do together, as Lost."""
  try:
    yield
  except jax.errors.JaxRuntimeError as e:
    if jax.process_count() == 1 or str(e).startswith(OWN):
      raise
    raise Lost(
      f'process {jax.process_index()} of {jax.process_count()} lost the '
      f'others: {_first_line(e)}. One of them has stopped or cannot be '
      'reached (its own log says why), so all stop. Start the same command '
      'on every host again to go on from the last checkpoint.'
    ) from e


@contextlib.contextmanager
def together():
  """What ends this process in an error ends it at once: the others wait for it
  in a collective, and its own exit would wait for them.
  """
  try:
    yield
  except BaseException as e:
    if _client() is None:
      raise
    if not isinstance(e, SystemExit):
      traceback.print_exc()
    sys.stderr.flush()
    if _is_first():
      # It holds the coordinator: without it the others are ended in the
      # middle of the word they say about the same error.
      time.sleep(2)
    code = e.code if isinstance(e, SystemExit) else 1
    os._exit(code if isinstance(code, int) else 1)


def _is_first() -> bool:
  from jax._src import distributed

  return distributed.global_state.process_id == 0
