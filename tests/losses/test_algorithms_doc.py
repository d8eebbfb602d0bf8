"""docs/algorithms.md is the output of tools/algorithms_table.py."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[2]


def test_the_table_is_up_to_date():
  path = ROOT / 'tools' / 'algorithms_table.py'
  spec = importlib.util.spec_from_file_location('algorithms_table', path)
  tool = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(tool)
  text = tool.PAGE.read_text()
  assert tool.page(text) == text, 'run tools/algorithms_table.py'
