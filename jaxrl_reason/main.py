"""Trains a recipe: jaxrl run --config=X.py --workdir=D.

Every key of the recipe can be changed: --config.rl.samples=16. The same command
resumes from the last checkpoint in the workdir; --fresh first moves the files
of the workdir into a folder (docs/operating.md).

Exit codes: 0, the run is finished; 75, a signal stopped the run and its state
is saved: start the same command to resume; 1, an error, printed in one line.
"""

import argparse
import gc
import sys
from collections.abc import Sequence

from jaxrl_reason import command, ranges

RANGES = {'join_timeout_s': ranges.COUNT, 'heartbeat_s': ranges.COUNT}


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('run', __doc__)
  p.recipe()
  p.text(
    '--workdir', None, 'folder of checkpoints and metrics, or gs://bucket/...',
    required=True,
  )  # fmt: skip
  p.switch('--fresh', "move the workdir's files aside, start at step 0")
  # Of several processes, if no cluster is detected; the environment may set
  # them too (`hosts.join`).
  p.hosts()
  p.number('--join_timeout_s', 300, 'seconds for all processes to join')
  p.number('--heartbeat_s', 60, 'seconds of silence of a lost process')
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  with command.resumable(a.fresh):
    run(a)


def run(a: argparse.Namespace) -> None:
  """Trains by the flags."""
  # Tracing makes objects by the million. With Python's default thresholds, the
  # garbage collector takes a tenth of the CPU time of a short run.
  gc.set_threshold(100_000, 20, 20)
  # Imported here, so that a wrong flag is refused at once.
  from absl import logging

  from jaxrl_reason import config as config_lib
  from jaxrl_reason import hosts

  logging.set_verbosity(logging.WARNING)
  with command.one_line():
    ranges.check(vars(a), RANGES, '--')
    config = config_lib.load(a.config, a.changes)
  from jaxrl_reason.hosts import last_words
  from jaxrl_reason.rollouts.host import RewardFailed
  from jaxrl_reason.run import train
  from jaxrl_reason.run.process import cpu_devices, reader_gone
  from jaxrl_reason.verifiers.pool import PoolError

  with (
    command.resumable(a.fresh, last_words.cancel),
    reader_gone.tolerated(),
    hosts.exit_on_error(),
    command.one_line(RewardFailed, PoolError, hosts.Lost),
  ):
    if not a.num_processes:
      cpu_devices.split(config_lib.read(config))
    hosts.join(
      a.coordinator,
      a.num_processes,
      a.process_id,
      join_timeout_s=a.join_timeout_s,
      heartbeat_s=a.heartbeat_s,
    )
    with hosts.explained():
      state = train.run(config, a.workdir, fresh=a.fresh)
      # A launcher may kill the others when the first process exits.
      hosts.meet()
  if state is None:
    sys.exit(command.SAVED)


if __name__ == '__main__':
  main()
