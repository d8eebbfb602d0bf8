"""Code shared by the commands that query models: processes, progress,
errors.
"""

from collections.abc import Callable
from typing import Any

from absl import logging

from jaxrl_reason import command, hosts
from jaxrl_reason.run import train
from jaxrl_reason.run.process import reader_gone
from jaxrl_reason.run.records import journal
from jaxrl_reason.verifiers.pool import PoolError


def main(
  flags: Any, options: Callable[[Any], Any], run: Callable[..., str]
) -> None:
  """Runs a command, and prints an error that the user can fix as one line.

  Args:
    flags: with those of `command.Parser.hosts`.
    options: flags -> the argument of `run`; run: (options, say, bar) -> text.
  """
  logging.set_verbosity(logging.WARNING)
  with (
    reader_gone.tolerated(),
    hosts.exit_on_error(),
    command.one_line(PoolError, hosts.Lost),
  ):
    asked = options(flags)
    hosts.join(flags.coordinator, flags.num_processes, flags.process_id)
    train.use_compile_cache('auto')
    with hosts.explained():
      hosts.find_devices()
      text = run(asked, journal.say, journal.bar)
  if text:
    print(text)
