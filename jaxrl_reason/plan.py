"""Plans a recipe for TPUs: memory, work and time, without a TPU.

  jaxrl plan --config=X.py --topology=v5p:4x4x4 [--config.rl.samples=16 ...]

The recipe's own programs (generate, score, update, or the fused step) are
built from shapes alone and compiled by the real TPU compiler (the extra `tpu`)
for a described topology. A table has their memory, their communication and a
lower bound of the time of a step. Weights are never read: a model on the Hub
has the size that `models/zoo.py` lists under its name. docs/plan.md has an
example.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

from jaxrl_reason import command


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('plan', __doc__)
  p.recipe()
  p.text(
    '--topology', None, 'chip and torus of a slice: v5e:4x4, v5p:4x4x4',
    required=True,
  )  # fmt: skip
  p.number('--num_slices', 1, 'slices, joined by the data axis of the mesh')
  p.text('--model', '', "a name in models/zoo.py, for the recipe's model")
  p.switch('--search', 'search mesh, remat, micro-batches, parts and padding')
  p.switch('--nolargest', 'do not search for the largest batch that fits')
  p.switch('--by_depth', 'compile three depths of a deep model, extrapolate')
  p.switch('--code', 'also generate code: finds kernels that do not compile')
  p.text('--only', '', 'phases: generate,score,update, ...; all if empty')
  p.text('--stage', '', 'this stage alone; if empty, the last of each kind')
  p.text('--seeds', '', 'numbers of seeds in one program, such as 1,4,16')
  p.text('--splits', '', 'chips of the sampler to compare, such as 2,4,6')
  p.text('--json', '', 'file for the plan as JSON; -: print JSON instead')
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  # Imported late, so that a wrong flag is refused at once.
  from absl import logging

  from jaxrl_reason import config as config_lib
  from jaxrl_reason.planning import planner

  logging.set_verbosity(logging.ERROR)

  def say(text):
    return print(text, file=sys.stderr)

  def show(text):
    if a.json != '-':
      print(text, flush=True)

  with command.one_line():
    text, facts = planner.run(
      config_lib.load(a.config, a.changes),
      a.topology,
      say=say,
      show=show,
      slices=a.num_slices,
      model=a.model,
      only=command.listed('--only', a.only, str),
      by_depth=a.by_depth,
      code=a.code,
      search=a.search,
      largest=not a.nolargest,
      stage=a.stage,
      seeds=command.listed('--seeds', a.seeds, str),
      splits=command.listed('--splits', a.splits, str),
    )
    data = json.dumps(facts, indent=1)
    if a.json and a.json != '-':
      pathlib.Path(a.json).write_text(data)
  print(data if a.json == '-' else text)
  if not facts.get('fits', True):
    command.fail(planner.misfits(facts))


if __name__ == '__main__':
  main()
