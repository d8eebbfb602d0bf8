"""Sections of a config: their keys are fixed, or open; and those that several
stages have.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections


def nearest(word: str, known: Iterable[str]) -> str:
  """Returns a sentence that names the known word most like this one; '' if none
  is.
  """
  close = difflib.get_close_matches(word, [*known], 1, 0.5)
  return f' Did you mean {close[0]!r}?' if close else ''


class Section(ml_collections.ConfigDict):
  """A section whose keys are fixed: setting another one is an error."""

  def __getitem__(self, key: str) -> Any:
    if isinstance(key, str) and key not in self and '.' not in key:
      raise KeyError(self._unknown(key))
    return super().__getitem__(key)

  def __setitem__(self, key: str, value: Any) -> None:
    if self.is_locked and key not in self:
      raise KeyError(self._unknown(key))
    old = self[key] if key in self else None
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      if isinstance(old, Open):
        value = type(old)(value)
      elif isinstance(old, Section):
        value = _replaced(old, value)
    super().__setitem__(key, value)

  def _unknown(self, key: str) -> str:
    keys = f' The keys here are: {", ".join(self.keys())}'
    return f'unknown key {key!r}.{nearest(key, self.keys()) or keys}'


class Open(ml_collections.ConfigDict):
  """A section that takes new keys: what reads it says which it knows."""

  def __getitem__(self, key: str) -> Any:
    if isinstance(key, str) and key not in self and '.' not in key:
      has = ', '.join(self.keys()) or 'none yet'
      raise KeyError(f'no key {key!r} here, only {has}: set it as a whole')
    return super().__getitem__(key)

  def lock(self) -> 'Open':
    return self


class Named(Open):
  """An open section whose sections are there as soon as something is set in
  them, so that the command line can name a stage, or a section of one, that
  the recipe has not.
  """

  def __init__(self, given: Mapping | None = None, *args, **kwargs):
    super().__init__(None, *args, **kwargs)
    for key, value in (given or {}).items():
      self[key] = value

  def __getitem__(self, key: str) -> Any:
    # What Python asks of every object (__deepcopy__, ...) is no stage.
    new = isinstance(key, str) and key not in self
    if new and '.' not in key and not key.startswith('_'):
      self[key] = Named()
    return super().__getitem__(key)

  def __setitem__(self, key: str, value: Any) -> None:
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      value = Named(value)
    super().__setitem__(key, value)


def _replaced(old: Section, values: Mapping) -> Section:
  """A section made of the values given, which may be some of the old keys."""
  new = Section(old)
  new.lock()
  # As plain values: empty slots of one config cannot be those of another.
  plain = values.to_dict() if hasattr(values, 'to_dict') else values
  new.update(plain)
  return new


def section(fields: Mapping[str, Any]) -> Section:
  """Makes a section of these fields, inner dictionaries sections as well."""
  inner = {k: section(v) for k, v in fields.items() if isinstance(v, dict)}
  return Section({**fields, **inner}).lock()


def optimizer(lr: float, **changes) -> ml_collections.ConfigDict:
  """Makes an optimizer section; `optim.OPTIMIZERS` has the names."""
  made = section(
    dict(
      name='adamw',
      lr=lr,  # peak learning rate
      schedule='constant',  # after warm-up: constant, linear, cosine, wsd
      warmup_steps=10,  # updates of linear warm-up
      b1=0.9,
      b2=0.95,
      eps=1e-8,
      state_dtype='float32',  # of the means it keeps: float32 or bfloat16
      weight_decay=0.0,  # per update, times lr; norms and biases excepted
      clip_norm=1.0,  # global norm of the gradient; 0: no clipping
    )
  )
  made.update(changes)
  return made


def supervised(steps: int, rows: int, lr: float) -> ml_collections.ConfigDict:
  """Makes the section of a supervised stage: next-token loss on worked
  solutions.
  """
  return section(
    dict(
      steps=steps,  # updates, at most
      # Training loss, nats per token over log_every steps, that ends the
      # stage early: a warm start as weak as wanted. 0: none.
      stop_loss=0.0,
      rows=rows,  # examples per update, over all devices
      micro_batches=1,  # pieces the gradient is summed over
      steps_per_dispatch=1,  # updates per compiled call
      logprob_chunk=0,  # columns of logits alive at once; 0: all
      balance_coef=0.0,  # times the experts' load balance, in the loss
      optimizer=optimizer(lr),
    )
  )
