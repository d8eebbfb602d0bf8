"""Suppresses the error output of orbax and its threads: the main thread prints
the same error once, with its remedy, as the last line.
"""

import logging as stdlib_logging
import re
import sys
import threading

from absl import logging

from jaxrl_reason import command

explained_once = threading.Event()


def _without_trace(record) -> bool:
  """Removes tracebacks from the thread errors that orbax and asyncio log,
  because the main thread raises and prints the same error. Threads that end
  later print nothing, so the line with the remedy is the last.
  """
  if not re.search('orbax|asyncio', record.pathname):
    return True
  record.exc_info = None
  return not (explained_once.is_set() or command.ended.is_set())


for _logger in (logging.get_absl_logger(), stdlib_logging.getLogger('asyncio')):
  _logger.addFilter(_without_trace)


# Bound as default values, because a module's names are cleared at exit.
def _unless_too_late(
  unraisable, ended=command.ended.is_set, told=sys.unraisablehook
) -> None:
  """Suppresses the error of a write that ends after its failed save.
  Tensorstore then calls a closed event loop, and Python prints a traceback.
  The failure itself is raised in the main thread.
  """
  if not ended() and str(unraisable.exc_value) != 'Event loop is closed':
    told(unraisable)


def _unless_ended(
  args, ended=command.ended.is_set, told=threading.excepthook
) -> None:
  if not ended():
    told(args)


sys.unraisablehook = _unless_too_late
threading.excepthook = _unless_ended
