"""Fills the table of docs/which_recipe.md: models, chips, and cost of a step.

  JAXRL_EXTRAS=tpu,hf tools/run keys rl.prompts  # installs libtpu
  .venv/bin/python tools/model_table.py [--models=qwen3-8b] [--on=v5e-8]

Each row is a recipe that `jaxrl start` writes with `--on`, by compiling for
TPUs that are not here, or by arithmetic alone for a GPU. A compiled row takes
minutes. It is written as soon as it is known, and the same command continues
with the first row that is missing. The page lists the missing rows below the
table.
"""

import argparse
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'which_recipe.md'
MODELS = {
  'qwen2.5-0.5b': 'Qwen/Qwen2.5-0.5B-Instruct',
  'qwen3-1.7b': 'Qwen/Qwen3-1.7B',
  'qwen3-4b': 'Qwen/Qwen3-4B',
  'qwen3-8b': 'Qwen/Qwen3-8B',
  'qwen3-14b': 'Qwen/Qwen3-14B',
  'qwen3-32b': 'Qwen/Qwen3-32B',
}
CHIPS = ('v5e-8', 'v5e-16', 'v6e-8', 'v5p-8', 'h100')
LENGTHS = ('--prompt_len=256', '--completion_len=1024')
BEGIN, END = '<!-- rows -->\n', '<!-- end -->'
ROW = '{"question": "What is %d * 7?", "answer": "%d"}\n'
# The last note of a recipe that `start` wrote for chips.
COST = re.compile(
  r'(?P<topology>\S+), (?P<what>[^:]+): a step of \d+ completions takes at '
  r'least (?P<least>\S+) s, or (?P<most>\S+) s if nothing overlaps; '
  r'(?P<gib>\S+ of \S+) GiB'
)
ESTIMATE = re.compile(
  r'\S+, (?P<what>[^:]+): about (?P<gib>[\d.]+ of the [\d.]+) GiB that jax '
  r'takes, by arithmetic alone'
)
SETTING = re.compile(
  r"c\.mesh = (?P<mesh>\(.*?\))|remat='(?P<remat>\w+)'|"
  r"micro_batches=(?P<micro>\d+)|parts=(?P<parts>\d+)|padding='(?P<pad>\S+?)'"
)


def known(text: str) -> dict[tuple[str, str], str]:
  """Returns the rows of the page by (model, chips)."""
  lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
  rows = [line for line in lines if line.startswith('|')]
  cells = ([c.strip() for c in row.split('|')[1:3]] for row in rows)
  return {(c[0], c[1]): row for c, row in zip(cells, rows)}


def started(model: str, chips: str) -> str:
  """Returns the recipe that `jaxrl start` writes, or its error."""
  with tempfile.TemporaryDirectory() as folder:
    data = pathlib.Path(folder) / 'mine.jsonl'
    rows = [ROW % (i, 7 * i) for i in range(100)]
    data.write_text(''.join(rows))
    out = pathlib.Path(folder) / 'recipe.py'
    command = [
      sys.executable, '-m', 'jaxrl_reason', 'start', f'--on={chips}',
      f'--model=hf:{MODELS[model]}', f'--data={data}', f'--out={out}', *LENGTHS,
    ]  # fmt: skip
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    return out.read_text() if out.exists() else found.stderr


def row_of(model: str, chips: str, recipe: str, seconds: float) -> str:
  """Returns a row of the table from a recipe.

  Raises:
    ValueError: `start` failed for another reason than memory.
  """
  head, minutes = f'| {model} | {chips} |', f'{seconds / 60:.0f} |'
  if 'fits on no mesh' in recipe:
    return f'{head} does not fit | | | | | {minutes}'
  text = ' '.join(recipe.split())
  cost = COST.search(text) or ESTIMATE.search(text)
  if not cost:
    raise ValueError(f'{model} on {chips}: {recipe[-2000:]}')
  found: dict[str, str] = {}
  for match in SETTING.finditer(recipe):
    found |= {k: v for k, v in match.groupdict().items() if v}
  batches = 'micro-batch' + 'es' * (found['micro'] != '1')
  settings = [f'remat `{found["remat"]}`', f'{found["micro"]} {batches}']
  settings += [f'{found["parts"]} parts'] * (found['parts'] != '1')
  settings += [f'`{found["pad"]}`'] * ('pad' in found)
  time_range = 'not known'
  if cost.re is COST:
    time_range = f'{cost["least"]} to {cost["most"]}'
  gib = cost['gib'].replace(' the', '')
  cells = (cost['what'], found['mesh'], ', '.join(settings), gib)
  return f'{head} {" | ".join((*cells, time_range))} | {minutes}'


def missing(rows: dict[tuple[str, str], str]) -> str:
  """Returns a sentence that lists the rows that the page lacks."""
  lacking = []
  for chips in CHIPS:
    models = [m for m in MODELS if (m, chips) not in rows]
    lacking += [f'{chips} ({", ".join(models)})'] * bool(models)
  return f'Missing rows: {"; ".join(lacking) or "none"}.'


def written(rows: dict[tuple[str, str], str], text: str) -> str:
  """Returns the page with these rows, in the order of models and chips."""
  order = [key for key in itertools.product(MODELS, CHIPS) if key in rows]
  body = ''.join(f'{rows[key]}\n' for key in order) + f'\n{missing(rows)}\n'
  return text.partition(BEGIN)[0] + BEGIN + body + END + text.partition(END)[2]


def main() -> None:
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('--models', default=','.join(MODELS))
  p.add_argument('--on', default=','.join(CHIPS))
  a = p.parse_args()
  for chips in a.on.split(','):
    for model in a.models.split(','):
      if (model, chips) in known(PAGE.read_text()):
        continue
      begun = time.monotonic()
      recipe = started(model, chips)
      row = row_of(model, chips, recipe, time.monotonic() - begun)
      text = PAGE.read_text()
      PAGE.write_text(written(known(text) | {(model, chips): row}, text))
      print(row, flush=True)


if __name__ == '__main__':
  main()
