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

Result: none yet. The claims were written before the study was run.
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
