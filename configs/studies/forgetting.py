"""Compares how much RL and supervised learning of a new task forget.

  tools/run study --config=configs/studies/forgetting.py \\
    --out=studies/forgetting

https://arxiv.org/abs/2509.04259 finds that RL forgets less of earlier tasks
than supervised learning that gains as much on a new task, because samples of
the policy keep it near the weights that it began with. The warm start knows
countdown, compositions of string functions, and chains of one to three
operations. The new task has chains of four operations:

  rl    DAPO
  gold  supervised learning of worked solutions, with RL's learning rate
  own   DAPO's loss on correct samples alone, which are imitated

`old/pass@1` is the mean accuracy on countdown and string functions.

Result: none yet. The claims were written before the study was run.
"""

from jaxrl_reason import config as config_lib
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.verdicts import Claim, Criterion

NEW, OLD = 'eval/heldout/chain4/pass@1', 'old/pass@1'
CHAIN = dict(name='arithmetic', weight=0.0)
CHAIN_KNOBS = dict(ops='+-*', modulus=7, max_operand=6, width=11)


def _recipe():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=18, completion_len=32)
  c.data.sources = {
    'sums': dict(
      name='countdown',
      weight=0.0,
      knobs=dict(max_number=6, max_target=16, ops='+-*'),
    ),
    'strings': dict(
      name='string_functions',
      weight=0.0,
      knobs=dict(min_functions=1, max_functions=2),
    ),
    'chains': CHAIN | {'knobs': dict(min_ops=1, max_ops=3, **CHAIN_KNOBS)},
    'chain4': dict(
      name='arithmetic',
      weight=1.0,
      supervised=False,
      knobs=dict(min_ops=4, max_ops=4, **CHAIN_KNOBS),
    ),
  }
  c.data.controller.update(name='uniform', sources='weights')
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=2000, rows=64, steps_per_dispatch=10)
  c.sft.optimizer.update(lr=2e-3)
  c.rl.update(steps=150, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.named = {
    'gold': dict(
      kind='sft', sft=dict(steps=40, rows=64, optimizer=dict(lr=3e-4))
    )
  }
  c.eval.update(every=1000, problems=128, samples=8, harder=False)
  c.checkpoint.every = 100
  c.log_every = 5
  return c


def get_study():
  taught = {
    'data.sources.sums.supervised': False,
    'data.sources.strings.supervised': False,
    'data.sources.chains.supervised': False,
    'data.sources.chain4.supervised': True,
    'stages': ('sft', 'gold'),
  }
  equal = Criterion(NEW, 'gold', 'rl', within=0.1)
  return Study(
    recipe=_recipe(),
    settings={'rl': {}, 'gold': taught, 'own': {'rl.algorithm': 'psr'}},
    shown=(NEW, OLD),
    old=('sums', 'strings'),
    claims=[
      Claim('Both learn the new task equally well.', [equal]),
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
