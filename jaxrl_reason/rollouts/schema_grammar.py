"""Refuses JSON schemas that outlines_core compiles to another language: it
ignores keywords that it does not read, joins the parts of `allOf`, and unrolls
references to an enclosing schema three times.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Keywords that no text depends on.
ABOUT = {
  '$comment',
  '$id',
  '$schema',
  '$defs',
  'definitions',
  'default',
  'deprecated',
  'description',
  'examples',
  'readOnly',
  'title',
  'writeOnly',
}
# The first of these keywords that a schema has determines how it is compiled,
# with the others in its row only.
KINDS = {
  'properties': {'type', 'required', 'additionalProperties'},
  'allOf': set(),
  'anyOf': set(),
  'oneOf': {'discriminator'},
  'prefixItems': {'type', 'items'},
  'enum': {'type'},
  'const': {'type'},
  '$ref': set(),
  'type': set(),
}
# Keywords of a schema with a type alone. Of strings, only one row counts.
OF_TYPE = {
  'string': ({'minLength', 'maxLength'}, {'pattern'}, {'format'}),
  'array': ({'items', 'minItems', 'maxItems'},),
  'object': ({'additionalProperties', 'minProperties', 'maxProperties'},),
}


def check(schema: str) -> None:
  """Raises an error for a part of a JSON schema that texts may violate.

  Raises:
    ValueError: names the keyword and its path; or the text is no JSON.
  """
  try:
    root = json.loads(schema)
  except ValueError as error:
    raise ValueError(f'the JSON schema: {error}') from error
  try:
    _check(root, '#', root, ())
  except (TypeError, AttributeError) as error:  # a value of another type
    raise ValueError(f'the JSON schema is malformed: {error}') from error


def _check(node: Any, path: str, root: Any, within: tuple[str, ...]) -> None:
  """Checks a schema; within: the references that lead to it."""
  if not isinstance(node, Mapping):
    raise _refusal(path, f'{json.dumps(node)} is no object')
  own = node.keys() - ABOUT
  kind = next((k for k in KINDS if k in own), None)
  known = KINDS.get(kind, set()) | {kind}
  if kind == 'type':
    known |= _of_types(node)
  extra = sorted(own - known)
  if extra:
    beside = f' beside {kind}' if kind else ''
    raise _refusal(path, f'{extra[0]}{beside} is not supported')
  _check_kind(node, kind, path)
  if kind == '$ref':
    node, path = _target(node['$ref'], path, root, within), node['$ref']
    _check(node, path, root, (*within, path))
    return
  for step, inner in _parts(node):
    _check(inner, f'{path}/{step}', root, within)


def _of_types(node: Mapping[str, Any]) -> set[str]:
  """Returns the keywords that count beside the type of a schema."""
  types = node['type'] if isinstance(node['type'], list) else [node['type']]
  rows = [row for t in types for row in OF_TYPE.get(t, ())]
  chosen = [row for row in rows if row & node.keys()]
  if 'string' in types:  # its rows exclude each other
    strings = [row for row in chosen if row in OF_TYPE['string']]
    chosen = [row for row in chosen if row not in strings[1:]]
  return set().union(*chosen)


def _check_kind(node: Mapping[str, Any], kind: str | None, path: str) -> None:
  """Checks values that are compiled otherwise than the keyword means."""
  of = {'properties': 'object', 'prefixItems': 'array'}.get(kind)
  if of and node.get('type', of) != of:
    raise _refusal(path, f'type beside {kind} must be {of}')
  if kind == 'properties':
    unknown = [x for x in node.get('required', ()) if x not in node[kind]]
    if unknown:
      raise _refusal(path, f'required has {unknown[0]!r}, not in properties')
  if kind == 'allOf' and len(node[kind]) > 1:
    raise _refusal(path, 'allOf with several schemas is not supported')
  if kind == 'oneOf' and _overlap(node[kind]):
    raise _refusal(
      path, 'oneOf with schemas that may overlap is not supported: use anyOf'
    )
  if kind == 'prefixItems' and node.get('items') not in (None, False):
    raise _refusal(path, 'items beside prefixItems must be false')


def _overlap(nodes: list) -> bool:
  """Returns whether two schemas may have a text in common, by their types."""
  types = [n.get('type') if isinstance(n, Mapping) else None for n in nodes]
  types = ['number' if t == 'integer' else t for t in types]
  named = all(isinstance(t, str) for t in types)
  return not named or len({*types}) < len(types)


def _target(name: str, path: str, root: Any, within: tuple[str, ...]) -> Any:
  """Returns the schema that a reference names."""
  steps = name.removeprefix('#').split('/')[1:]
  if not name.startswith('#') or name in ('#', '#/') or name in within:
    raise _refusal(
      path, f'$ref={name!r} must be in this file and not lead to itself'
    )
  for step in steps:
    root = root.get(step) if isinstance(root, Mapping) else None
  if root is None:
    raise _refusal(path, f'$ref={name!r} names no schema')
  return root


def _parts(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  """Yields the schemas directly within another one, with their paths."""
  for key, value in node.get('properties', {}).items():
    yield f'properties/{key}', value
  for kind in 'allOf', 'anyOf', 'oneOf', 'prefixItems':
    for i, value in enumerate(node.get(kind, ())):
      yield f'{kind}/{i}', value
  alone = () if 'properties' in node else ('additionalProperties',)
  for kind in ('items', *alone):
    if isinstance(node.get(kind), Mapping):
      yield kind, node[kind]


def _refusal(path: str, text: str) -> ValueError:
  return ValueError(f'the JSON schema at {path}: {text}')
