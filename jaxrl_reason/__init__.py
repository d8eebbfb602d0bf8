"""Reinforcement learning of reasoning with verifiable rewards, in JAX.

  import jaxrl_reason as jr

  jr.verifiers.math.verify(r'\\boxed{\\frac{1}{2}}', '0.5')   # True
  advantage = jr.losses.group_zscore(reward, group)          # [N]
  model, params = jr.from_nnx(module)
  rollout = jr.sample(model, params, prompts, valid, key, ...)

A name is imported when it is first used. `import jaxrl_reason` and
`jr.verifiers` therefore import no jax, and worker processes start fast.
docs/stable.md describes every name and says which ones are stable.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from jaxrl_reason import config, losses, verifiers
  from jaxrl_reason.base import Model, Rollout, Rows
  from jaxrl_reason.evals.loading import load
  from jaxrl_reason.logits import Sampling
  from jaxrl_reason.models.flax_bridge import from_apply, from_linen, from_nnx
  from jaxrl_reason.models.logprobs import score
  from jaxrl_reason.reports.metrics_file import read as read_metrics
  from jaxrl_reason.reports.metrics_file import series as metric_series
  from jaxrl_reason.rollouts.sampler import generate as sample
  from jaxrl_reason.run.train import run as train

__version__ = '0.1.0'
__all__ = [
  'Model',
  'Rollout',
  'Rows',
  'Sampling',
  'config',
  'from_apply',
  'from_linen',
  'from_nnx',
  'load',
  'losses',
  'metric_series',
  'read_metrics',
  'sample',
  'score',
  'train',
  'verifiers',
]

# The module and the attribute of each name that is not a module itself.
_HOMES = {
  'Model': ('base', 'Model'),
  'Rollout': ('base', 'Rollout'),
  'Rows': ('base', 'Rows'),
  'Sampling': ('logits', 'Sampling'),
  'from_apply': ('models.flax_bridge', 'from_apply'),
  'from_linen': ('models.flax_bridge', 'from_linen'),
  'from_nnx': ('models.flax_bridge', 'from_nnx'),
  'load': ('evals.loading', 'load'),
  'metric_series': ('reports.metrics_file', 'series'),
  'read_metrics': ('reports.metrics_file', 'read'),
  'sample': ('rollouts.sampler', 'generate'),
  'score': ('models.logprobs', 'score'),
  'train': ('run.train', 'run'),
}


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # type checkers read the imports above instead

  def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name not in __all__:
      raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module, attribute = _HOMES.get(name, (name, None))
    value = importlib.import_module(f'{__name__}.{module}')
    if attribute is not None:
      value = getattr(value, attribute)
    globals()[name] = value
    return value
