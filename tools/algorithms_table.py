"""Writes the table of docs/algorithms.md from `losses.PRESETS`.

  .venv/bin/python tools/algorithms_table.py
      rewrites the table in place
  .venv/bin/python tools/algorithms_table.py --check
      exits 1 if it is out of date

The text around the table is not changed.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from jaxrl_reason import losses
from jaxrl_reason.losses.settings import keys_read

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'algorithms.md'
BEGIN = '<!-- table: tools/algorithms_table.py -->\n'
END = '<!-- end of table -->\n'
COLUMNS = (
  'Algorithm',
  'Advantage',
  'Policy loss',
  'Ratio',
  'Clip',
  'Aggregation',
  'KL',
  'Other settings',
  'Paper',
)
# Settings with a column of their own.
SHOWN = set(
  'name advantage policy ratio ratio_to clip_low clip_high dual_clip '
  'aggregation kl kl_coef kl_in kl_to count_empty'.split()
)


def settings_cell(preset, s):
  """Returns the settings of a preset that have no column."""
  keys = [k for k in preset if k in losses.DEFAULTS and k not in SHOWN]
  keys = [k for k in keys if preset[k] != losses.DEFAULTS[k]]
  return ', '.join(f'{k}={preset[k]}' for k in keys if k in keys_read(s))


def ratio_cell(s):
  if 'ratio_to' not in keys_read(s):
    return '-'
  level = s['ratio'] if 'ratio' in keys_read(s) else 'token'
  if s['policy'] in ('vespo', 'topr', 'mirror_descent'):
    level = 'sequence_product'
  if s['policy'] == 'gmpo':
    level = 'sequence_mean'
  return f'{level} / {s["ratio_to"]}'


def clip_cell(s):
  if 'clip_low' not in keys_read(s):
    return '-'
  low, high = s['clip_low'], s['clip_high']
  if s['policy'] == 'gmpo':
    return f'e^-{low}, e^{high}'
  return f'1 - {low:g}, 1 + {high:g}'


def aggregation_cell(s):
  if 'aggregation' not in keys_read(s):
    return 'mean over rows'
  return s['aggregation'] + (', empty rows count' if s['count_empty'] else '')


def kl_cell(s):
  if not s['kl_coef']:
    return '-'
  return f'{s["kl"]} to {s["kl_to"]} in {s["kl_in"]}, {s["kl_coef"]:g}'


def row(name):
  preset, s = losses.PRESETS[name], losses.resolve(name)
  return (
    f'`{name}`',
    s['advantage'],
    s['policy'],
    ratio_cell(s),
    clip_cell(s),
    aggregation_cell(s),
    kl_cell(s),
    settings_cell(preset, s) or '-',
    f'[{preset["cite"]}]({preset["paper"]})',
  )


def table():
  lines = [COLUMNS, ['---'] * len(COLUMNS)]
  lines += [row(name) for name in losses.PRESETS]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def page(text):
  """Returns the page with a new table."""
  before, rest = text.split(BEGIN)
  after = rest.split(END)[1]
  return before + BEGIN + table() + END + after


def main():
  text = PAGE.read_text()
  fresh = page(text)
  if '--check' in sys.argv:
    sys.exit(0 if fresh == text else f'{PAGE} is out of date: run this tool')
  PAGE.write_text(fresh)


if __name__ == '__main__':
  main()
