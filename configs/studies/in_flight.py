"""Compares groups in flight with plain steps, at equal numbers of updates.

  tools/run study --config=configs/studies/in_flight.py \\
    --out=studies/in_flight

`in_flight` keeps four batches in flight: its first three steps only begin
groups, so that both settings make 60 updates on as many groups. The claim, with
its margin, was written before the run.

Result (5 seeds from one warm start, 123 thousand tokens each; ± is half of the
95 % interval):

             held-out pass@1   policy lag
  before     0.458 ± 0.029
  plain      0.536 ± 0.057     0
  in_flight  0.591 ± 0.038     1.7 updates

The claim holds: the difference is 0.055 ± 0.071, which is above -0.05 (p 0.007,
by seeds). The study could not decide whether groups in flight learn more.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'


def get_study():
  recipe = recipe_beside(__file__, 'small.py')
  recipe.rl.steps_per_dispatch = recipe.log_every = 3
  recipe.sft.steps_per_dispatch = 3
  recipe.sft.steps = recipe.eval.every = 1998
  recipe.eval.samples = 16
  return Study(
    recipe=recipe,
    settings={
      'plain': {},
      'in_flight': {
        'rl.steps': 63,
        'rl.in_flight.batches': 4,
        'rl.in_flight.pieces': 4,
        'rl.slots': 2,
        'rl.old_logp': 'sampler',
      },
    },
    shown=(PASS, 'train/policy_lag', 'train/in_flight/idle'),
    warm='shared',
    claims=[
      Claim(
        'Groups in flight learn no worse from the same tokens.',
        [Criterion(PASS, 'in_flight', 'plain', more_than=-0.05)],
      ),
    ],
  )
