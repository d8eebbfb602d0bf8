"""What the commands with a --config share: errors said in one line."""

import sys

from absl import app

# Errors that say what the user can do: shown without a traceback.
USER_ERRORS = (ValueError, OSError, FloatingPointError)


def parse(argv):
  """absl's parser of flags; wrong keys and types of a recipe are errors."""
  try:
    return app.parse_flags_with_usage(argv)
  # ml_collections raises these for unknown keys and wrong types.
  except (AttributeError, KeyError, TypeError, ValueError, OSError) as e:
    fail(e)


def fail(error: BaseException | str):
  print(f'error: {error}', file=sys.stderr)
  sys.exit(1)


def no_more(argv) -> None:
  """Refuses arguments that are no flags."""
  if len(argv) > 1:
    fail(f'unexpected argument {argv[1]!r}; options look like --config=X.py')
