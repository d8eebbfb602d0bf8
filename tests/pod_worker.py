"""One process of several, for test_hosts.

pod_worker.py JSON              {'join': [...], 'runs': [...]}: runs, one after
                                the other: [workdir, keys, name of the recipe],
                                by default the tiny recipe
pod_worker.py SIGKILL@10 ARGS   the command jaxrl_reason.main with ARGS, which
                                sends itself that signal before step 11;
  SIGTERM@10:save               or while the checkpoint of step 10 is written,
                                or in its evaluation, or in a dispatch that
                                compiles (:compile)
  SIGTERM@10:dispatch:group     its children get the signal too
"""

import importlib
import json
import os
import signal
import sys
import threading


def parity(completion: str, example: dict) -> float:
  """A reward that random text has with probability 1/2."""
  del example
  return float(len(completion) % 2)


def run_all(job: dict):
  from jaxrl_reason import hosts
  from jaxrl_reason.reports import plots
  from jaxrl_reason.run import train

  with hosts.exit_on_error():
    hosts.join(*job['join'])
    for workdir, keys, *recipe in job['runs']:
      (name,) = recipe or ['tiny_recipe']
      config = importlib.import_module(name).get_config()
      config.update_from_flattened_dict(keys)
      train.run(config, workdir)
      plots.save = lambda workdir: 'drawn once'  # drawing takes seconds


def signalled(what: str, args: list[str]):
  """Runs the command. At a given point, this process receives a signal."""
  from jaxrl_reason import main
  from jaxrl_reason.reports import plots

  plots.save = lambda workdir: 'not drawn'  # drawing takes a second
  name, _, point = what.partition('@')
  step, phase, whom = [*point.split(':'), 'dispatch', 'alone'][:3]
  owner, method, total = points()[phase]
  before, sent = getattr(owner, method), []

  def patched(self, *given):
    if total(self, *given) != int(step) or sent:
      return before(self, *given)
    sent.append(name)
    if phase == 'save':  # the save in progress
      before(self, *given)
    if phase == 'compile':
      threading.Thread(target=when_compiling, args=(name, whom)).start()
      result = before(self, *given)
      agreed(name)
      return result
    send(name, whom)
    agreed(name)
    return None if phase == 'save' else before(self, *given)

  setattr(owner, method, patched)
  main.main(args)


def points() -> dict:
  """Returns phase -> (class, method, step of a call)."""
  from jaxrl_reason.checkpoints import manager
  from jaxrl_reason.run import evaluator, loop

  dispatch = (loop.Loop, 'dispatch', lambda self, *_: self.total)
  return {
    'dispatch': dispatch,
    'compile': dispatch,
    'evaluation': (
      evaluator.Evaluator,
      '__call__',
      lambda self, params, total, *_: total,
    ),
    'save': (manager.Checkpoints, 'save', lambda self, step, *_: step),
  }


def send(name: str, whom: str) -> None:
  """Sends a signal to this process, and to its children as a service manager
  does.
  """
  children = f'/proc/self/task/{os.getpid()}/children'
  with open(children) as f:
    group = [int(pid) for pid in f.read().split()] if whom == 'group' else []
  for pid in [*group, os.getpid()]:
    os.kill(pid, signal.Signals[name])


def agreed(name: str) -> None:
  """Waits until all processes agree on the last step."""
  from waiting import eventually

  from jaxrl_reason.hosts import peers

  if name != 'SIGKILL':
    assert eventually(lambda: peers.active._stop_at is not None)


def when_compiling(name: str, whom: str) -> None:
  from waiting import eventually

  from jaxrl_reason.hosts import peers

  assert eventually(lambda: peers.standing.get('compiling'))
  send(name, whom)


if __name__ == '__main__':
  # tensorboardX would import torch if it is installed, which takes seconds.
  sys.modules['torch'] = None
  if len(sys.argv) == 2:
    run_all(json.loads(sys.argv[1]))
  else:
    signalled(sys.argv[1], sys.argv[2:])
