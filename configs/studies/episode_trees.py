"""Compares trees of episodes with independent episodes at equal tokens.

  tools/run study --config=configs/studies/episode_trees.py \
    --out=studies/episode_trees

The claims are those of `trees.py`, on the calculator. A problem has

  independent  6 episodes, with DAPO
  flat         6 episodes, with the loss of TreeRL
  turns        8 leaves of four trees that fork before the second turn, after
               the first reply of the calculator
  entropy      8 leaves of four trees that fork once, before the turn whose
               first token has the highest entropy
  grouped      the trees of `turns`, with DAPO: a leaf is a row like any other

An episode with one call has about as many tokens before the reply as after it.
So eight leaves that share the first turn in pairs need as many tokens as six
episodes. Training stops after 15 steps, before the recipe's pass@1 saturates.

The study has no result yet.
"""

import pathlib
import runpy

from jaxrl_reason.studies.grid import recipe_beside


def get_study():
  c = recipe_beside(__file__, '../calculator_tiny.py')
  c.rl.update(steps=15, samples=6)
  c.eval.update(every=1000, problems=128, samples=16)
  c.checkpoint.every = 1000
  path = pathlib.Path(__file__).with_name('trees.py')
  compared = runpy.run_path(str(path))['compared']
  return compared(c, 'turns', {'rl.tree.turns': (1,)})
