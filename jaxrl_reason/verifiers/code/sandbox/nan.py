"""Makes tests fail that compare the order of a NaN.

Every comparison with NaN is false, so `not abs(x - 3.5) > 1e-6` is true for
NaN, and `max(0.0, nan)` is 0.0. A function that returns NaN would pass such
tests.
"""

import builtins
import decimal
import functools
import operator


def orderable(x):
  """Returns x. Raises AssertionError for a NaN or an array with a NaN."""
  if type(x).__module__ == 'numpy' or isinstance(x, (float, decimal.Decimal)):
    differs = x != x
    if differs is True or (differs is not False and differs.any()):
      raise AssertionError('a NaN is ordered with other values')
  return x


# numpy's functions that compare an order.
ORDERS = ('less', 'less_equal', 'greater', 'greater_equal')


def checked(function):
  """Returns a function whose arguments must be orderable."""

  @functools.wraps(function)
  def run(*args, **kwargs):
    return function(*(_elements_orderable(x) for x in args), **kwargs)

  return run


def guard():
  """Replaces the functions of `operator` that compare an order."""
  for name in ('lt', 'le', 'gt', 'ge'):
    setattr(operator, name, checked(getattr(operator, name)))


def _elements_orderable(x):
  for element in x if isinstance(x, (list, tuple)) else ():
    _elements_orderable(element)
  return orderable(x)


def _checked(function):
  @functools.wraps(function)
  def run(*args, **kwargs):
    values = args if len(args) > 1 else args and list(args[0])
    return function([orderable(x) for x in values], **kwargs)

  return run


# Replacements of built-in functions in tests.
FUNCTIONS = {
  name: _checked(getattr(builtins, name)) for name in ('max', 'min', 'sorted')
}
