"""Knights and knaves, satisfiability, graph colouring."""

import operator
from collections.abc import Mapping, Sequence

from jaxrl_reason.rewards.puzzles import answers, instances
from jaxrl_reason.tasks import satisfiability as family

MAX_DEPTH = 20  # of a statement


def _and(*statements: bool) -> bool:
  return all(statements)


def _or(*statements: bool) -> bool:
  return any(statements)


# `a <= b` of two truths is: b, unless a is false.
CONNECTIVES = {
  'and': _and,
  'or': _or,
  'not': operator.not_,
  'implies': operator.le,
  'same': operator.eq,
}
COUNTS = {'not': 1, 'implies': 2, 'same': 2}
TRUTH = {'t': True, 'true': True, '1': True, 'f': False, 'false': False,
         '0': False}  # fmt: skip


def knights_knaves(text: str, *, people, statements) -> float | None:
  """Checks everyone's kind: what a knight says is true, what a knave says is
  not.

  people: names. statements: [speaker, statement] pairs, where a statement is
  ['knight', name], ['knave', name], ['not', s], ['implies', s, s],
  ['same', s, s], or ['and', s, ...] and ['or', s, ...]. Answers: A=knight,
  "A is a knave", JSON, or letters in the order of the people (KNK). Whatever
  fits all statements is right; the share is that of the statements it fits.
  """
  people = instances.names('people', people)
  said = []
  for pair in instances.items('statements', statements, 1):
    speaker, statement = instances.items('statements', pair, 2, 2)
    instances.member('statements', speaker, people)
    _check(statement, people)
    said.append((speaker, statement))
  letters = text.strip().lower().replace(' ', '')[: len(people) + 1]
  if len(letters) == len(people) and not letters.strip('kn'):
    kinds = dict(zip(people, letters))
  else:
    kinds = answers.assignment(text, people, ('knight', 'knave', 'k', 'n'))
  if kinds is None or len(kinds) < len(people):
    return None
  knight = {name: kind in ('k', 'knight') for name, kind in kinds.items()}
  fit = sum(knight[who] == _holds(what, knight) for who, what in said)
  return fit / len(said)


def _check(statement, people: Sequence[str], depth: int = 0):
  kind, *rest = instances.items('statements', statement, 2, 50)
  if depth > MAX_DEPTH:
    instances.refuse('statements', f'nested deeper than {MAX_DEPTH}')
  if kind in ('knight', 'knave') and len(rest) == 1:
    instances.member('statements', rest[0], people)
    return
  known = isinstance(kind, str) and kind in CONNECTIVES
  if not known or len(rest) != COUNTS.get(kind, len(rest)):
    instances.refuse('statements', f'{statement!r:.60} is no statement')
  for inner in rest:
    _check(inner, people, depth + 1)


def _holds(statement, knight: Mapping[str, bool]) -> bool:
  kind, *rest = statement
  if kind in ('knight', 'knave'):
    return knight[rest[0]] == (kind == 'knight')
  return CONNECTIVES[kind](*(_holds(inner, knight) for inner in rest))


def satisfiability(text: str, *, clauses, variables=None) -> float | None:
  """Checks an assignment that satisfies every clause.

  clauses: lists of literals as in DIMACS, 3 or -3 for variable 3 or its
  negation. variables: their names in order, or how many there are (default:
  x1, x2, ... up to the largest). Answers: literals (`1 -2 3`, also with v and
  0 as in DIMACS), `x1=T, x2=false`, JSON, or a row of T and F or 1 and 0. What
  is left open may not matter. The share is that of the satisfied clauses.
  """
  formula = [
    instances.integers('clauses', clause, at_least=1, at_most=1000)
    for clause in instances.items('clauses', clauses, 1)
  ]
  last = max(abs(literal) for clause in formula for literal in clause)
  named = isinstance(variables, Sequence) and not isinstance(variables, str)
  if named:
    names = instances.names('variables', variables)
  else:
    n = last if variables is None else variables
    n = instances.integer('variables', n, 1, 1000)
    names = [f'x{i + 1}' for i in range(n)]
  if last > len(names) or any(0 in clause for clause in formula):
    instances.refuse('clauses', f'literals are 1 to {len(names)}, or negative')
  values = _truth(text, names)
  if values is None:
    return None
  return family.satisfied(formula, values) / len(formula)


def _truth(text: str, names: Sequence[str]) -> dict[int, bool] | None:
  """variable (from 1) -> value; None if malformed or contradictory."""
  if len(text) > answers.MAX_CHARS:
    return None
  n, row = len(names), ''.join(text.split()).lower()
  if len(row) == n and (not row.strip('tf') or not row.strip('01')):
    return {i + 1: TRUTH[letter] for i, letter in enumerate(row)}
  stripped = text.strip()
  literals = answers.integers(stripped.removeprefix('v '), n + 1)
  if literals is not None:
    literals = literals[:-1] if literals[-1] == 0 else literals
    values = {abs(literal): literal > 0 for literal in literals}
    inside = all(1 <= v <= n for v in values)
    return (
      values if values and inside and len(values) == len(literals) else None
    )
  found = answers.assignment(text, names, tuple(TRUTH))
  if found is None:
    return None
  return {i + 1: TRUTH[found[x]] for i, x in enumerate(names) if x in found}


def graph_colouring(text: str, *, nodes, edges, colours) -> float | None:
  """Checks a colour for every node, different at the ends of every edge.

  nodes: names. edges: pairs of names. colours: names, or how many there are
  (1, 2, ...). Answers: `A=red, B: blue`, JSON, or one colour for every node in
  their order. The share is that of the edges with two colours.
  """
  nodes = instances.names('nodes', nodes)
  edges = instances.pairs('edges', edges, nodes)
  if isinstance(colours, int):
    n = instances.integer('colours', colours, 1, 1000)
    colours = [str(i + 1) for i in range(n)]
  colours = [name.lower() for name in instances.names('colours', colours)]
  found = answers.assignment(text, nodes, colours)
  if found is None:
    row = answers.words(text.lower(), len(nodes))
    if row is not None and len(row) == 1 and len(nodes) > 1:
      row = list(row[0])  # one character each: 1213, RGBR
    if row is None or len(row) != len(nodes) or not set(row) <= set(colours):
      return None
    found = dict(zip(nodes, row))
  if len(found) < len(nodes):
    return None
  different = sum(found[a] != found[b] for a, b in edges)
  return different / len(edges) if edges else 1.0
