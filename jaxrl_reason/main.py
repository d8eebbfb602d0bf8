"""Trains a recipe: python -m jaxrl_reason.main --config=X.py --workdir=D.

Every key of the recipe can be changed: --config.rl.samples=16. Running the same
command again resumes from the last checkpoint in the workdir.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Recipe, a Python file with get_config().', lock_config=True
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder for checkpoints and metrics; may be gs://...'
)

# Errors that say what the user can do: shown without a traceback.
USER_ERRORS = (ValueError, OSError, FloatingPointError)


def _parse(argv):
  try:
    return app.parse_flags_with_usage(argv)
  # ml_collections raises these for unknown keys and wrong types.
  except (AttributeError, KeyError, TypeError, ValueError, OSError) as e:
    _fail(e)


def _fail(error: BaseException):
  print(f'error: {error}', file=sys.stderr)
  sys.exit(1)


def main(argv):
  if len(argv) > 1:
    _fail(f'unexpected argument {argv[1]!r}; options look like --config=X.py')
  logging.set_verbosity(logging.WARNING)
  # Imported here: a wrong flag is answered at once.
  from jaxrl_reason import rollout, train

  try:
    train.run(_CONFIG.value, _WORKDIR.value)
  except (*USER_ERRORS, rollout.RewardFailed) as e:
    logging.debug('Traceback:', exc_info=True)
    _fail(e)


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  app.run(main, flags_parser=_parse)
