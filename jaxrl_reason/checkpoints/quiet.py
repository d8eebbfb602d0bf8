"""Keeps orbax and its threads from printing an error that the main thread says
once, with what to do, as the last line.
"""

import logging as stdlib_logging
import re
import sys
import threading

from absl import logging

from jaxrl_reason import command

explained_once = threading.Event()


def _without_trace(record) -> bool:
  """Takes the trace off what orbax, and asyncio for it, log of their threads:
  the same error is raised in the main thread, and said there. Threads that end
  after that say nothing, since the line of what to do comes last.
  """
  if not re.search('orbax|asyncio', record.pathname):
    return True
  record.exc_info = None
  return not (explained_once.is_set() or command.ended.is_set())


for _logger in (logging.get_absl_logger(), stdlib_logging.getLogger('asyncio')):
  _logger.addFilter(_without_trace)


# Values by default, for at the interpreter's end a module's names are gone.
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
