"""Launch files pass the checks of their tools, and pass arguments on."""

import configparser
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from paths import ROOT, load_recipe
from waiting import eventually

from jaxrl_reason import main
from jaxrl_reason.run.process import signals

LAUNCH = ROOT / 'tools' / 'launch'
SCRIPTS = sorted(LAUNCH.glob('*.sh')) + sorted(LAUNCH.glob('*.sbatch'))
TOOLS = [ROOT / 'tools' / x for x in ('env.sh', 'run', 'test', 'docs')]
TOOLS += [ROOT / 'tools' / 'new_user', ROOT / '.ci' / 'run']
PARSE_XPK = """
import argparse
from xpk.parser import core
parser = argparse.ArgumentParser()
core.set_parser(parser)
a = parser.parse_args()
print(a.tpu_type, a.max_restarts, a.termination_grace_period_seconds)
"""


def check_recipe(flag: str) -> None:
  """Raises an error if there is no such recipe or variant."""
  path, _, argument = flag.partition(':')
  load_recipe(ROOT / path).get_config(argument)


def program(name: str) -> str:
  """Returns a program of this environment or of the system, or skips."""
  folders = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  return shutil.which(name, path=folders) or pytest.skip(f'no {name}')


def checked(command: list, **env: str) -> str:
  """Returns the output of a command that succeeds."""
  done = subprocess.run(
    command, env=os.environ | env, cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.mark.parametrize('path', SCRIPTS + TOOLS, ids=lambda p: p.name)
def test_scripts_parse_and_pass_their_linter(path):
  checked(['bash', '-n', path])
  linter = [program('shellcheck'), '-x', '--source-path=SCRIPTDIR:.']
  checked([*linter, path])


def test_the_image_passes_its_linter():
  checked([program('hadolint'), LAUNCH / 'Dockerfile'])


def test_the_context_of_the_image_has_only_what_it_copies():
  text = (LAUNCH / 'Dockerfile').read_text()
  copied = re.findall(r'^COPY (.*) \S+$', text, re.M)
  lines = (ROOT / '.dockerignore').read_text().splitlines()
  kept = [line[1:] for line in lines if line.startswith('!')]
  assert sorted(kept) == sorted(' '.join(copied).split())
  assert lines[1] == '*' and all((ROOT / name).exists() for name in kept)


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


def unknown(given, read, path: str = '') -> list[str]:
  """Returns the paths of a manifest that are absent after it was read."""
  if isinstance(given, list):
    pairs = [(f'{path}[{i}]', x, read[i]) for i, x in enumerate(given)]
  elif isinstance(given, dict):
    lost = [f'{path}.{key}' for key in given if key not in read]
    if lost:
      return lost
    pairs = [(f'{path}.{key}', x, read[key]) for key, x in given.items()]
  else:
    return [] if given == read else [path]
  return [y for at, x, new in pairs for y in unknown(x, new, at)]


def test_the_manifest_has_fields_of_jobset_only():
  """Reads it with the classes that are generated from JobSet's OpenAPI.

  They refuse wrong types and drop unknown fields.
  """
  models = pytest.importorskip('kubeflow_trainer_api.models')
  given = yaml.safe_load((LAUNCH / 'gke_jobset.yaml').read_text())
  read = models.JobsetV1alpha2JobSet.from_dict(given)
  assert unknown(given, json.loads(read.to_json())) == []
  # https://jobset.sigs.k8s.io/docs/concepts: actions of a failure policy.
  actions = ('FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts')
  rules = given['spec']['failurePolicy']['rules']
  assert all(rule['action'] in actions for rule in rules)


def test_the_task_of_skypilot_is_valid(tmp_path):
  """SkyPilot checks the task by its schema and its catalog of machines."""
  path = LAUNCH / 'skypilot.yaml'
  task = yaml.safe_load(path.read_text())
  assert task['envs']['JAXRL_EXTRAS'] in (LAUNCH / 'Dockerfile').read_text()
  if importlib.util.find_spec('sky') is None:
    pytest.skip('SkyPilot is not installed: the extra launch')
  code = 'import sky, sys; print(sky.Task.from_yaml(sys.argv[1]).run, end="")'
  read = checked([sys.executable, '-c', code, path], HOME=str(tmp_path))
  assert read == task['run']


def test_slurm_accepts_the_options_of_the_job(tmp_path):
  """sbatch checks options before it asks a controller, which is not there."""
  sbatch, conf = program('sbatch'), tmp_path / 'slurm.conf'
  conf.write_text(
    'ClusterName=c\nSlurmctldHost=localhost\nGresTypes=gpu\n'
    'NodeName=n CPUs=64 Gres=gpu:8\nPartitionName=p Nodes=n Default=YES\n'
    'SlurmctldPort=9\nMessageTimeout=1\n'
  )
  done = subprocess.run(
    [sbatch, '--test-only', LAUNCH / 'slurm.sbatch'],
    env=os.environ | {'SLURM_CONF': str(conf)},
    capture_output=True,
    text=True,
  )
  assert 'Unable to contact slurm controller' in done.stderr, done.stderr


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


def test_xpk_accepts_the_flags_of_its_script(tmp_path):
  if importlib.util.find_spec('xpk') is None:
    pytest.skip('XPK is not installed: the extra launch')
  stub(
    tmp_path, 'xpk', f'exec {sys.executable} -c {shlex.quote(PARSE_XPK)} "$@"'
  )
  env = {k: 'x' for k in ('CLUSTER', 'IMAGE', 'NAME', 'PROJECT', 'ZONE')}
  env |= {'TYPE': 'v5litepod-16', 'HOME': str(tmp_path)}
  env['PATH'] = f'{tmp_path}:{os.environ["PATH"]}'
  out = checked([LAUNCH / 'xpk.sh', '--config.rl.steps=3'], **env)
  assert out.splitlines()[-1] == 'v5litepod-16 10 300'


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
