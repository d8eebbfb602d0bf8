"""One process of several, for test_hosts.

pod_worker.py JSON              {'join': [...], 'runs': [[workdir, keys],...]}:
                                runs of the tiny recipe, one after the other
pod_worker.py SIGKILL@10 ARGS   the command jaxrl_reason.main with ARGS, which
                                sends itself that signal before step 11
"""

import json
import os
import signal
import sys


def parity(completion: str, example: dict) -> float:
  """A reward that random text often has, and often has not."""
  del example
  return float(len(completion) % 2)


def run_all(job: dict):
  import tiny_recipe

  from jaxrl_reason import hosts
  from jaxrl_reason.reports import plots
  from jaxrl_reason.run import train

  with hosts.exit_on_error():
    hosts.join(*job['join'])
    for workdir, keys in job['runs']:
      config = tiny_recipe.get_config()
      config.update_from_flattened_dict(keys)
      train.run(config, workdir)
      plots.save = lambda workdir: 'drawn once'  # for it takes seconds


def signalled(what: str, args: list[str]):
  from waiting import eventually

  from jaxrl_reason import main
  from jaxrl_reason.hosts import peers
  from jaxrl_reason.run import loop

  name, _, step = what.partition('@')
  dispatch = loop.Loop.dispatch

  def patched(self, state, more):
    if self.total == int(step):
      os.kill(os.getpid(), signal.Signals[name])
      if name == 'SIGTERM':  # a step as long as it takes to agree
        assert eventually(lambda: peers.active._stop_at is not None)
    return dispatch(self, state, more)

  loop.Loop.dispatch = patched
  main.main(args)


if __name__ == '__main__':
  # tensorboardX imports it where it is installed, for seconds.
  sys.modules['torch'] = None
  if len(sys.argv) == 2:
    run_all(json.loads(sys.argv[1]))
  else:
    signalled(sys.argv[1], sys.argv[2:])
