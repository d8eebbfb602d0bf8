"""Runs in an object store are converted, evaluated and reported."""

import json
import types

import object_store
import pytest
from etils import epath
from small import small_model

from jaxrl_reason import __main__, curate, report, trees
from jaxrl_reason.checkpoints import conversion, other_run
from jaxrl_reason.data import example_files, row_index
from jaxrl_reason.evals import loading
from jaxrl_reason.models import families

RUN = 'gs://bucket/run'


@pytest.fixture
def run(monkeypatch):
  """Writes the small files of a run; orbax reads its arrays from the local
  copy.
  """
  object_store.install(monkeypatch)
  config, _, params = small_model(vocab=16, bias=False)
  folder = epath.Path(RUN)
  (folder / 'checkpoints' / '3').mkdir(parents=True, exist_ok=True)
  (folder / 'checkpoints' / '3' / 'record').write_text('{}')
  h = families.to_hf(config, 64)
  (folder / 'hf_config.json').write_text(json.dumps(h))
  (folder / 'config.json').write_text(json.dumps({'seed': 0}))
  (folder / 'hf' / 'config.json').write_text(json.dumps(h))
  (folder / 'hf' / 'tokenizer.json').write_text('{}')
  row = {'step': 3, 'stage': 'rl', 'train/loss': 0.5}
  (folder / 'metrics' / '000000.jsonl').write_text(json.dumps(row) + '\n')
  flat = trees.flatten(params)
  stored = types.SimpleNamespace(
    shapes=flat,
    read=lambda where: {k: x for k, x in flat.items() if k in where},
  )
  monkeypatch.setattr(other_run, 'Weights', lambda *_: stored)
  return RUN


def test_a_run_is_converted_into_a_local_folder(run, tmp_path):
  line = conversion.convert(run, tmp_path / 'out')
  assert line.endswith(f': {tmp_path / "out"}')
  names = {p.name for p in (tmp_path / 'out').iterdir()}
  assert names == {'config.json', 'model.safetensors', 'tokenizer.json'}
  with pytest.raises(ValueError, match='must be a folder on this machine'):
    conversion.convert(run, 'gs://bucket/out')


def test_a_run_is_found_for_evaluation(run, monkeypatch):
  monkeypatch.setattr(loading, '_steps', lambda folder: [3])
  assert loading.full_name(run) == f'{run}@3'
  assert loading.split_step(f'{run}@3') == (run, 3)
  assert loading.run_of(f'{run}@3')['seed'] == 0


def test_a_report_is_written_beside_the_run(run):
  args = report.parser().parse([run])
  assert str(report.run(args)) == f'{run}/report.html'
  assert '<html' in epath.Path(run, 'report.html').read_text().lower()


@pytest.mark.parametrize('kind', ['jsonl', 'parquet'])
def test_problems_are_read_from_the_store_once(
  run, tmp_path, monkeypatch, kind
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  rows = [{'question': f'What is {i} + 1?', 'answer': i + 1} for i in range(40)]
  local = tmp_path / f'a.{kind}'
  if kind == 'parquet':
    parquet = pytest.importorskip('pyarrow.parquet')
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(rows), local)
  else:
    local.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  remote = epath.Path(f'gs://bucket/a.{kind}')
  remote.write_bytes(local.read_bytes())
  want = {k: [*v] for k, v in example_files.load(local, heldout=0.3).items()}
  assert sum(map(len, want.values())) == 40
  found = example_files.load(remote, heldout=0.3)
  assert {k: [*v] for k, v in found.items()} == want
  monkeypatch.setattr(row_index, '_make', None)  # from the cache
  again = example_files.load(remote, heldout=0.3)
  assert {k: [*v] for k, v in again.items()} == want
  options = curate.options(
    curate.parser().parse([f'--file={remote}', f'--out={tmp_path / "out"}'])
  )
  monkeypatch.undo()
  assert options.file == remote


@pytest.mark.parametrize(
  'flags',
  [
    'grade --file=gs://bucket/a.jsonl --reward=math',
    'grade --file=a.jsonl --out=gs://bucket/out.jsonl --reward=math',
    'generate --model=m --file=gs://bucket/a.jsonl --out=b',
    'generate --model=m --file=a.jsonl --out=gs://bucket/b.jsonl',
    'curate --file=gs://bucket/a.jsonl --out=gs://bucket/out',
    'convert --from=gs://bucket/run --to=gs://bucket/out',
  ],
)
def test_outputs_on_this_machine_only_are_reported(run, flags, capsys):
  epath.Path('gs://bucket/a.jsonl').write_text('{}')
  with pytest.raises(SystemExit):
    __main__.main(flags.split())
  assert 'on this machine' in capsys.readouterr().err.splitlines()[-1]
