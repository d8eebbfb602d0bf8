"""Defines verifiers, functions (completion, problem) -> score, without jax.

  import jaxrl_reason as jr

  jr.verifiers.math.verify(r'The answer is \\boxed{0.5}.', '1/2')   # True
  jr.verifiers.code.run_tests('def f(x): return x', ['assert f(1) == 1'])
  jr.verifiers.text.exact('Paris', {'answer': 'Paris'}).score      # 1.0
  tasks = jr.verifiers.tasks
  problem = tasks.example('countdown', seed=0, index=0, split='train')
  tasks.check(problem['solution'], problem)                        # 1.0

A module is imported when it is first used. docs/verifiers.md describes them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from jaxrl_reason.verifiers import code, math, pool, tasks, text, tools
  from jaxrl_reason.verifiers.pool import VerifierPool
  from jaxrl_reason.verifiers.verdict import Verdict

__all__ = [
  'Verdict',
  'VerifierPool',
  'code',
  'math',
  'pool',
  'tasks',
  'text',
  'tools',
]
_CLASSES = {'Verdict': 'verdict', 'VerifierPool': 'pool'}  # and their modules


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # type checkers read the imports above instead

  def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name not in __all__:
      raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module = importlib.import_module(f'{__name__}.{_CLASSES.get(name, name)}')
    return getattr(module, name) if name in _CLASSES else module
