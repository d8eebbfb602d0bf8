"""Automata over tokens: completions that end with a text, or that match a
regular expression or a JSON schema. A completion is sampled from the tokens
that its state allows, and the trainer follows the same states
(`logits.Sampling.automaton`).
"""

import pathlib
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxrl_reason.logits import REFUSED, Automaton
from jaxrl_reason.names import install
from jaxrl_reason.rollouts import schema_grammar

MOST_BYTES = 2**31  # of a table, which every device holds


def of_stops(texts: Sequence[str], tokens: Sequence[bytes], vocab: int):
  """Builds the automaton of completions that end once they contain a text.

  Args:
    texts: any one ends a completion.
    tokens: bytes of each token; vocab: V, at least as many.

  Raises:
    ValueError: a text is empty.
  """
  stops = [text.encode() for text in texts]
  if not all(stops):
    raise ValueError('a text that ends completions is empty')
  # A state is the longest end of the completion that begins a text; the last
  # state: a text was found.
  begun = {s[:i] for s in stops for i in range(len(s))}
  states = {s: i for i, s in enumerate(sorted(begun, key=len))}
  found = len(states)
  of_byte = np.full((found + 1, 256), found, np.int32)
  for state, i in states.items():
    for byte in range(256):
      of_byte[i, byte] = _after(state + bytes([byte]), stops, states, found)
  after = np.tile(np.arange(found + 1, dtype=np.int32)[:, None], (1, vocab))
  tokens = tokens[:vocab]
  for at in range(max(map(len, tokens))):
    which = np.array([i for i, t in enumerate(tokens) if len(t) > at])
    byte = np.array([tokens[i][at] for i in which])
    after[:, which] = of_byte[after[:, which], byte]
  return Automaton(jnp.asarray(after), jnp.arange(found + 1) == found)


def _after(text: bytes, stops, states, found: int) -> int:
  """Returns the state of a completion that ends with `text`."""
  if any(text.endswith(stop) for stop in stops):
    return found
  ends = (text[i:] for i in range(len(text) + 1))
  return next(states[end] for end in ends if end in states)


def of_expression(
  expression: str, tokens: Sequence[bytes], vocab: int, eos: Sequence[int]
) -> Automaton:
  """Builds the automaton of completions that match a regular expression whole.

  Args:
    expression: in the syntax of Rust's regex, compiled by outlines_core.
    tokens, vocab: see `of_stops`; tokens without bytes are refused.
    eos: stop tokens, allowed where the expression may end.

  Raises:
    ValueError: the expression is wrong or too long, no token continues it, or
      the package is missing.
  """
  ids: dict[bytes, list[int]] = {}
  for i, text in enumerate(tokens[:vocab]):
    if text and i not in eos:
      ids.setdefault(text, []).append(i)
  index = _index(expression, ids, int(eos[0]))
  edges, finals = index.get_transitions(), index.get_final_states()
  first = index.get_initial_state()
  reached = {first, *edges, *finals} - {first}
  states = {state: i for i, state in enumerate([first, *sorted(reached)])}
  if len(states) * vocab * 4 > MOST_BYTES:
    raise ValueError(
      f'{expression!r:.200}: {len(states):,} states of {vocab:,} tokens need '
      f'a table of {len(states) * vocab * 4 / 2**30:.1f} GiB, and at most '
      f'{MOST_BYTES // 2**30} are allowed: lower maxLength, maxItems or '
      'the bounds in {}'
    )
  after = np.full((len(states), vocab), REFUSED, np.int32)
  for state, to in edges.items():
    after[states[state], [*to]] = [states[x] for x in to.values()]
  after[:, list(eos)] = REFUSED
  for state in finals:
    after[states[state], list(eos)] = states[state]
  return Automaton(jnp.asarray(after), jnp.zeros(len(states), bool))


def expression_of(regex: str, json_schema: str, prefix: str) -> str:
  """Returns the regular expression of completions; '': none.

  Args:
    regex: the expression itself; json_schema: file with a JSON schema.
    prefix: of both names in errors.

  Raises:
    ValueError: both are given, one is wrong, the file cannot be read, or the
      package is missing.
  """
  if regex and json_schema:
    raise ValueError(f'{prefix}regex and {prefix}json_schema: set one of them')
  if not (regex or json_schema):
    return ''
  key = 'regex' if regex else f'json_schema={json_schema}'
  try:
    if json_schema:
      regex = of_schema(pathlib.Path(json_schema).read_text('utf-8'))
    _index(regex, {bytes([b]): [b] for b in range(256)}, 256)
  except (ValueError, OSError) as error:
    raise ValueError(f'{prefix}{key}: {error}') from error
  return regex


def _index(expression: str, ids: dict[bytes, list[int]], eos: int):
  """Compiles an expression over tokens by their bytes."""
  core = _library()
  try:
    return core.Index(expression, core.Vocabulary(eos, ids))
  except Exception as error:  # the library raises no narrower class
    raise ValueError(f'{expression!r:.200}: {_line(error)}') from error


def of_schema(schema: str) -> str:
  """Returns the regular expression of the JSON texts of a JSON schema.

  Raises:
    ValueError: the schema is no JSON, or not supported.
  """
  core = _library()
  schema_grammar.check(schema)
  try:
    return core.json_schema.build_regex_from_schema(schema)
  except Exception as error:  # the library raises no narrower class
    raise ValueError(f'the JSON schema: {_line(error)}') from error


def _line(error: Exception) -> str:
  return ' '.join(str(error).split())


def _library():
  try:
    import outlines_core
  except ImportError as error:
    raise ValueError(
      f'expressions need outlines_core: {install("structured")}'
    ) from error
  return outlines_core
