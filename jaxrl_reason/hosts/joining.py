"""Joins this process to the others of a run, before jax looks for devices."""

import errno
import os
import socket
import sys
import threading

import jax

from jaxrl_reason.hosts import last_words, peers
from jaxrl_reason.hosts.service import first_line


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  join_timeout_s: int = 300,
  heartbeat_s: int = 60,
) -> None:
  """Joins this process to the others of a run, before jax looks for devices.

  The first three arguments default to JAX_COORDINATOR_ADDRESS,
  JAX_NUM_PROCESSES and JAX_PROCESS_ID, and then to the cluster (Cloud TPU, GKE,
  SLURM, Open MPI, by jax's own detection). Without any of these the process is
  alone. If the others do not join in time, it prints an error and ends.

  Args:
    coordinator: host:port of process 0.
    join_timeout_s: time within which all must reach the coordinator.
    heartbeat_s: silence after which a process is lost, and all stop.

  Raises:
    ValueError: some of the three are missing or out of range, or the port of
      the coordinator is taken.
  """
  where = _address(coordinator, num_processes, process_id)
  if where is None:
    return
  if where[0] and where[2] == 0:
    _refuse_taken(where[0])
  # jax's own handler would take SIGTERM away from the run's (`signals`).
  jax.config.update('jax_enable_preemption_service', False)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # At its own timeout jax aborts with a C++ stack: print an error before.
  address = where[0] or 'the detected address'
  me = '' if where[2] is None else f'process {where[2]} of {where[1]}: '
  waiting = threading.Timer(
    join_timeout_s, _give_up, (me, address, join_timeout_s)
  )
  waiting.daemon = True
  waiting.start()
  last_words.begin()
  last_words.prepare(
    f'error: {me}jax ended it while the processes met at {address}. Does '
    'process 0 run, and has each its own --process_id?'
  )
  try:
    jax.distributed.initialize(
      *where,
      initialization_timeout=join_timeout_s + 60,
      # jax aborts without naming a process; `peers` ends the run earlier.
      heartbeat_timeout_seconds=2 * heartbeat_s + 60,
      shutdown_timeout_seconds=heartbeat_s,
    )
  except jax.errors.JaxRuntimeError as e:
    last_words.cancel()
    raise ValueError(
      f'process {where[2]} of --num_processes={where[1]} could not join the '
      f'others at {address}: {first_line(e)}. Do all name the same '
      '--num_processes, and has each its own --process_id?'
    ) from e
  finally:
    waiting.cancel()
  peers.begin(heartbeat_s)


def find_devices() -> None:
  """Initializes jax's devices; with several processes, all must call it.

  Raises:
    ValueError: JAX_PLATFORMS names a platform that is not there.
  """
  try:
    jax.devices()
  # jax asserts that a platform which it knows has its plugin.
  except (RuntimeError, AssertionError) as e:
    platforms = os.environ.get('JAX_PLATFORMS', '')
    why = first_line(e) or 'its plugin is missing'
    raise ValueError(
      f'jax found no device with JAX_PLATFORMS={platforms!r}: {why}. Unset it, '
      'install the extra for the platform (JAXRL_EXTRAS=tpu or cuda), or run '
      'on a host that has one'
    ) from e


def _address(coordinator, num_processes, process_id) -> tuple | None:
  """Returns (coordinator, number of processes, index of this one).

  The three are None if the cluster knows them; the result is None if the
  process is alone.
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


def _give_up(me: str, coordinator: str, seconds: int) -> None:
  last_words.cancel()
  print(
    f'error: {me}not all processes met at --coordinator={coordinator} within '
    f'{seconds} s. Is process 0 running there, is the port free and open, do '
    'all name the same --num_processes, and has each its own --process_id?',
    file=sys.stderr,
    flush=True,
  )
  os._exit(1)


def _refuse_taken(coordinator: str) -> None:
  """Refuses a port that has a listener: jax would end with a segfault."""
  port = int(coordinator.rpartition(':')[2])
  kind = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
  with socket.socket(kind, socket.SOCK_STREAM) as s:
    # A port that a process has just left may be used again at once.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      s.bind(('', port))
    except OSError as e:
      if e.errno not in (errno.EADDRINUSE, errno.EACCES):
        raise
      raise ValueError(
        f'--coordinator={coordinator}: process 0 cannot use port {port} of '
        f'{socket.gethostname()} ({e.strerror}). Choose a free port above 1023 '
        'for all processes; one of them alone has --process_id=0'
      ) from e


def _cluster_of_several() -> bool:
  # jax has no public function for this before `initialize`, which raises if it
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
