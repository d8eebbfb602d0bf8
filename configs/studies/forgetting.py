"""Compares how much RL and supervised learning of a new task forget.

  tools/run study --config=configs/studies/forgetting.py \\
    --out=studies/forgetting

https://arxiv.org/abs/2509.04259 finds that RL forgets less of earlier tasks
than supervised learning that gains as much on a new task, because samples of
the policy keep it near the weights that it began with. Of several ways to learn
the new task, the one with the smallest KL divergence to these weights, on the
new task, forgets least. The warm start knows two tasks of other kinds
(countdown with two numbers, and string functions), and chains of one to three
operations. The new task has chains of four operations. Every setting takes 150
updates of 256 rows:

  rl    DAPO
  gold  supervised learning of worked solutions, with RL's learning rate
  own   DAPO's loss on correct samples alone, which are imitated

`old/pass@1` is the mean accuracy on countdown and string functions. `kl_base`
is the KL divergence of a run to its warm start, in nats per token, of 8 samples
of 128 held-out chains of four. The seeds differ from those of `composition.py`,
because its result suggested the present form of this study.

This form of the study has not been run yet. In its first form, the old tasks
were only the chains of one to three operations, and the KL divergence was not
measured.

Result of the first form (5 seeds, 15 CPU minutes; the claims were written
before the run): RL and supervised learning learn the new task equally well
(holds, p 0.001). The study could not decide whether any setting forgets, or
forgets less than another one:

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
NEW, OLD, KL = f'eval/heldout/{TRAINED}/pass@1', 'old/pass@1', 'kl_base'
OTHER = {
  'countdown': dict(
    name='countdown',
    knobs=dict(min_numbers=2, max_numbers=2, max_number=30, max_target=60),
  ),
  'functions': dict(
    name='string_functions', knobs=dict(min_functions=1, max_functions=2)
  ),
}


def _recipe():
  c = recipe_beside(__file__, '../curriculum_tiny.py', '4')
  c.data.controller.update(name='uniform', sources='weights')
  c.data.controller.update(rungs=None, climb=None, review=None)
  c.data.completion_len = 24  # tokens of two string functions
  c.data.sources.update(OTHER)
  for name in (*KNOWN, *OTHER):
    c.data.sources[name].weight = 0.0
  c.sft.steps = 3000
  c.rl.steps = 150
  same_rate = dict(optimizer=dict(lr=c.rl.optimizer.lr))
  c.named = {
    'gold': dict(kind='sft', sft=dict(steps=150, rows=256) | same_rate)
  }
  c.eval.update(every=1000, problems=128, samples=8)
  c.checkpoint.every = 100
  return c


def get_study():
  gold = {f'data.sources.{name}.supervised': False for name in (*KNOWN, *OTHER)}
  gold |= {
    f'data.sources.{TRAINED}.supervised': True,
    'stages': ('sft', 'gold'),
  }
  return Study(
    recipe=_recipe(),
    settings={'rl': {}, 'gold': gold, 'own': {'rl.algorithm': 'psr'}},
    shown=(
      NEW,
      OLD,
      KL,
      *(f'eval/heldout/{k}/pass@1' for k in (*OTHER, *KNOWN)),
    ),
    old=tuple(OTHER),
    kl_on=TRAINED,
    first_seed=5,
    claims=[
      Claim(
        'RL and supervised learning learn the new task equally well.',
        [Criterion(NEW, 'gold', 'rl', within=0.1)],
      ),
      *(
        Claim(
          f'{text} forgets less than worked solutions, and stays nearer to the '
          'warm start.',
          [
            Criterion(OLD, name, 'gold', more_than=0.0),
            Criterion(KL, name, 'gold', less_than=0.0),
          ],
        )
        for name, text in (('rl', 'RL'), ('own', "Imitation of RL's samples"))
      ),
      Claim('RL forgets.', [Criterion(OLD, 'rl', less_than=0.0)]),
    ],
  )
