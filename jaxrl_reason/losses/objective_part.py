"""Parts of an objective: functions of arrays together with their settings."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax

from jaxrl_reason.losses.arrays import (
  SHAPES,
  Arrays,
  Metrics,
  Sums,
  keep,
  required,
  safe_divide,
  stop,
)
from jaxrl_reason.names import nearest

P = TypeVar('P')


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of an objective: a function of arrays together with its settings.

  Subclasses are frozen records whose fields are the settings; `part` makes one
  of a function. A part of your own needs only `reads` and `__call__`. Add it to
  an objective by `dataclasses.replace(objective, policy=MyPart())`.

  Attributes:
    fn: the function behind the part.
    reads: names of the arrays it takes, in the order of its arguments.
    also: names of optional arrays, taken by keyword.
    per_row: whether a policy's loss is [N] and not [N, T].
    any_policy: whether a policy's loss holds for samples of any policy, without
      a ratio to the sampling policy.
    names: (field, argument of `fn`, flat setting) of each setting.
  """

  fn: ClassVar[Callable[..., Any]]
  reads: ClassVar[tuple[str, ...]] = ()
  also: ClassVar[tuple[str, ...]] = ()
  per_row: ClassVar[bool] = False
  any_policy: ClassVar[bool] = False
  names: ClassVar[tuple[tuple[str, str, str], ...]] = ()

  @classmethod
  def read(cls, settings: Mapping[str, Any]) -> 'Part':
    """Makes the part from the flat settings of a run.

    Raises:
      ValueError: a setting of the part is none of the flat settings.
    """
    for field, _, key in cls.names:
      if key not in settings:
        raise ValueError(
          f'losses: {cls.__name__}.names reads {field!r} from the setting '
          f'{key!r}, which does not exist.{nearest(key, settings)} Name a '
          'setting of losses.DEFAULTS, or leave the field out of names: it '
          'keeps its default.'
        )
    return cls(**{field: settings[key] for field, _, key in cls.names})

  @functools.cached_property
  def options(self) -> dict[str, Any]:
    """Returns the fields by the names of the arguments of `fn`."""
    return {argument: getattr(self, field) for field, argument, _ in self.names}

  @property
  def keys_read(self) -> set[str]:
    """Names the flat settings that have an effect, given the others."""
    return {key for _, _, key in self.names}

  def metrics(self, arrays: Arrays, denominators: Sums) -> Metrics:
    """Computes the metrics of a policy's loss; none by default."""
    return {}

  def take(self, arrays: Mapping[str, Any]) -> list[Any]:
    """Returns the arrays that the part reads; only old_logp may be None."""
    return [required(arrays, name, 'old_logp') for name in self.reads]

  def __call__(self, arrays: Mapping[str, Any]) -> Any:
    """Calls `fn` with its arrays and settings."""
    also = {k: arrays[k] for k in self.also}
    return self.fn(*self.take(arrays), **also, **self.options)


def flat_names(prefix: str, fields: str) -> tuple[tuple[str, str, str], ...]:
  """Makes `Part.names` of fields whose flat setting is prefix_field."""
  return tuple((f, f, f'{prefix}_{f}') for f in fields.split())


class Weight(Part):
  """A part that computes a factor [N, T] of the policy's loss.

  `metric` names the removed share of the weight; None: no metric.
  """

  metric: ClassVar[str | None] = None

  def sums(self, arrays: Arrays) -> dict[str, jax.Array]:
    """Computes the sums over the batch that the part needs, {name: scalar}."""
    return {}

  def weight(
    self, arrays: Arrays, denominators: Sums
  ) -> tuple[jax.Array, Metrics]:
    """Computes the factor [N, T], and its metrics."""
    w, mask = self(arrays), arrays['mask']
    share = safe_divide(keep(mask, 1 - w).sum(), denominators['tokens'])
    return w, {} if self.metric is None else {self.metric: stop(share)}


# Fields with shorter names than their flat settings.
_SHORT = dict(
  clip_low='low', clip_high='high', dual_clip='dual', clip_high_entropy='wide'
)


def _described(fn, reads, flat):
  """Returns the class attributes with which a part calls `fn`, and the defaults
  of its settings by field.
  """
  arguments = inspect.signature(fn).parameters.values()
  arrays = [a.name for a in arguments if a.kind is not a.KEYWORD_ONLY]
  keyword = [a for a in arguments if a.kind is a.KEYWORD_ONLY]
  settings = {a.name: a.default for a in keyword if a.name not in SHAPES}
  names = [(_SHORT.get(k, k), k, (flat or {}).get(k, k)) for k in settings]
  attributes = dict(
    fn=staticmethod(fn),
    reads=tuple((reads or {}).get(k, k) for k in arrays),
    also=tuple(a.name for a in keyword if a.name in SHAPES),
    names=tuple(names),
  )
  return attributes, {field: settings[argument] for field, argument, _ in names}


@dataclass_transform(frozen_default=True)
def part_of(
  fn: Callable[..., Any], *, reads: Mapping[str, str] | None = None
) -> Callable[[type[P]], type[P]]:
  """Returns a decorator that makes a class with written fields the part of fn.

  The fields are the settings of `fn`, with its defaults, so that an editor and
  a type checker read them. Otherwise the same as `part`.

  Raises:
    TypeError: the fields or their defaults are not those of `fn`.
  """
  attributes, defaults = _described(fn, reads, None)

  def decorate(cls: type[P]) -> type[P]:
    for name, value in attributes.items():
      setattr(cls, name, value)
    made = dataclasses.dataclass(frozen=True)(cls)
    written = {f.name: f.default for f in dataclasses.fields(made)}
    if written != defaults:
      raise TypeError(
        f'{cls.__name__} has the fields {written}, and {fn.__name__} takes '
        f'{defaults}: write the same names and defaults in both.'
      )
    return made

  return decorate


def part(
  name: str,
  fn: Callable,
  base: type[Part] = Part,
  *,
  reads: Mapping[str, str] | None = None,
  flat: Mapping[str, str] | None = None,
  **attributes: Any,
) -> type[Part]:
  """Makes the record of a function's settings: a subclass of `base`.

  Positional arguments of the function are arrays, and so are keyword ones that
  `SHAPES` knows; the others are settings with their defaults.

  Args:
    name: of the class.
    fn: arrays, settings -> array.
    reads: {argument: array} where an array has another name than its argument.
    flat: {argument: setting} where the flat setting has another name.
    attributes: further attributes of the class.
  """
  described, defaults = _described(fn, reads, flat)
  namespace = dict(
    __doc__=f'`{fn.__name__}` as a part of an objective.',
    __module__=fn.__module__,
    **described,
    **attributes,
  )
  fields = [(field, Any, default) for field, default in defaults.items()]
  return dataclasses.make_dataclass(
    name, fields, bases=(base,), frozen=True, namespace=namespace
  )
