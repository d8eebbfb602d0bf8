"""Converts names of rewards to functions, and functions to names.

A worker process receives the name of a function, not the function. A name is a
short one from `SHORT`, 'package.module:name', or 'path/to/file.py:name' for a
function of a script.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping

from jaxrl_reason.names import nearest

SHORT = {
  'brier': 'jaxrl_reason.verifiers.confidence:brier',
  'calibrated': 'jaxrl_reason.verifiers.confidence:calibrated',
  'choices': 'jaxrl_reason.verifiers.text.choices:reward',
  'code': 'jaxrl_reason.verifiers.code:reward',
  'edit': 'jaxrl_reason.verifiers.text:edit',
  'exact': 'jaxrl_reason.verifiers.text:exact',
  'format': 'jaxrl_reason.verifiers.controls:well_formed',
  'gym': 'jaxrl_reason.verifiers.gym_scorers:reward',
  'instructions': 'jaxrl_reason.verifiers.text.instructions:reward',
  'json': 'jaxrl_reason.verifiers.text.structure:valid_json',
  'json_equal': 'jaxrl_reason.verifiers.text.structure:equal_json',
  'json_schema': 'jaxrl_reason.verifiers.text.structure:matches_schema',
  'judge_http': 'jaxrl_reason.verifiers.judges.http:reward',
  'language': 'jaxrl_reason.verifiers.text.consistency:reward',
  'math': 'jaxrl_reason.verifiers.math:reward',
  'math_symbolic': 'jaxrl_reason.verifiers.math.symbolic:reward',
  'normalized': 'jaxrl_reason.verifiers.text:normalized',
  'numbers': 'jaxrl_reason.verifiers.math.numbers:reward',
  'pairwise': 'jaxrl_reason.verifiers.judges.pairwise:reward',
  'random': 'jaxrl_reason.verifiers.controls:random',
  'regex': 'jaxrl_reason.verifiers.text.structure:matches_pattern',
  'repetition': 'jaxrl_reason.verifiers.text.format:repetition',
  'rouge_l': 'jaxrl_reason.verifiers.text:rouge_l',
  'rubric': 'jaxrl_reason.verifiers.judges.rubric:reward',
  'rules_then_judge': 'jaxrl_reason.verifiers.judges.http:after_rules',
  'sql': 'jaxrl_reason.verifiers.code.sql:reward',
  'tags': 'jaxrl_reason.verifiers.text.format:tags',
  # For tasks of this package; in a recipe, the verifier of the data.
  'task': 'jaxrl_reason.verifiers.task:reward',
  'token_f1': 'jaxrl_reason.verifiers.text:token_f1',
  'tool_calls': 'jaxrl_reason.verifiers.text.tool_calls:reward',
  'tool_calls_valid': 'jaxrl_reason.verifiers.text.tool_calls:valid',
}
# Rewards that may execute text. Outside of a worker they raise an error.
POOL_ONLY = frozenset(['gym'])
# Rewards with an argument `correct`, the verifier of the answer.
OF_CONFIDENCE = frozenset(['brier', 'calibrated'])
# Rewards that read example['others'], the other completions of the group.
OF_GROUP = frozenset(['pairwise'])


class RewardError(ValueError):
  """A reward that does not exist, or that another process cannot import."""


def load(name: str):
  """Loads the function with a name."""
  module_name, _, attribute = SHORT.get(name, name).rpartition(':')
  if not module_name:
    raise RewardError(
      f'reward {name!r}: not one of {", ".join(sorted(SHORT))} and not of the '
      "form 'package.module:function' or 'path/to/file.py:function'."
      + nearest(name, SHORT)
    )
  try:
    if module_name.endswith('.py'):
      target = load_file(module_name)
    else:
      target = importlib.import_module(module_name)
    for part in attribute.split('.'):
      target = getattr(target, part)
  except (ImportError, AttributeError, OSError) as e:
    near = _near(e) if isinstance(e, AttributeError) else ''
    why = f'{type(e).__name__}: {e}{near and f".{near}"}'
    raise RewardError(f'reward {name!r}: {why}') from e
  if not callable(target):
    raise RewardError(f'reward {name!r} is not a function but {target!r:.80}')
  return target


def _near(error: AttributeError) -> str:
  """Returns ' Did you mean ...?' with a public name of the module, or ''."""
  known = [name for name in dir(error.obj) if not name.startswith('_')]
  return nearest(error.name, known)


def load_file(path: str):
  """Imports the Python file at `path`, once."""
  # Not '__main__', so that a script's `if __name__ == '__main__'` is false.
  name = f'_reward_file_{os.path.splitext(os.path.basename(path))[0]}'
  known = sys.modules.get(name)
  if known is not None and known.__file__ == path:
    return known
  spec = importlib.util.spec_from_file_location(name, path)
  if spec is None or spec.loader is None:
    raise ImportError(f'{path} is not a Python file')
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def name_of(function) -> str:
  """Returns the name by which another process can import `function`."""
  module = getattr(function, '__module__', None)
  name = getattr(function, '__qualname__', None)
  if module is None or name is None or '<' in name:
    raise RewardError(
      f'{function!r} has no name another process could import it by: use a '
      "function at the top level of a module, or 'package.module:function'"
    )
  if module != '__main__':
    return f'{module}:{name}'
  main = sys.modules['__main__']
  if getattr(main, '__spec__', None) is not None:
    return f'{main.__spec__.name}:{name}'
  if getattr(main, '__file__', None) is not None:
    return f'{os.path.abspath(main.__file__)}:{name}'
  raise RewardError(
    f'{name} was defined interactively, where no other process can import it: '
    'move it into a file'
  )


def portable(reward):
  """Converts a reward (name, function or composed spec) for another process.

  Functions become names, and short names are expanded, since a recipe may add
  short names to `SHORT`.
  """
  if isinstance(reward, str):
    return SHORT.get(reward, reward)
  if isinstance(reward, Mapping):
    return {name: _portable_part(part) for name, part in reward.items()}
  if callable(reward):
    return name_of(reward)
  raise RewardError(
    f'a reward is a name, a function or a dict, not {type(reward).__name__}'
  )


def _portable_part(part):
  if not isinstance(part, Mapping):
    return portable(part)
  named = {key: _named(value) for key, value in part.items()}
  if 'reward' in part:
    named['reward'] = portable(part['reward'])
  return named


def _named(value):
  if isinstance(value, Mapping):
    return {key: _named(inner) for key, inner in value.items()}
  return name_of(value) if callable(value) else value
