"""A start compares run, code and data, and refuses or repairs differences."""

import json
import os

import pytest
import tiny_recipe
from etils import epath
from paths import ROOT
from test_hosts import finish, free_address, log_file, start

from jaxrl_reason import __main__, hosts
from jaxrl_reason import config as config_lib
from jaxrl_reason.checkpoints import origin as origin_lib
from jaxrl_reason.run import train
from jaxrl_reason.run.process import identity, workdir
from jaxrl_reason.run.records import (
  evaluation_files,
  events,
  lines,
  metrics,
  trackers,
)
from jaxrl_reason.verifiers import named_code


@pytest.fixture(scope='module')
def env(tmp_path_factory):
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  cache = tmp_path_factory.mktemp('cache')
  return os.environ | {'XDG_CACHE_HOME': str(cache), 'XLA_FLAGS': flags}


@pytest.mark.parametrize(
  'flags, words',
  [
    ('--config.seed=7', 'process 1 was started with config.seed=7 where'),
    ('--config.model.width=32', 'config.model.width=32 where process 0 has 16'),
    ('--num_processes=3', '--num_processes=3 where process 0 has 2'),
  ],
)
def test_a_process_started_with_something_else_is_named(
  env, tmp_path, flags, words
):
  address, workdir = free_address(), tmp_path / 'run'
  commands = [
    [
      'SIGKILL@-1',
      f'--config={ROOT}/tests/tiny_recipe.py',
      f'--workdir={workdir}',
      f'--coordinator={address}',
      '--num_processes=2',
      f'--process_id={i}',
      '--join_timeout_s=100',
      '--heartbeat_s=10',
      *([flags] if i else []),
    ]
    for i in range(2)
  ]
  logs = finish(start(env, workdir, commands), workdir, codes=(1,))
  for i, log in enumerate(logs):
    assert words in log, f'process {i}: {log[-3000:]}'
    assert 'Traceback' not in log
  assert not (workdir / 'checkpoints').exists()
  assert log_file(workdir, 0).exists()


def test_every_difference_counts_and_three_are_shown():
  first = {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'same': 5}
  other = {'a': 2, 'b': 3, 'd': 9, 'e': 1, 'same': 5}
  with pytest.raises(ValueError) as e:
    hosts._refuse_differing(3, first, other)
  text = str(e.value)
  assert 'process 3 was started with a=2 where process 0 has 1' in text
  assert "c='missing' where process 0 has 3 and 2 more" in text
  hosts._refuse_differing(3, first, dict(first))


class Source(list):
  """Returns examples of a split."""


class Tokenizer:
  vocab_size, eos_ids = 3, (1,)

  def __init__(self, shift=0):
    self._shift = shift

  def encode(self, text):
    return [ord(c) + self._shift for c in text]


class Splits:
  def __init__(self, n, change=None):
    rows = [{'prompt': f'{i}', 'answer': i} for i in range(n)]
    if change is not None:
      rows[change]['answer'] = -1
    self.train, self.heldout, self.harder = Source(rows), Source(rows[:2]), None
    self.pairs = {}


def test_another_row_or_token_is_another_run():
  one = identity.of_run(Splits(50), Tokenizer(), ('rl',))
  assert one == identity.of_run(Splits(50), Tokenizer(), ('rl',))
  row = identity.of_run(Splits(50, 31), Tokenizer(), ('rl',))
  assert row['data']['train'] != one['data']['train']
  assert row['data']['heldout'] == one['data']['heldout']
  token = identity.of_run(Splits(50), Tokenizer(1), ('rl',))
  assert token['tokenizer'] != one['tokenizer'] and token['data'] == one['data']
  fewer = identity.of_run(Splits(49), Tokenizer(), ('rl',))
  assert fewer['data'] != one['data']


def values(config) -> dict:
  return config_lib.read(config).json_values()


def test_the_code_that_a_recipe_names_is_compared(tmp_path, caplog):
  """Hosts with different rewards would train together, and an edited file would
  change a resumed run unnoticed.
  """
  rewards, config = tmp_path / 'rewards.py', tiny_recipe.get_config()
  rewards.write_text('def score(completion, example): return 1.0')
  config.rl.rewards.answer.reward = f'{rewards}:score'
  before = identity.of_start(values(config), 'w')
  origin = {'named_code': named_code.of_named_code(values(config))}
  rewards.write_text('def score(completion, example): return 0.0')
  after = identity.of_start(values(config), 'w')
  with pytest.raises(ValueError, match=f'the code of {rewards}='):
    hosts._refuse_differing(1, before, after)
  now = {'named_code': named_code.of_named_code(values(config))}
  origin_lib.check('w/4', {'origin': origin}, now, same_data=True)
  assert f'another version of {rewards}' in caplog.text
  caplog.clear()
  origin_lib.check('w/4', {'origin': now}, now, same_data=True)
  assert not caplog.text


@pytest.mark.parametrize(
  'name, files',
  [
    ('FOLDER/rewards.py:score', ['rewards.py', 'shared.py']),
    ('rewards:score', ['rewards.py', 'shared.py']),  # a module beside the run
    ('mine.rewards:score', ['mine/rewards.py', 'mine/deep/shared.py']),
  ],
)
def test_code_is_compared_with_all_that_it_imports_of_its_own(
  tmp_path, monkeypatch, name, files
):
  monkeypatch.syspath_prepend(tmp_path)
  config, (main, other) = (
    tiny_recipe.get_config(),
    map(tmp_path.joinpath, files),
  )
  config.rl.rewards.answer.reward = name.replace('FOLDER', str(tmp_path))
  for path in (main, other):
    for folder in path.relative_to(tmp_path).parents[:-1]:
      (tmp_path / folder).mkdir(exist_ok=True)
      (tmp_path / folder / '__init__.py').write_text('')
  line = 'from .deep import shared' if 'mine' in name else 'import shared'
  main.write_text(f'import json\n{line}\ndef score(*_): return shared.ONE')
  other.write_text('ONE = 1.0')
  found = [named_code.of_named_code(values(config))]
  for path, text in ((main, 'ONE = 2.0'), (other, 'ONE = 3.0')):
    before = path.read_text()
    path.write_text(text)
    found.append(named_code.of_named_code(values(config)))
    path.write_text(before)
  assert len({*(json.dumps(x) for x in found)}) == 3
  assert named_code.of_named_code(values(config)) == found[0]


def test_a_changed_schema_of_a_grammar_is_another_origin(tmp_path):
  path, found = tmp_path / 'schema.json', []
  for schema in ('{"type": "integer"}', '{"type": "boolean"}'):
    path.write_text(schema)
    values = {'rl': {'json_schema': str(path)}}
    found.append(named_code.of_named_code(values)[str(path)])
  assert found[0] != found[1]


def test_code_is_found_for_names_of_modules_and_not_for_other_texts(tmp_path):
  config = tiny_recipe.get_config()
  assert named_code.of_named_code(values(config)) == {}
  config.rl.rewards.answer.reward = 'xml.sax.saxutils:escape'
  assert list(named_code.of_named_code(values(config))) == ['xml.sax.saxutils']


@pytest.mark.parametrize('platform', ['tpu', 'cuda'])
@pytest.mark.parametrize(
  'flags',
  [
    f'run --config={ROOT}/tests/tiny_recipe.py --workdir=OUT',
    'generate --model=OUT --prompt=2+3',
    'evaluate --model=OUT --suite=task:countdown --out=OUT',
    f'study --config={ROOT}/configs/studies/samples.py --out=OUT',
  ],
  ids=lambda flags: flags.partition(' ')[0],
)
def test_a_platform_without_devices_is_named(
  monkeypatch, tmp_path, flags, platform, capsys
):
  """jax raises different errors for a missing device and a missing plugin."""
  monkeypatch.setenv('JAX_PLATFORMS', platform)
  error = RuntimeError(f"Unable to initialize backend '{platform}': no library")
  missing = AssertionError() if platform == 'cuda' else error

  def devices(*_):
    raise missing

  monkeypatch.setattr('jax.devices', devices)
  monkeypatch.setattr('jaxrl_reason.run.train.use_compile_cache', str)
  with pytest.raises(SystemExit):
    __main__.main(flags.replace('OUT', str(tmp_path)).split())
  last = capsys.readouterr().err.splitlines()[-1]
  assert f"error: jax found no device with JAX_PLATFORMS='{platform}'" in last


# Lines of no row: cut, of another kind, without a step, nested without end.
NO_ROWS = ['{"step": 4', '7', '{"stage": "rl"}', '[' * 100_000, '\ufffd']


def test_invalid_lines_do_not_stop_a_resumed_run(tmp_path, caplog):
  """They stop it neither at its start, nor when it draws its curves."""
  folder, row = epath.Path(tmp_path), {'step': 3, 'stage': 'rl', 'x': 1.0}
  path = folder / 'metrics.jsonl'
  path.write_text('\n'.join([json.dumps(row), *NO_ROWS, '']))
  assert train.reached(folder) == 3
  assert f'{path}, line 3 is damaged' in caplog.text
  found = lines.opened(folder, 3)
  assert found.last == 3
  found.close()


def test_damaged_samples_and_names_of_trackers_are_left_out(tmp_path, caplog):
  folder = epath.Path(tmp_path)
  row = {'problem': 0, 'sample': 0, 'prompt': 'p', 'answer': 'a'}
  row |= {'completion': 'c'}
  evaluation_files.write_samples(folder, [row], 0, 'sft')
  evaluation_files.write_samples(folder, [row], 8, 'rl')
  for path in (folder / 'samples').iterdir():
    path.write_text('\n'.join([*NO_ROWS[:2], path.read_text()]))
  evaluation_files.write_samples(
    folder, [row], 9, 'rl'
  )  # of a run that had more steps
  assert 'after 8 steps (rl)' in evaluation_files.before_and_after(folder, 8)
  assert 'after 9 steps' not in (folder / 'samples.txt').read_text()
  (folder / trackers.IDS).write_text('{"tensorboard": ')
  assert trackers.start(folder, {}, '') is not None
  assert f'{folder / trackers.IDS}, line 1 is damaged' in caplog.text


@pytest.mark.parametrize('damage', [b'{"seed": 1', b'\xff\xfe', b'[1]', b''])
def test_a_damaged_config_file_is_written_again(tmp_path, caplog, damage):
  config, path = tiny_recipe.get_config(), tmp_path / events.CONFIG
  path.write_bytes(damage)
  events.write_config(values(config), epath.Path(tmp_path), resuming=True)
  assert f'{path} is damaged' in caplog.text
  caplog.clear()
  config.seed = 3
  events.write_config(values(config), epath.Path(tmp_path), resuming=True)
  assert 'config.seed was 0 when this run began and is 3 now' in caplog.text


def test_an_order_of_rewards_is_compared(tmp_path, caplog):
  """The first reward is read as correctness."""
  config, folder = tiny_recipe.get_config(), epath.Path(tmp_path)
  parts = {name: dict(reward='task') for name in ('task', 'format')}
  starts = []
  for names in (('format', 'task'), ('task', 'format')):
    config.rl.rewards = {name: parts[name] for name in names}
    events.write_config(values(config), folder, resuming=bool(starts))
    starts.append(identity.of_start(values(config), 'w'))
  assert (
    'config.rl.rewards was format, task when this run began and is task, '
    'format now' in caplog.text
  )
  with pytest.raises(ValueError, match='config.rl.rewards='):
    hosts._refuse_differing(1, *starts)


def test_a_bad_byte_in_the_events_costs_that_line_only(tmp_path, caplog):
  folder = epath.Path(tmp_path)
  events.note(folder, 'start', step=0)
  events.note(folder, 'end', how='finished')
  path = tmp_path / events.NAME
  path.write_bytes(path.read_bytes().replace(b'"start"', b'"st\xffrt', 1))
  assert events.last_end(folder) == 'finished'
  events.note(folder, 'start', step=4)
  assert [e['event'] for e in events.read(folder)] == ['end', 'start']
  assert f'{path}, line 1 is damaged' in caplog.text


@pytest.mark.parametrize('remote', [False, True])
def test_a_gap_in_the_metrics_is_reported(tmp_path, caplog, remote):
  kind = lines.Parts if remote else lines.Appended
  path = epath.Path(tmp_path / ('metrics' if remote else 'metrics.jsonl'))
  opened = kind(path, None)
  for step in (2, 4, 6):
    opened.write(json.dumps({'step': step}) + '\n')
  opened.close()
  (file,) = path.glob('*') if remote else [path]
  file.write_bytes(file.read_bytes()[:-16])  # the last line, and a half
  writer = metrics.Writer.__new__(metrics.Writer)
  writer._lines = kind(path, 6)
  writer.warn_of_gap(2)
  assert 'are lost' not in caplog.text
  writer.warn_of_gap(6)
  assert 'metrics of steps 3 to 6 are lost' in caplog.text


@pytest.mark.parametrize('remote', [False, True])
def test_the_line_of_an_evaluation_made_again_is_removed(tmp_path, remote):
  kind = lines.Parts if remote else lines.Appended
  path = epath.Path(tmp_path / ('metrics' if remote else 'metrics.jsonl'))
  rows = [{'step': s, k: 1.0} for s in (2, 4) for k in ('train/x', 'eval/x')]
  opened = kind(path, None)
  for row in rows:
    opened.write(json.dumps(row) + '\n')
  opened.close()

  def left():
    (file,) = path.glob('*') if remote else [path]
    return [json.loads(x) for x in file.read_text().splitlines()]

  kind(path, 4).close()
  assert left() == rows
  kind(path, 4, owed=True).close()
  assert left() == rows[:3]


def test_a_store_whose_package_is_missing_is_named(monkeypatch):
  def missing(self, **kwargs):
    raise ImportError('Please install gcsfs to access Google Storage')

  path = epath.Path('gs://bucket/run')
  monkeypatch.setattr(type(path), 'mkdir', missing)
  with pytest.raises(ValueError, match='--workdir=gs://bucket/run.*extra gcs'):
    workdir._make(path)
