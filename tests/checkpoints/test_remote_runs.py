"""Runs in an object store are converted, evaluated and reported."""

import json
import types

import object_store
import pytest
from etils import epath
from small import small_model

from jaxrl_reason import report, trees
from jaxrl_reason.checkpoints import conversion, other_run
from jaxrl_reason.evals import loading
from jaxrl_reason.models import families

RUN = 'gs://bucket/run'


@pytest.fixture
def run(monkeypatch):
  """The small files of a run; its arrays, which orbax reads from the store
  itself, come from here.
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
