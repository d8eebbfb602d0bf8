"""Advice about a recipe, from the bounds of its phases and the memory left
over.
"""

import operator

from jaxrl_reason.config import Run
from jaxrl_reason.config.training import Training
from jaxrl_reason.planning import phases

# Shares of HBM below which memory is left over, above which it is tight.
ROOMY, TIGHT = 0.5, 0.9


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
  for p in (p for p in facts['phases'] if 'bound_by' in p):
    kind = 'rl' if p['phase'] in ('update', 'step') else p['phase']
    if kind in ('rl', *phases.SUPERVISED):
      section, share = config.training(kind), p['needs_gib'] / facts['hbm_gib']
      out += _room(p['phase'], section, config.model.remat, share)
    out += _speed(p)
  return out


def _room(name: str, section: Training, remat: str, share: float) -> list[str]:
  """Returns advice about an update that leaves memory unused.

  Args:
    name: of the phase; share: of the memory that it needs.
  """
  if share > ROOMY:
    return []
  out = []
  if section.micro_batches > 1:
    out.append(
      f'{name} leaves {1 - share:.0%} of HBM: fewer micro_batches than '
      f'{section.micro_batches} gather the weights less often'
    )
  if remat == 'full':
    out.append(
      f'{name}: model.remat=dots recomputes less where it still fits, '
      'attention nearly as little of long rows'
    )
  return out


def _speed(p: dict) -> list[str]:
  if p['bound_by'] == 'memory' and p['phase'] in ('generate', 'step'):
    return [
      f'{p["phase"]} reads memory most of the time: more rows a device '
      '(prompts, fewer parts) cost little more'
    ]
  if p['bound_by'].startswith('links'):
    return [
      f'{p["phase"]} waits for {p["bound_by"]}: make that mesh axis smaller, '
      'or give each device more rows; --search compares mesh shapes'
    ]
  return []
