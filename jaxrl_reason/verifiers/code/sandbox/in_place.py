"""Copies changes that a function makes to its arguments back to the caller.

The arguments are lists, dicts and the like (`plain_types.CHANGEABLE`), and
numpy arrays. The changes are only applied if the function returns None.
Otherwise a function could change the input from which the test computes the
expected value.
"""

from jaxrl_reason.verifiers.code.sandbox import array_bytes, plain_types


def changes(before: list, values: list, encode) -> list:
  """Returns (index, encoded value) of the arguments that a call has changed.

  Args:
    before: the encoded arguments before the call.
    values: the arguments after it.
  """
  found = []
  for i, (old, value) in enumerate(zip(before, values)):
    if type(value) in plain_types.CHANGEABLE or array_bytes.is_array(value):
      new = encode(value)
      if new != old:
        found.append([i, new])
  return found


def replace(ours, new):
  """Replaces the contents of an argument by those of `new`.

  An argument of a subclass, such as a test's own list, was sent as the plain
  type.

  Raises:
    TypeError: they differ in type, or in the shape of an array.
  """
  if array_bytes.is_array(ours) and array_bytes.is_array(new):
    if ours.shape == new.shape:
      ours[...] = new
      return
  elif type(new) in plain_types.CHANGEABLE and isinstance(ours, type(new)):
    ours.clear()
    (ours.update if isinstance(new, (dict, set)) else ours.extend)(new)
    return
  raise TypeError(f'a {type(ours).__name__} became {type(new).__name__}')
