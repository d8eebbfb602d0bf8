"""Defines the paths that tests share. Imports no jax."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def load_recipe(path: pathlib.Path):
  """Imports a recipe file and returns its module."""
  module_spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  return module
