"""Defines every key of a run: its type, range, default and meaning.

A recipe (`configs/*.py`) starts from `default()` and changes single keys; the
command line changes any key: `--config.rl.samples=16`. `recipe` adds the
argument of a recipe: `--config=configs/arithmetic_tiny.py:smoke`. Setting an
unknown key raises an error. `read` turns a config into a `Run`: typed, frozen
sections. The sections `rl.rewards`, `data.knobs` and `data.harder` accept new
keys.
"""

import ml_collections

from jaxrl_reason.config.data import Controller as Controller
from jaxrl_reason.config.data import Data as Data
from jaxrl_reason.config.recipe_file import load as load
from jaxrl_reason.config.recipes import recipe as recipe
from jaxrl_reason.config.record import Record as Record
from jaxrl_reason.config.record import leaves as leaves
from jaxrl_reason.config.record import read as read_record
from jaxrl_reason.config.rl import RL as RL
from jaxrl_reason.config.run import STAGES as STAGES
from jaxrl_reason.config.run import Eval as Eval
from jaxrl_reason.config.run import Model as Model
from jaxrl_reason.config.run import Run as Run
from jaxrl_reason.config.sections import Named as Named
from jaxrl_reason.config.sections import Open as Open
from jaxrl_reason.config.sections import Section as Section
from jaxrl_reason.config.sections import section as section
from jaxrl_reason.config.training import Optimizer as Optimizer
from jaxrl_reason.names import nearest as nearest

Config = ml_collections.ConfigDict | Run  # the mutable form, or the record


def default() -> ml_collections.ConfigDict:
  """Returns a config with every key of a run at its default."""
  return section(Run())


def read(config: Config) -> Run:
  """Returns the typed record of a config, after checking every value.

  Raises:
    ValueError: names a key that is unknown or missing, or a value of the wrong
      type or outside its range.
  """
  if isinstance(config, Run):
    return config
  return read_record(config.to_dict(), Run)
