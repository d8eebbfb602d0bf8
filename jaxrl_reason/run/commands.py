"""What the commands that ask models share: processes, progress, errors."""

from collections.abc import Callable
from typing import Any

from absl import logging

from jaxrl_reason import command, hosts
from jaxrl_reason.rewards.pool import PoolError
from jaxrl_reason.run import journal, train


def main(
  flags: Any, options: Callable[[Any], Any], run: Callable[..., str]
) -> None:
  """Runs a command; what a user can mend is said in one line.

  Args:
    flags: with those of `command.Parser.hosts`.
    options: flags -> what `run` takes; run: (options, say, bar) -> text.
  """
  logging.set_verbosity(logging.WARNING)
  with hosts.together():
    try:
      asked = options(flags)
      hosts.join(flags.coordinator, flags.num_processes, flags.process_id)
      train.use_compile_cache('auto')
      with hosts.explained():
        text = run(asked, journal.say, journal.bar)
    except (*command.USER_ERRORS, ImportError, PoolError, hosts.Lost) as e:
      logging.debug('Traceback:', exc_info=True)
      command.fail(' '.join(str(e).split()))
  if text:
    print(text)
