"""The command `jaxrl`, also available as `python -m jaxrl_reason`."""

import importlib
import os
import sys
from collections.abc import Sequence

from jaxrl_reason import command
from jaxrl_reason.names import nearest

# Name -> module and what the command does.
COMMANDS = {
  'start': ('start', 'writes a recipe for your model, data and reward'),
  'run': ('main', 'trains a recipe'),
  'plan': ('plan', 'plans a recipe for TPUs, without a TPU'),
  'report': ('report', 'writes one page about runs and evaluations'),
  'evaluate': ('evaluate', 'measures models on suites of problems'),
  'study': ('study', 'compares settings of a recipe over seeds'),
  'generate': ('generate', 'writes completions of a model'),
  'grade': ('grade', 'verifies a file of completions'),
  'convert': ('convert', 'converts weights between formats'),
  'curate': ('curate', 'filters a file of problems'),
  'steer': ('steer', 'makes a steering vector of right minus wrong answers'),
  'keys': ('list_keys', 'prints the keys of a recipe'),
}


def usage() -> str:
  """Returns the text of --help."""
  rows = [f'  {name:9} {text}' for name, (_, text) in COMMANDS.items()]
  program = command.program()
  return '\n'.join([
    'Reinforcement learning of reasoning with verifiable rewards, in JAX.\n',
    f'  {program} COMMAND [--FLAG=VALUE ...]\n',
    *rows,
    f'\n{program} COMMAND --help prints the flags of a command.',
  ])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
  """Runs a command by its name."""
  name, *rest = (sys.argv[1:] if argv is None else argv) or ['--help']
  if name in ('-h', '--help', 'help'):
    print(usage())
    return
  if name not in COMMANDS:
    command.fail(
      f'unknown command {name!r}.{nearest(name, COMMANDS)} '
      f'{command.program()} --help lists the commands'
    )
  # Makes modules of the current folder importable, as python -m does: rewards
  # such as 'mine:reward'.
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  module = importlib.import_module(f'jaxrl_reason.{COMMANDS[name][0]}')
  try:
    module.main(rest)
  except KeyboardInterrupt:
    command.fail('stopped')


if __name__ == '__main__':
  main()
