"""Launch scripts parse, the manifest loads, and arguments are passed on."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml
from paths import ROOT, load_recipe
from waiting import eventually

from jaxrl_reason import main
from jaxrl_reason.run.process import signals

LAUNCH = ROOT / 'tools' / 'launch'
SCRIPTS = sorted(LAUNCH.glob('*.sh')) + sorted(LAUNCH.glob('*.sbatch'))


def check_recipe(flag: str) -> None:
  """Raises an error if there is no such recipe or variant."""
  path, _, argument = flag.partition(':')
  load_recipe(ROOT / path).get_config(argument)


@pytest.mark.parametrize('path', SCRIPTS, ids=lambda p: p.name)
def test_scripts_parse(path):
  assert subprocess.run(['bash', '-n', path]).returncode == 0


@pytest.mark.parametrize('path', sorted(LAUNCH.iterdir()), ids=lambda p: p.name)
def test_named_files_exist(path):
  text = path.read_text()
  known = main.parser()._option_string_actions
  for name in ('--config', '--workdir'):
    assert f'{name}=' in text and name in known
  for config in re.findall(r'--config=(\S+)', text):
    check_recipe(config)
  extras = configparser.ConfigParser()
  extras.read(ROOT / 'setup.cfg')
  for group in re.findall(r'EXTRAS(?:=|-)([a-z,]+)', text):
    for extra in group.split(','):
      assert extra in extras['options.extras_require']


def test_the_manifest_asks_for_whole_slices():
  (jobset,) = yaml.safe_load_all((LAUNCH / 'gke_jobset.yaml').read_text())
  assert jobset['kind'] == 'JobSet'
  (job,) = jobset['spec']['replicatedJobs']
  pods = job['template']['spec']
  pod = pods['template']['spec']
  (container,) = pod['containers']
  chips = int(container['resources']['limits']['google.com/tpu'])
  shape = pod['nodeSelector']['cloud.google.com/gke-tpu-topology']
  rows, columns = map(int, shape.split('x'))
  first, _ = pods['podFailurePolicy']['rules']
  assert first['onExitCodes'] == {'operator': 'In', 'values': [signals.SAVED]}
  assert pods['parallelism'] == pods['completions'] == rows * columns // chips
  config = container['command'][3].removeprefix('--config=')
  check_recipe(config)


@pytest.mark.skipif(not shutil.which('hadolint'), reason='no hadolint')
def test_the_image_passes_its_linter():
  subprocess.run(['hadolint', LAUNCH / 'Dockerfile'], check=True)


def test_the_task_of_skypilot_is_valid():
  text = (LAUNCH / 'skypilot.yaml').read_text()
  task = yaml.safe_load(text)
  assert task['envs']['JAXRL_EXTRAS'] in (LAUNCH / 'Dockerfile').read_text()
  sky = pytest.importorskip('sky', reason='SkyPilot is not installed')
  assert sky.Task.from_yaml(LAUNCH / 'skypilot.yaml').run == task['run']


def test_a_slice_is_asked_for_until_it_exists(tmp_path):
  calls = tmp_path / 'calls'
  answer = f'echo "$@" >>{calls}; n=$(wc -l <{calls}); '
  waits = 'describe2) echo WAITING;; describe*) echo ACTIVE;;'
  stub(tmp_path, 'gcloud', f'{answer}case $4$n in {waits} esac')
  env = {'TPU': 't', 'ZONE': 'z', 'PROJECT': 'p', 'WAIT_S': '0'}
  env |= {'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
  command = [LAUNCH / 'tpu_create.sh', 'v5litepod-16', '--labels=a=b']
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (0, 't: WAITING\n'), done.stderr
  create, *looks = calls.read_text().splitlines()
  assert len(looks) == 2 and create.endswith('--zone=z --labels=a=b')
  assert '--runtime-version=v2-alpha-tpuv5-lite --spot' in create
  command = [LAUNCH / 'tpu_create.sh', 'v9-1']
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert done.returncode == 1 and 'set IMAGE' in done.stderr


def test_arguments_reach_the_pods_of_xpk(tmp_path):
  split = 'eval "set -- ${a#*run }"; printf "[%s]" "$@"'
  command = f'for a; do case $a in --command=*) {split};; esac; done'
  stub(tmp_path, 'xpk', command)
  env = {k: 'x' for k in ('CLUSTER', 'TYPE', 'IMAGE', 'NAME')}
  env |= {'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
  args = ['--config.mesh=(1, -1, 1)', "--a='x'"]
  done = subprocess.run(
    [LAUNCH / 'xpk.sh', *args], env=env, capture_output=True, text=True
  )
  assert done.stdout == ''.join(f'[{a}]' for a in args), done.stderr


def stub(folder: pathlib.Path, name: str, script: str):
  path = folder / name
  path.write_text(f'#!/usr/bin/env bash\n{script}\n')
  path.chmod(0o755)


def test_arguments_reach_the_workers_of_a_slice(tmp_path):
  """Runs the command of gcloud with stubs for its programs."""
  remote = (
    'for a; do case $a in --command=*) bash -c "${a#--command=}";; esac; done'
  )
  stub(tmp_path, 'gcloud', remote)
  clone = 'clone) [ $2 = ssh://me/it ] && mv fresh $3'
  stub(tmp_path, 'git', f'case $1 in -C) echo ssh://me/it;; {clone};; esac')
  stub(tmp_path, 'setsid', 'exec "$@"')
  tools = tmp_path / 'fresh' / 'tools'
  tools.mkdir(parents=True)
  stub(tools, 'run', 'printf "[%s]" "$PYTHON" "$JAXRL_EXTRAS" "$@"; echo .')
  args = ['--config.mesh=(1, -1, 1)', '--workdir=gs://b/my run', "--a='x'"]
  done = subprocess.run(
    [LAUNCH / 'tpu_vm.sh', *args],
    env=os.environ
    | {
      'PATH': f'{tmp_path}:{os.environ["PATH"]}',
      'TPU': 't',
      'ZONE': 'z',
      'PROJECT': 'p',
      'PYTHON': '/opt/my python',
      'HOME': str(tmp_path),
    },
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert 'started' in done.stdout
  log, words = tmp_path / 'jaxrl_reason.log', ['/opt/my python', 'tpu,hf,gcs']
  assert eventually(lambda: log.exists() and log.read_text().endswith('.\n'))
  assert log.read_text() == ''.join(f'[{a}]' for a in words + args) + '.\n'


def slurm(tmp_path, code: int, *flags: str, **variables: str):
  """Runs the job's script where the run ends with an exit code."""
  stub(tmp_path, 'srun', f'exit {code}')
  stub(tmp_path, 'scontrol', 'echo "$@"')
  tools = tmp_path / 'tools'
  tools.mkdir()
  (tools / 'env.sh').write_text('VENV=v; ensure_env() { :; }')
  job = {'SLURM_SUBMIT_DIR': str(tmp_path), 'SLURM_JOB_ID': '7'}
  job |= {
    'SLURM_CPUS_PER_TASK': '1',
    'PATH': f'{tmp_path}:{os.environ["PATH"]}',
  }
  return subprocess.run(
    ['bash', LAUNCH / 'slurm.sbatch', '--config=x', *flags],
    env=os.environ | job | variables,
    capture_output=True,
    text=True,
  )


@pytest.mark.parametrize(
  'code, requeued', [(0, ''), (1, ''), (75, 'requeue 7')]
)
def test_slurm_puts_a_saved_run_into_the_queue_again(tmp_path, code, requeued):
  done = slurm(tmp_path, code)
  assert (done.returncode, done.stdout.strip()) == (code, requeued), done.stderr


@pytest.mark.parametrize('restarts, begins', [('0', True), ('1', False)])
def test_slurm_does_not_begin_a_requeued_run_again(tmp_path, restarts, begins):
  done = slurm(tmp_path, 0, '--fresh', SLURM_RESTART_COUNT=restarts)
  assert (done.returncode == 0) == begins
  assert ('without --fresh' in done.stderr) != begins
