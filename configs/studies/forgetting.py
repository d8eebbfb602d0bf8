"""Compares how much RL and supervised learning of a new task forget.

  tools/run study --config=configs/studies/forgetting.py \\
    --out=studies/forgetting

https://arxiv.org/abs/2509.04259 finds that RL forgets less of earlier tasks
than supervised learning that gains as much on a new task, because samples of
the policy keep it near the weights that it began with. The warm start knows
chains of one to three operations, the earlier tasks. The new task has chains of
four operations. Every setting takes 150 updates of 256 rows:

  rl    DAPO
  gold  supervised learning of worked solutions, with RL's learning rate
  own   DAPO's loss on correct samples alone, which are imitated

`old/pass@1` is the mean accuracy on chains of one, two and three operations.
The seeds differ from those of `composition.py`, because its result suggested
the present form of this study.

Result (5 seeds, 15 CPU minutes; the claims were written before the run): RL and
supervised learning learn the new task equally well (holds, p 0.001). The study
could not decide whether any setting forgets, or forgets less than another one:

           chain4          old             chain1
  before   0.246 +- 0.112  0.973 +- 0.026  0.967 +- 0.051
  rl       0.970 +- 0.022  0.968 +- 0.035  0.924 +- 0.113
  gold     0.996 +- 0.003  0.961 +- 0.050  0.889 +- 0.146
  own      0.976 +- 0.013  0.947 +- 0.058  0.877 +- 0.193

rl - gold on the earlier tasks: 0.007 +- 0.021. In `composition.py` worked
solutions lower pass@1 of chain1 to 0.517. The learning rate is 1e-3 there, and
here it is that of RL, 3e-4.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

KNOWN, TRAINED = ('chain1', 'chain2', 'chain3'), 'chain4'
NEW, OLD = f'eval/heldout/{TRAINED}/pass@1', 'old/pass@1'


def _recipe():
  c = recipe_beside(__file__, '../curriculum_tiny.py', '4')
  c.data.controller.update(name='uniform', sources='weights')
  c.data.controller.update(rungs=None, climb=None, review=None)
  for name in KNOWN:
    c.data.sources[name].weight = 0.0
  c.rl.steps = 150
  same_rate = dict(optimizer=dict(lr=c.rl.optimizer.lr))
  c.named = {
    'gold': dict(kind='sft', sft=dict(steps=150, rows=256) | same_rate)
  }
  c.eval.update(every=1000, problems=128, samples=8)
  c.checkpoint.every = 100
  return c


def get_study():
  gold = {f'data.sources.{name}.supervised': False for name in KNOWN}
  gold |= {
    f'data.sources.{TRAINED}.supervised': True,
    'stages': ('sft', 'gold'),
  }
  return Study(
    recipe=_recipe(),
    settings={'rl': {}, 'gold': gold, 'own': {'rl.algorithm': 'psr'}},
    shown=(NEW, OLD, *(f'eval/heldout/{name}/pass@1' for name in KNOWN)),
    old=KNOWN,
    first_seed=5,
    claims=[
      Claim(
        'RL and supervised learning learn the new task equally well.',
        [Criterion(NEW, 'gold', 'rl', within=0.1)],
      ),
      Claim(
        'RL forgets less than supervised learning of worked solutions.',
        [Criterion(OLD, 'rl', 'gold', more_than=0.0)],
      ),
      Claim(
        "So does supervised learning of the policy's own samples.",
        [Criterion(OLD, 'own', 'gold', more_than=0.0)],
      ),
      Claim('RL forgets.', [Criterion(OLD, 'rl', less_than=0.0)]),
    ],
  )
