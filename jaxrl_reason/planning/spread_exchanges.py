"""Exchanges that the TPU compiler spreads over many fusions.

A fusion begins the exchange (`AsyncCollectiveStart`). Later fusions, also those
of a loop in between, pass its arrays on and do a part of it beside their own
work. A last fusion ends it (`AsyncCollectiveDone`). Each of them contains the
exchange, with the same `chain_id`.
"""

from collections.abc import Mapping

from jaxrl_reason.planning import hlo

START, DONE = 'AsyncCollectiveStart', 'AsyncCollectiveDone'


def chain_of(op: hlo.Op) -> str:
  """Returns the chain of an exchange, '' without one."""
  return op.attr('chain_id')


def ends(module: hlo.Module, op: hlo.Op) -> str:
  """Returns START or DONE for a fusion that begins or ends a chain, else ''."""
  root = module.root(op.called[0])
  targets = (t for t in (START, DONE) if f'"{t}"' in root.attrs)
  return next(targets, '')


def begun_in(module: hlo.Module) -> dict[str, str]:
  """Returns the computation in which each chain begins."""
  return {
    chain_of(each): name
    for name, ops in module.computations.items()
    for op in ops.values()
    if op.kind == 'fusion' and ends(module, op) == START
    for each in module.computations[op.called[0]].values()
    if chain_of(each)
  }


def passed_on(ops: Mapping[str, hlo.Op]) -> set[str]:
  """Returns the names of the arrays of chains in a fused computation: the
  exchanges, and the parameters that only they and the results read.
  """
  exchanges = {op.name for op in ops.values() if chain_of(op)}
  if not exchanges:
    return set()
  readers = (op for op in ops.values() if op.name not in exchanges)
  read = {x for op in readers if op.kind != 'tuple' for x in op.operands}
  given = {op.name for op in ops.values() if op.kind == 'parameter'}
  return exchanges | (given - read)
