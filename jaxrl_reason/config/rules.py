"""Refuses configs by rules, which are tables of (condition, message).

A table is a function from sections of the config to its rows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxrl_reason import names

Rows = Iterable[tuple[Any, str]]


def refuse(table: Callable[..., Rows], *sections: Any) -> None:
  """Raises the message of the first row whose condition is true.

  Raises:
    ValueError: the message.
  """
  for refused, message in table(*sections):
    if refused:
      raise ValueError(message)


def choice(key: str, value: str, known: Iterable[str]) -> tuple[bool, str]:
  """Returns the row that refuses a value outside the known names."""
  known = [*known]
  if value in known:
    return False, ''
  return True, names.choice(key, value, known)


def section(key: str, value: Any, example: str) -> Rows:
  """Returns the table that refuses a value that is not a section.

  Args:
    example: a valid section, for the message.
  """
  wrong = not isinstance(value, Mapping)
  return ((wrong, f'{key}={value!r}: must be a section such as {example}'),)


def is_number(x: Any) -> bool:
  """Returns whether a value is a number, and not true or false."""
  return isinstance(x, int | float) and not isinstance(x, bool)


def apart(reason: str, **values: Any) -> Rows:
  """Returns the rows that refuse each value that is not empty.

  Args:
    reason: end of the message, after 'key=value'.
    values: values by key, '__' for dots, such as rl__replay__rows=3.
  """
  return tuple(
    (value, f'{key.replace("__", ".")}={value!r}{reason}')
    for key, value in values.items()
  )


def divides(name: str, total: int, **parts: int) -> tuple[bool, str]:
  """Returns the row that refuses a total that the factors do not divide.

  Args:
    parts: factors of the divisor by name, '__' for dots.
  """
  product, words = 1, []
  for key, n in parts.items():
    product *= n
    words.append(f'{key.replace("__", ".")} {n}')
  divisor = ' x '.join(words) + f' = {product}' * (len(parts) > 1)
  above = total + -total % product
  return (
    total % product,
    f'{name} = {total} does not divide by {divisor}; the next number that does '
    f'is {above}',
  )
