"""Copies of states on the hosts' disks: any layout is restored from any other,
bit for bit. Damaged, incomplete and outdated copies are not read.
"""

import json
import pathlib
import random
import socket
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint.experimental.emergency import (
  checkpoint_manager as orbax_emergency,
)

from jaxrl_reason import hosts, sharding
from jaxrl_reason.checkpoints import (
  emergency,
  emergency_note,
  manager,
  pieces,
  sums,
)
from jaxrl_reason.hosts import parcels, service
from jaxrl_reason.run.process import workdir as workdirs

WHERE = {'w': ('fsdp', 'tensor'), 'b': (), 'step': (), 'm': ('data', None)}


def state_of(value: float, mesh) -> dict:
  """Returns arrays of several dtypes and layouts, filled with `value`."""
  rng = np.random.default_rng(0)
  made = {
    'w': jnp.asarray(rng.random((8, 12)), jnp.bfloat16) + value,
    'b': jnp.arange(5, dtype=jnp.int8),
    'm': jnp.asarray(rng.random((4, 3)), jnp.float32) * value,
    'step': jnp.int32(value),
  }
  return {k: jax.device_put(x, where(k, mesh)) for k, x in made.items()}


def where(name, mesh):
  return NamedSharding(mesh, P(*WHERE[name]))


def bits(state) -> dict:
  return {k: np.asarray(x).tobytes() for k, x in state.items()}


def opened(tmp_path, every=2):
  """Returns the checkpoints of a workdir and of the host's disk."""
  workdir = epath.Path(tmp_path / 'w')
  workdir.mkdir(exist_ok=True)
  near = emergency.Emergency(workdir, every, str(tmp_path / 'disk'))
  return manager.Checkpoints(workdir, 2, near=near)


def found(checkpoints, mesh):
  """Returns (step, state) that a start would read."""

  def read(step, record, restore):
    template = jax.eval_shape(lambda: state_of(0.0, mesh))
    assert record['done'] == step
    return restore(template, {k: where(k, mesh) for k in template})

  out = checkpoints.latest(read) or (0, None)
  checkpoints.near.begin(out[0])
  return out


def keep(checkpoints, mesh, *steps):
  for step in steps:
    checkpoints.save_near(step, state_of(step, mesh), {'done': step})
  checkpoints.near.wait()


def files(tmp_path, disks: str = 'disk') -> list[pathlib.Path]:
  found = tmp_path.glob(f'{disks}/**/*')
  return sorted(p for p in found if p.is_file())


@pytest.mark.parametrize('shape', [(2, 2, 2), (1, 1, 1), (4, 2, 1), (1, 2, 4)])
def test_any_layout_is_made_from_any_other(tmp_path, shape):
  mesh = sharding.make_mesh((2, 2, 2))
  first = opened(tmp_path)
  assert found(first, mesh) == (0, None)
  keep(first, mesh, 2, 4)
  n = int(np.prod(shape))
  other = sharding.make_mesh(shape, jax.devices()[:n])
  step, state = found(opened(tmp_path), other)
  assert step == 4 and bits(state) == bits(state_of(4, mesh))
  assert state['w'].sharding == where('w', other)


def test_a_state_that_is_overwritten_meanwhile_is_kept_as_it_was(tmp_path):
  """Buffers are donated to the next step while the file is written."""
  mesh = sharding.make_mesh((2, 2, 2))
  state = {'w': jax.device_put(jnp.zeros((8, 12)), where('w', mesh))}
  held = pieces.on_host(state)
  step = jax.jit(lambda x: x + 1, donate_argnums=0)
  for _ in range(3):
    state['w'] = step(state['w'])
  state['w'].block_until_ready()
  assert not any(x.any() for *_, x in held)


def test_no_flipped_bit_and_no_cut_is_read(tmp_path):
  mesh = sharding.make_mesh((2, 2, 2))
  first = opened(tmp_path)
  found(first, mesh)
  first.save(2, state_of(2, mesh), {'done': 2})
  first.wait()
  keep(first, mesh, 4)
  path = next(p for p in files(tmp_path) if p.name.startswith('4.'))
  whole, rng = path.read_bytes(), random.Random(0)
  for i in range(40):
    at, data = rng.randrange(len(whole)), bytearray(whole)
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data if i % 2 else whole[:at])
    step, state = found(opened(tmp_path), mesh)
    assert step == 2 and bits(state) == bits(state_of(2, mesh)), (i, at)
    # Undo the note that the run resumed from step 2.
    note = tmp_path / 'w' / emergency_note.NOTE
    told = json.loads(note.read_text())
    told['starts'] = {k: 4 for k in told['starts']}
    note.write_text(json.dumps(told))
  path.write_bytes(whole)
  assert found(opened(tmp_path), mesh)[0] == 4


def test_checkpoints_of_an_abandoned_past_are_never_read(tmp_path):
  """A start resumed from step 2 although a copy of step 4 existed: its disk was
  missing, or emergency checkpoints were switched off.
  """
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  first.save(2, state_of(2, mesh), {'done': 2})
  first.wait()
  keep(first, mesh, 4)
  (tmp_path / 'disk').rename(tmp_path / 'away')
  assert found(opened(tmp_path), mesh)[0] == 2
  (tmp_path / 'disk').rename(tmp_path / 'new')
  (tmp_path / 'away').rename(tmp_path / 'disk')
  assert found(opened(tmp_path), mesh)[0] == 2
  second = opened(tmp_path)
  found(second, mesh)
  keep(second, mesh, 4)
  emergency_note.disown(epath.Path(tmp_path / 'w'))
  assert found(opened(tmp_path), mesh)[0] == 2


def test_repeated_kills_do_not_fill_the_disk(tmp_path):
  """Each start makes one emergency checkpoint before it is killed."""
  mesh, sizes = sharding.make_mesh((4, 2, 1)), []
  for step in range(2, 22, 2):
    start = opened(tmp_path)
    assert found(start, mesh)[0] == step - 2
    keep(start, mesh, step)
    sizes.append(len(files(tmp_path)))
  assert max(sizes) == 3
  # The newest copy is damaged, the previous one is not.
  newest = max(files(tmp_path), key=lambda path: int(path.name.split('.')[0]))
  newest.write_bytes(newest.read_bytes()[:-1])
  assert found(opened(tmp_path), mesh)[0] == 18


def test_a_copy_of_a_faster_process_is_kept(tmp_path):
  """It comes before this process begins to write the same step."""
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  keep(first, mesh, 2)
  home = files(tmp_path)[0].parent
  for step in (4, 6, 8):
    (home / f'{step}.1.2').write_bytes(b'of another process')
    keep(first, mesh, step)
  names = [p.name for p in files(tmp_path)]
  assert names == ['6.0.1', '6.1.2', '8.0.1', '8.1.2']


def test_a_newer_checkpoint_of_the_workdir_comes_first(tmp_path):
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  keep(first, mesh, 2, 4)
  for step in (3, 6):
    first.save(step, state_of(step, mesh), {'done': step})
  first.wait()
  assert found(opened(tmp_path), mesh)[0] == 6
  # If step 6 is damaged, the copy of step 4 is newer than the step before, 3.
  note = tmp_path / 'w' / emergency_note.NOTE
  (tmp_path / 'w/checkpoints/6/record/metadata').write_text('{}')
  assert found(opened(tmp_path), mesh)[0] == 4
  assert json.loads(note.read_text())['starts']


def test_a_run_that_saves_nothing_leaves_the_copy_it_was_restored_from(
  tmp_path,
):
  """A signal comes after the start and before the first step."""
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  first.save(2, state_of(2, mesh), {'done': 2})
  first.wait()
  keep(first, mesh, 4)
  for _ in range(2):
    stopped = opened(tmp_path)
    assert found(stopped, mesh)[0] == 4
    stopped.near.close(max(stopped.steps()))
  last = opened(tmp_path)
  assert found(last, mesh)[0] == 4
  last.save(5, state_of(5, mesh), {'done': 5})
  last.wait()
  last.near.close(max(last.steps()))
  assert not files(tmp_path)
  assert found(opened(tmp_path), mesh)[0] == 5


def test_two_copies_are_kept_and_a_full_disk_does_not_stop_the_run(
  tmp_path, monkeypatch, caplog
):
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  keep(first, mesh, 2)
  keep(first, mesh, 4)
  keep(first, mesh, 6)
  assert [p.name for p in files(tmp_path)] == ['4.0.1', '6.0.1']

  def full(*_):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as m:
    m.setattr(pieces, 'write', full)
    keep(first, mesh, 8, 10)
  assert caplog.text.count('could not be kept: [Errno 28] No space left') == 1
  assert found(opened(tmp_path), mesh)[0] == 6


def test_the_end_of_a_stage_is_saved_before_the_next_stage(
  tmp_path, monkeypatch
):
  """A start from an emergency checkpoint of the next stage never saves it."""
  write = sums.write

  def slow(folder):
    time.sleep(0.5)
    write(folder)

  monkeypatch.setattr(sums, 'write', slow)
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  first.save(4, state_of(4, mesh), {'done': 4, 'finished': True})
  assert (tmp_path / 'w/checkpoints/4').exists()


@pytest.fixture
def two(tmp_path, monkeypatch):
  """Returns a function that saves a step in two processes, and the writes that
  fail: {(process, step)}.
  """
  fails, write = set(), pieces.write
  workdir = epath.Path(tmp_path / 'w')
  workdir.mkdir()
  processes = [
    emergency.Emergency(workdir, 2, str(tmp_path / f'{i}')) for i in range(2)
  ]
  for i, process in enumerate(processes):
    process._me, process._n, process._start = i, 2, 'a0'
    process._others = types.SimpleNamespace(put=lambda to, name: None)

  def write_unless(path, step, *rest):
    if (int(path.name.split('.')[1]), step) in fails:
      raise OSError(28, 'No space left on device')
    write(path, step, *rest)

  def save(*steps):
    for step in steps:
      for process in processes:
        process.wait()
      for process in processes:
        process.save(step, {'w': jnp.ones(3)}, {})
    for process in processes:
      process.wait()

  monkeypatch.setattr(pieces, 'write', write_unless)
  monkeypatch.setattr(
    hosts, 'gather', lambda _: [sorted(p._done) for p in processes]
  )
  return save, fails


def test_a_whole_set_stays_if_the_writes_of_processes_fail_in_turn(
  two, tmp_path
):
  """A step that one process has finished and another has passed is no set."""
  save, fails = two
  fails |= {(0, 4), (1, 6), (0, 8), (1, 8)}
  save(2, 4, 6, 8)
  assert {'2.0.2', '2.1.2'} <= {p.name for p in files(tmp_path, '[01]')}
  save(10, 12)
  names = {f'{step}.{i}.2' for step in (10, 12) for i in range(2)}
  assert {p.name for p in files(tmp_path, '[01]')} == names


def test_unfinished_files_of_killed_starts_are_removed(tmp_path):
  mesh = sharding.make_mesh((4, 2, 1))
  first = opened(tmp_path)
  found(first, mesh)
  keep(first, mesh, 2)
  own = files(tmp_path)[0]
  for end in ('123', 'abcd'):  # a process id; a token of a peer's copy
    own.with_name(f'.4.0.1.{end}').write_bytes(b'begun')
  assert found(opened(tmp_path), mesh)[0] == 2
  assert files(tmp_path) == [own]


def test_a_start_that_saved_nothing_is_forgotten(tmp_path):
  """The next one may then have another model, tokenizer or data."""
  mesh, workdir = sharding.make_mesh((4, 2, 1)), epath.Path(tmp_path / 'w')
  first = opened(tmp_path)
  assert found(first, mesh)[0] == 0
  assert not workdirs.may_resume(workdir)
  second = opened(tmp_path)
  found(second, mesh)
  keep(second, mesh, 2)
  assert workdirs.may_resume(workdir)
  assert found(opened(tmp_path), mesh)[0] == 2


@pytest.mark.parametrize(
  'folder, words',
  [
    ('$NOWHERE_AT_ALL/x', 'NOWHERE_AT_ALL.*not in the environment'),
    ('/proc/nowhere', r'checkpoint\.emergency_dir: /proc/nowhere.*cannot be'),
  ],
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path, folder, words):
  with pytest.raises((ValueError, OSError), match=words):
    emergency.Emergency(epath.Path(tmp_path), 2, folder)


@pytest.fixture
def served(tmp_path, monkeypatch):
  """Serves `there` as process 0, and requests it as another process."""
  state = types.SimpleNamespace(coordinator_address='localhost:1')
  monkeypatch.setattr(service, 'state', lambda: state)
  monkeypatch.setattr(hosts, 'gather', lambda value: [value])
  made = parcels.Parcels(tmp_path / 'there')
  yield made
  made.close()


def test_hosts_send_files_to_each_other(served, tmp_path):
  name, data = 'ab12/4.0.2', random.Random(0).randbytes(3 << 20)
  here = tmp_path / 'here' / name
  here.parent.mkdir(parents=True)
  here.write_bytes(data)
  there, served._folder = tmp_path / 'there' / name, tmp_path / 'here'
  served.put(0, name)
  assert there.read_bytes() == data
  assert served.read(0, name, 5, 1000) == data[5:1005]
  served.put(0, name)  # exists, so it is not sent again
  with pytest.raises(OSError, match='process 0: .* has 4 of 10 bytes there'):
    served.read(0, name, len(data) - 4, 10)


@pytest.mark.parametrize(
  'secret, name, words',
  [
    ('', 'ab12/4.0.2', 'not a process of this run'),
    ('guess', 'ab12/4.0.2', 'not a process of this run'),
    (None, '../../etc/passwd', 'is not the name'),
    (None, 'ab12/../../x', 'is not the name'),
    (None, '/etc/passwd', 'is not the name'),
  ],
)
def test_requests_with_another_secret_or_file_are_refused(
  served, secret, name, words
):
  if secret is not None:
    served._secret = secret
  with pytest.raises(OSError, match=words):
    served.read(0, name, 0, 10)


def test_a_server_listens_on_the_address_of_the_job_only(served):
  assert served._server.server_address[0] == served._where[0][0] == '127.0.0.1'


@pytest.mark.parametrize('data', [b'[' * 4000, b'{"do": "get"}\n', b'\xff\n'])
def test_unsigned_requests_are_not_parsed(served, data, monkeypatch, capfd):
  def parse(text):
    raise AssertionError(f'parsed {text!r:.80}')

  monkeypatch.setattr(parcels.json, 'loads', parse)
  with socket.create_connection(served._where[0], 10) as s:
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    answer = s.makefile('rb').read()
  assert b'not a process of this run' in answer
  assert 'Traceback' not in ''.join(capfd.readouterr())


def test_a_signed_request_that_is_nested_too_deep_is_an_error(served, capfd):
  with socket.create_connection(served._where[0], 10) as s:
    line = b'[' * 4000 + b'\n'
    challenge = s.recv(parcels.CHALLENGE, socket.MSG_WAITALL)
    s.sendall(parcels._signature(served._secret, challenge, line) + line)
    assert b'error' in s.makefile('rb').read()
  assert 'Traceback' not in ''.join(capfd.readouterr())


@pytest.mark.parametrize(
  'line', [b'[' * 4000, b'5', b'{}', b'{"size": 1e999}', b'{"size": [1]}', b'']
)
def test_an_unsigned_reply_is_an_error(served, line):
  with socket.create_server(('127.0.0.1', 0)) as stranger:
    served._where = [stranger.getsockname()]

    def answer():
      with stranger.accept()[0] as s:
        s.sendall(b'0' * parcels.CHALLENGE + line + b'\n')
        s.shutdown(socket.SHUT_WR)
        s.makefile('rb').read()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(OSError, match='process 0 at 127.0.0.1.* answer'):
      served.read(0, 'ab12/4.0.2', 0, 10)
    thread.join(10)


def test_a_request_cannot_be_sent_twice(served):
  """Each connection has its own challenge."""
  line = b'{"do": "get", "name": "ab12/4.0.2", "first": 0, "n": 1}\n'
  old = parcels._signature(served._secret, b'0' * parcels.CHALLENGE, line)
  with socket.create_connection(served._where[0], 10) as s:
    s.sendall(old + line)
    assert b'not a process of this run' in s.makefile('rb').read()


def test_idle_connections_use_few_threads_and_are_closed(
  served, tmp_path, monkeypatch
):
  monkeypatch.setattr(parcels, 'GREETING_S', 0.3)
  (tmp_path / 'there' / 'ab12').mkdir(parents=True)
  (tmp_path / 'there' / 'ab12' / '4.0.2').write_bytes(b'data')
  idle = [socket.create_connection(served._where[0], 10) for _ in range(200)]
  assert served.read(0, 'ab12/4.0.2', 0, 4) == b'data'
  handlers = [t for t in threading.enumerate() if 'process_request' in t.name]
  assert len(handlers) <= parcels.CONNECTIONS
  for s in idle:
    s.close()


def test_an_interrupted_copy_is_not_kept(served, tmp_path):
  with served._asked(0, do='put', name='ab12/4.0.2', size=100) as f:
    assert parcels._heard(f, 'there') == 0
    f.write(b'half')
  threads = [t for t in threading.enumerate() if 'process_request' in t.name]
  for thread in threads:
    thread.join(10)
  assert not [p for p in (tmp_path / 'there').rglob('*') if p.is_file()]


def test_a_peer_whose_disk_is_full_does_not_fill_this_one(
  tmp_path, monkeypatch
):
  """Files of at most two sets are kept, with the last complete one."""
  mesh = sharding.make_mesh((2, 2, 2))
  checkpoints = opened(tmp_path)
  checkpoints.near.begin(0)
  keep(checkpoints, mesh, 2, 4)
  near, full = checkpoints.near, []

  def put(peer, name):
    full.append(name)
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(near, '_others', types.SimpleNamespace(put=put))
  for step in range(6, 40, 2):
    keep(checkpoints, mesh, step)
    steps = {int(p.name.partition('.')[0]) for p in files(tmp_path)}
    assert len(steps) <= 3 and 4 in steps and step in steps
  assert len(full) == 17
  monkeypatch.setattr(near, '_others', None)
  keep(checkpoints, mesh, 40, 42)
  assert {p.name for p in files(tmp_path)} == {'40.0.1', '42.0.1'}


def test_orbax_keeps_nothing_on_hosts_whose_weights_are_sharded(tmp_path):
  """This is why `emergency` exists: orbax's manager needs a mesh axis along
  which the whole state is replicated. Without such an axis, it writes only to
  the workdir; ours keeps a state of the same mesh on the hosts.
  """
  mesh = sharding.make_mesh((1, 8, 1))
  state = {
    'w': jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P('fsdp')))
  }
  local, shared = tmp_path / 'local', tmp_path / 'shared'
  local.mkdir()
  shared.mkdir()
  options = orbax_emergency.CheckpointManagerOptions(
    local=orbax_emergency.LocalCheckpointOptions(save_interval_steps=1),
    persistent=orbax_emergency.PersistentCheckpointOptions(
      save_interval_steps=100
    ),
  )
  theirs = orbax_emergency.CheckpointManager(
    local, shared, mesh, state, options=options
  )
  theirs.save(1, ocp.args.Composite(state=ocp.args.PyTreeSave(state)))
  theirs.wait_until_finished()
  theirs.close()
  assert not list(local.iterdir())
  near = opened(tmp_path).near
  near.begin(0)
  near.save(1, state, {})
  near.wait()
  assert files(tmp_path)
