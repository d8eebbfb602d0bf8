"""Every notebook runs from top to bottom: with fewer steps always, and complete
in the slow tests. Its first cell installs the package.
"""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv

import jax
import nbformat
import pytest
from nbclient import NotebookClient
from packaging import requirements
from paths import ROOT

from jaxrl_reason.checkpoints import hf
from jaxrl_reason.models import families, spec, transformer

sys.path.insert(0, str(ROOT / 'tools'))
import notebooks  # noqa: E402

PATHS = sorted((ROOT / 'colabs').glob('*.ipynb'))
NAMES = [path.stem for path in PATHS]
# A cell that runs before the cells of a notebook. It reduces the sizes and
# steps that take time, and changes nothing else.
SHORT = """
from jaxrl_reason.planning import planner as plan
from jaxrl_reason.checkpoints import wheels
from jaxrl_reason.evals import evaluation as session
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run import train
import dataclasses

_run, _plan, _evaluate = train.run, plan.run, session.run

def run(c, workdir):
  config_checks.check(c, 1)  # before the sizes are reduced
  c.model.update(layers=1, width=16, mlp=16, heads=2, kv_heads=2, head_dim=8)
  c.sft.update(steps=1, rows=8, steps_per_dispatch=1)
  c.rl.update(steps=2, prompts=8, samples=2, steps_per_dispatch=1)
  c.eval.update(every=100, problems=8, samples=2)
  c.log_every = c.rollouts.every = 1
  return _run(c, workdir)

def plan_run(c, *args, **options):
  c.data.update(prompt_len=16, completion_len=16)
  c.rl.update(prompts=8, samples=2)
  c.model.update(layers=1, width=128, mlp=128, heads=4, kv_heads=4)
  return _plan(c, *args, **options | dict(model=''))

def evaluate(o, *args):
  suites = [suite.replace('n=64', 'n=4') for suite in o.suites]
  return _evaluate(dataclasses.replace(o, k=4, batch=16, suites=suites), *args)

train.run, plan.run, session.run = run, plan_run, evaluate
"""
# The claims of a notebook, as a cell after its own cells.
SHOWN = {
  '1': """
    before, after = last_answers('sft'), last_answers('rl')
    n = [sum(a['verdict']['score'] for a in x) for x in (before, after)]
    assert n[1] > n[0] + 2, n
    steps, accuracy = jr.metric_series(rows, 'eval/heldout/pass@1')
    last = [r for r in rows if r['stage'] == 'sft'][-1]['step']
    assert accuracy[steps.index(last)] < 0.4 and accuracy[-1] > 0.9, accuracy
  """,
  '2': 'assert linen_reward > 0.9 and nnx_reward > 0.9',
  '3': """
    length = jr.metric_series(rows, 'train/length_mean')[1]
    reward = jr.metric_series(rows, 'train/reward_mean')[1]
    assert length[-1] < 0.7 * length[0] and reward[-1] > reward[0] + 0.2
  """,
  '4': """
    accuracy = jr.metric_series(rows, 'eval/heldout/pass@1')[1]
    assert accuracy[-1] > accuracy[0] + 0.2, accuracy
  """,
  '5': """
    found = json.loads((out / 'results.json').read_text())['results']
    value = {
      (r['model'], r['suite'].rpartition('/')[2]): r['metrics'] for r in found
    }
    def of(model, split, metric):
      return value[model, split][metric]['value']
    gain = of(after, 'heldout', 'pass@1') - of(before, 'heldout', 'pass@1')
    assert gain > 0.3
    assert of(after, 'harder', 'pass@64') < of(before, 'harder', 'pass@64')
  """,
  '6': """
    def last(way, metric):
      return jr.metric_series(jr.read_metrics(runs[way]), metric)[1][-1]
    assert last('ladder', 'train/problems/rung') > 0
    assert last('refill', 'train/refill/filled') > 1.5 * signal[-1]
    assert at_the_end(runs['ladder'], 4) > at_the_end(warm, 4) + 0.05
  """,
  '7': """
    called = jr.metric_series(rows, 'train/turns/1/share')[1]
    assert called[0] < 0.4 and called[-1] > 0.7, called
  """,
  '8': 'assert facts["fits"] and facts["devices"] == 4',
  '9': """
    accuracy = jr.metric_series(rows, 'eval/heldout/pass@1')[1]
    assert not on_tpu and accuracy[-1] > accuracy[0] + 0.3, accuracy
  """,
}


def executed(path, folder, *, first: str = '', last: str = ''):
  """Runs a notebook in its own folder and returns it with outputs.

  Args:
    first, last: cells put before and after its own.
  """
  text = path.read_text()
  if first:  # a loop of its own
    text = text.replace('STEPS = 250', 'STEPS = 2')
  notebook = nbformat.reads(text, as_version=4)
  extra = [nbformat.v4.new_code_cell(textwrap.dedent(c)) for c in (first, last)]
  notebook.cells = [extra[0], *notebook.cells, extra[1]]
  place = {'metadata': {'path': str(folder)}}
  NotebookClient(
    notebook, timeout=900, kernel_name='python3', resources=place
  ).execute()
  return notebook


def check_shown(notebook):
  """Checks that a notebook has pictures and no errors in its output."""
  outputs = [o for c in notebook.cells for o in c.get('outputs', ())]
  data = [o['data'] for o in outputs if 'data' in o]
  assert any('image/png' in d for d in data)
  said = ''.join(o['text'] for o in outputs if o['output_type'] == 'stream')
  for word in ('Warning', 'WARNING', 'Traceback', 'error:', 'MiB a device'):
    assert word not in said, said
  # Bars are written over on a line of their own.
  assert said.count('\n') < 80, said


@pytest.fixture
def environment(monkeypatch, tmp_path):
  """Returns an environment in which cells import the package's sources, on the
  CPU.
  """
  path = [str(ROOT), os.environ.get('PYTHONPATH', '')]
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, path)))
  monkeypatch.setenv('MPLBACKEND', 'module://matplotlib_inline.backend_inline')
  return tmp_path


@pytest.fixture(scope='session')
def stand_in(tmp_path_factory):
  """Returns a folder with a tokenizer, a chat template and a random model."""
  hf_folders = pytest.importorskip('data.hf_folders')
  folder = tmp_path_factory.mktemp('stand_in')
  hf_folders.byte_level(folder)
  sizes = dict(
    model_type='llama', hidden_size=16, intermediate_size=16, vocab_size=312,
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-6,
    rope_theta=1e4, tie_word_embeddings=True,
  )  # fmt: skip
  config = families.from_hf(sizes)
  specs = transformer.build(config).specs
  params = spec.init(specs, jax.random.key(0))
  hf.save(folder, params, config, config_json=sizes)
  return folder


def needs(path, request) -> str:
  """Returns the additional packages and the first cell of a notebook."""
  if path.stem.startswith('8'):
    pytest.importorskip('libtpu')
  if path.stem.startswith('4'):
    folder = request.getfixturevalue('stand_in')
    # An untrained tokenizer has longer prompts.
    return f"""
import pathlib
wheels.folder = lambda name: pathlib.Path({str(folder)!r})
_cut = train.run
def run(c, workdir):
  c.data.update(prompt_len=128)
  return _cut(c, workdir)
train.run = run
"""
  return ''


@pytest.mark.parametrize('path', PATHS, ids=NAMES)
def test_a_notebook_runs(path, environment, request, monkeypatch):
  more = needs(path, request)
  flags = os.environ['XLA_FLAGS'].split()
  one = [f for f in flags if 'device_count' not in f]
  monkeypatch.setenv('XLA_FLAGS', ' '.join(one))
  check_shown(executed(path, environment, first=SHORT + more))


@pytest.mark.slow
@pytest.mark.parametrize('path', PATHS, ids=NAMES)
def test_a_notebook_shows_its_claims(path, environment, monkeypatch):
  if path.stem.startswith('8'):
    pytest.importorskip('libtpu')
  if path.stem.startswith('4'):
    pytest.importorskip('gguf')
  monkeypatch.setenv('XLA_FLAGS', '')
  found = executed(path, environment, last=SHOWN[path.stem[0]])
  check_shown(found)


def test_each_notebook_has_a_check():
  assert sorted(SHOWN) == [name[0] for name in NAMES]


def test_the_address_is_that_of_setup_cfg():
  assert list(notebooks.stale(write=False)) == []
  text = (ROOT / 'README.md').read_text()
  for path in PATHS:
    assert notebooks.badge(path.name) in text
    assert f'(colabs/{path.name})' in text


def test_no_address_is_a_placeholder():
  pages = [ROOT / name for name in (*notebooks.PAGES, 'setup.cfg')]
  for path in (*pages, *PATHS, *(ROOT / 'docs').glob('*.md')):
    assert 'OWNER' not in path.read_text(), path


def test_outputs_are_those_of_the_code():
  """Changed code has no outputs, and bars and pictures are small."""
  for path in PATHS:
    notebook = nbformat.read(path, as_version=4)
    if notebooks.CODE in notebook.metadata:
      check_shown(notebook)
      assert path.stat().st_size < 120_000, path
  code = {'cell_type': 'code', 'source': 'print(1)', 'outputs': ['1']}
  known = {notebooks.CODE: notebooks.checksum([code])}
  for source, outputs in (('print(1)', ['1']), ('print(2)', [])):
    cells = [code | {'source': source}]
    new = notebooks.settled('1_a', {'cells': cells, 'metadata': known})
    assert new['cells'][-1]['outputs'] == outputs
    assert (notebooks.CODE in new['metadata']) == bool(outputs)


def test_outputs_have_the_last_state_of_a_bar():
  steps = '\rsft:  50%\r         \rstep 1\n\rsft:  50%\rsft: 100%\n'
  output = {
    'output_type': 'stream',
    'text': ['compiling, 10 s so far\n', steps],
  }
  notebooks.shrink(output)
  assert output['text'] == ['step 1\n', 'sft: 100%\n']


ADDRESS = 'https://github.com/a/b'


def test_one_command_sets_the_address_everywhere(monkeypatch, tmp_path):
  shutil.copytree(ROOT / 'colabs', tmp_path / 'colabs')
  for name in (*notebooks.PAGES, 'setup.cfg'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / name, tmp_path / name)
  subprocess.run(['git', 'init', '-q', tmp_path], check=True)
  remote = ['remote', 'add', 'origin', 'git@github.com:a/b.git']
  subprocess.run(['git', '-C', tmp_path, *remote], check=True)
  monkeypatch.setattr(notebooks, 'ROOT', tmp_path)
  monkeypatch.setattr(notebooks, 'FOLDER', tmp_path / 'colabs')
  before = {p: p.read_text() for p in tmp_path.rglob('*.*') if p.is_file()}
  for flag in ('origin', ADDRESS, ''):
    monkeypatch.setattr(sys, 'argv', ['notebooks', f'--url={flag}'])
    notebooks.main()
    assert list(notebooks.stale(write=False)) == []
    shown = [p for p, _ in before.items() if ADDRESS in p.read_text()]
    assert len(shown) == (len(PATHS) + 4 if flag else 0)
    page = (tmp_path / 'docs' / 'first_hour_tpu.md').read_text()
    assert ('public address' in page) == (not flag)
  assert all(p.read_text() == text for p, text in before.items())


def install(path, folder, monkeypatch) -> str:
  """Returns what the first cell of a notebook in a folder installs."""
  cell = notebooks.install(path.name)
  assert cell in [c.source for c in nbformat.read(path, as_version=4).cells]
  code = cell.replace('import jaxrl_reason ', 'raise ImportError ')
  code = code.replace(f'{notebooks.INSTALL} "{{place}}"', 'found = place')
  known = {}
  monkeypatch.chdir(folder)
  exec(code, known)
  return known['found']


@pytest.mark.parametrize('path', PATHS, ids=NAMES)
def test_a_notebook_installs_the_package_beside_it(path, tmp_path, monkeypatch):
  extras = notebooks.EXTRAS.get(path.name[0], '')
  extras = extras and f'[{extras}]'
  known = configparser.ConfigParser()
  known.read(ROOT / 'setup.cfg')
  wanted = requirements.Requirement(f'jaxrl_reason{extras}')
  assert wanted.extras <= {*known['options.extras_require']}
  found = install(path, ROOT / 'colabs', monkeypatch)
  assert found == f'{ROOT}{extras}'
  (tmp_path / 'here').mkdir()
  with pytest.raises(IndexError):
    install(path, tmp_path / 'here', monkeypatch)
  wheel = tmp_path / 'here' / 'jaxrl_reason-1-py3-none-any.whl'
  wheel.touch()
  found = install(path, tmp_path / 'here', monkeypatch)
  assert found == f'{wheel}{extras}'


# Code after the first block of the README.
SHOWS = 'print(jr.__file__, float(loss), objective.settings["clip_high"])\n'
PACKED = ('jaxrl_reason', 'setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE')


def test_a_wheel_installs_into_an_empty_environment(tmp_path):
  """The library's example and the command run from it, and all files are
  packed.

  The environment is empty but for the packages that ours needs, which are those
  of this process.
  """
  env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  pip = [sys.executable, '-m', 'pip', '-q', '--disable-pip-version-check']
  wheels, sources = tmp_path / 'wheels', tmp_path / 'sources'
  sources.mkdir()
  for name in PACKED:  # setuptools writes into its sources
    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
    copy(ROOT / name, sources / name)
  subprocess.run(
    [*pip, 'wheel', '--no-deps', '--no-build-isolation', '-w', wheels, sources],
    check=True, cwd=tmp_path,
  )  # fmt: skip
  (wheel,) = wheels.glob('jaxrl_reason-*.whl')
  venv.create(tmp_path / 'env', symlinks=True)
  python = tmp_path / 'env' / 'bin' / 'python'
  site = sysconfig.get_path('purelib', vars={'base': str(tmp_path / 'env')})
  subprocess.run(
    [*pip, '--python', python, 'install', '--no-deps', wheel],
    check=True,
    env=env,
  )
  # After the package itself, and without the links of editable installs.
  (pathlib.Path(site) / 'needs.pth').write_text(sysconfig.get_path('purelib'))
  text = (ROOT / 'README.md').read_text()
  block = re.search(r'^```python\n(.*?)^```', text, re.M | re.S)[1]
  found = subprocess.run(
    [python, '-c', block + SHOWS],
    env=env, cwd=tmp_path, capture_output=True, text=True,
  )  # fmt: skip
  assert found.stdout.startswith(site), found.stderr
  assert found.stdout.endswith(' 0.3\n')
  shown = subprocess.run(
    [tmp_path / 'env' / 'bin' / 'jaxrl', 'keys', 'rl.samples'],
    env=env, cwd=tmp_path, check=True, capture_output=True, text=True,
  )  # fmt: skip
  assert shown.stdout.startswith('rl.samples = 8')
  for path in (ROOT / 'jaxrl_reason').rglob('*'):  # all of it was packed
    inside = path.relative_to(ROOT)
    kept = path.is_file() and '__pycache__' not in inside.parts
    assert not kept or (pathlib.Path(site) / inside).is_file(), inside
