"""Trains a recipe: python -m jaxrl_reason.main --config=X.py --workdir=D.

Every key of the recipe can be changed: --config.rl.samples=16. The same command
resumes from the last checkpoint in the workdir; --fresh moves the workdir's
content aside first (docs/operating.md).

Exit codes: 0, the run is finished; 75, a signal stopped it and it is saved: run
the command again to go on; 1, an error, in one line.
"""

import functools
import sys

from absl import app, flags, logging

from jaxrl_reason import command
from jaxrl_reason import config as config_lib

_CONFIG = command.define_recipe()
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder for checkpoints and metrics; may be gs://bucket/...'
)
_FRESH = flags.DEFINE_bool(
  'fresh', False, 'Move the content of the workdir aside and begin at step 0.'
)

# Needed for several processes if no cluster is detected; the environment may
# set them too (`hosts.join`).
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'host:port of process 0.'
)
_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'Number of processes of the run.'
)
_PROCESS = flags.DEFINE_integer(
  'process_id', None, 'Index of this process, from 0.'
)
_JOIN = flags.DEFINE_integer(
  'join_timeout_s', 300, 'Seconds within which all processes must join.'
)
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_s', 60, 'Seconds of silence after which a process counts as dead.'
)


def main(argv):
  command.no_more(argv)
  logging.set_verbosity(logging.WARNING)
  # Imported here, so that a wrong flag is refused at once.
  from jaxrl_reason import hosts
  from jaxrl_reason.rollouts.host import RewardFailed
  from jaxrl_reason.run import train
  from jaxrl_reason.run.process import reader_gone, signals

  with reader_gone.tolerated(), hosts.exit_on_error():
    try:
      hosts.join(
        _COORDINATOR.value,
        _PROCESSES.value,
        _PROCESS.value,
        join_timeout_s=_JOIN.value,
        heartbeat_s=_HEARTBEAT.value,
      )
      with hosts.explained():
        state = train.run(_CONFIG.value, _WORKDIR.value, fresh=_FRESH.value)
        # A launcher may kill the others when the first process exits.
        hosts.meet()
    except (*command.USER_ERRORS, RewardFailed, hosts.Lost) as e:
      logging.debug('Traceback:', exc_info=True)
      command.fail(e)
  if state is None:
    sys.exit(signals.SAVED)


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  parse = functools.partial(command.parse, known=config_lib.default)
  app.run(main, flags_parser=parse)
