"""Trains a recipe: python -m jaxrl_reason.main --config=X.py --workdir=D.

Every key of the recipe can be changed: --config.rl.samples=16. Running the same
command again resumes from the last checkpoint in the workdir; --fresh moves
that aside (docs/operating.md).
"""

import functools

from absl import app, flags, logging

from jaxrl_reason import command
from jaxrl_reason import config as config_lib

_CONFIG = command.define_recipe()
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder for checkpoints and metrics; may be gs://...'
)
_FRESH = flags.DEFINE_bool(
  'fresh', False, 'Move what the workdir holds aside and begin at step 0.'
)

# Of several processes, where no cluster is detected; or by the environment
# (`hosts.join`).
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'host:port of process 0.'
)
_PROCESSES = flags.DEFINE_integer('num_processes', None, 'Of the whole run.')
_PROCESS = flags.DEFINE_integer('process_id', None, 'Of this one, from 0.')
_JOIN = flags.DEFINE_integer(
  'join_timeout_s', 300, 'Seconds until all processes must have met.'
)
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_s', 60, 'Seconds of silence after which a process counts as dead.'
)


def main(argv):
  command.no_more(argv)
  logging.set_verbosity(logging.WARNING)
  # Imported here: a wrong flag is answered at once.
  from jaxrl_reason import hosts
  from jaxrl_reason.rollouts.host import RewardFailed
  from jaxrl_reason.run import train

  with hosts.together():
    try:
      hosts.join(
        _COORDINATOR.value,
        _PROCESSES.value,
        _PROCESS.value,
        join_timeout_s=_JOIN.value,
        heartbeat_s=_HEARTBEAT.value,
      )
      with hosts.explained():
        train.run(_CONFIG.value, _WORKDIR.value, fresh=_FRESH.value)
    except (*command.USER_ERRORS, RewardFailed, hosts.Lost) as e:
      logging.debug('Traceback:', exc_info=True)
      command.fail(e)


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  parse = functools.partial(command.parse, known=config_lib.default)
  app.run(main, flags_parser=parse)
