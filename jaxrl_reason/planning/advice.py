"""Advice about a recipe, from the bounds of its phases and its unused
memory.
"""

import operator

from jaxrl_reason.config import Run
from jaxrl_reason.config.training import Training
from jaxrl_reason.planning import phases

# Shares of HBM: below, memory is unused; above, it is short.
ROOMY, TIGHT = 0.5, 0.9


# Share of an update that model.remat=full computes a second time: the
# forward pass, of two forward passes and a gradient of two.
AGAIN = 1 / 4


def lines(config: Run, facts: dict) -> list[str]:
  """Returns a sentence per thing to change; facts: of `report.plan_facts`."""
  out = []
  most = max(facts['phases'], key=operator.itemgetter('needs_gib'))
  share = most['needs_gib'] / facts['hbm_gib']
  if share > TIGHT:
    out.append(
      f'{most["phase"]} takes {share:.0%} of HBM: more micro_batches, '
      'model.remat=full or a larger fsdp axis leave room'
    )
  step = facts.get('step_seconds', 0)
  parts = config.rl.parts if config.rl.path == 'host' else 1
  for p in (p for p in facts['phases'] if 'bound_by' in p):
    kind = 'rl' if p['phase'] in ('update', 'step') else p['phase']
    if kind in ('rl', *phases.SUPERVISED):
      section, share = config.training(kind), p['needs_gib'] / facts['hbm_gib']
      out += _room(p, section, config.model.remat, share, step)
    out += _speed(p, parts, step)
  return out


def _saved(p: dict, share: float, bound: str, step: float) -> str:
  """Returns the most seconds that a change of a phase saves.

  Args:
    share: of the seconds that end with the change.
    bound: the start of the name of what bounds these seconds.
    step: seconds of a step.
  """
  by = p['seconds_by_bound'].items()
  seconds = share * sum(t for name, t in by if name.startswith(bound))
  return f'at most {seconds:.3g} s less of a step of {step:.3g} s'


def _room(
  p: dict, section: Training, remat: str, share: float, step: float
) -> list[str]:
  """Returns advice about an update that leaves memory unused.

  Args:
    share: of the memory that the phase needs.
    step: seconds of a step.
  """
  if share > ROOMY:
    return []
  name, n, out = p['phase'], section.micro_batches, []
  if n > 1:
    out.append(
      f'{name} leaves {1 - share:.0%} of HBM: fewer micro_batches than {n} '
      f'gather the weights less often: {_saved(p, 1 - 1 / n, "links", step)}'
    )
  if remat == 'full':
    out.append(
      f'{name}: model.remat=dots recomputes less where it still fits, '
      'attention nearly as little of long rows: '
      f'{_saved(p, AGAIN, "compute", step)}'
    )
  return out


def _speed(p: dict, parts: int, step: float) -> list[str]:
  """Returns advice about what bounds a phase.

  Args:
    parts: in which a batch is generated.
    step: seconds of a step.
  """
  bound = p['bound_by']
  if bound == 'memory' and p['phase'] in ('generate', 'step'):
    if parts > 1:
      return [
        f'{p["phase"]} reads memory most of the time: rl.parts=1 in place of '
        f'{parts} reads the weights less often: '
        f'{_saved(p, 1 - 1 / parts, bound, step)}'
      ]
    return [
      f'{p["phase"]} reads memory most of the time: more prompts cost little '
      'more'
    ]
  if bound.startswith('links'):
    return [
      f'{p["phase"]} waits for {bound}: make that mesh axis smaller, or give '
      f'each device more rows: {_saved(p, 1, "links", step)}; --search '
      'compares mesh shapes'
    ]
  return []
