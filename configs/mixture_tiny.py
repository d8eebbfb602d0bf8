"""Trains on chained arithmetic and countdown, in a fixed ratio of the rows that
are trained on.

  tools/run --config=configs/mixture_tiny.py \\
    --workdir=runs/mixture --config.seed=0

  chains    3*6-2*3=       4 2 6#6
  sums      6 8 2>1:       2+6=8 8/8=1#(2+6)/8

Each data source has its own task, verifier and difficulty. Each row is verified
inside the compiled step by the kernel of its source. Three of four rows that
are trained on should come from countdown. `rl.filter='dead_groups'` masks
zero-variance groups, and their share differs between the tasks.
`data.controller.sources='consumed'` compensates for this difference.

Sampled pass@1 of 64 held-out problems x 4 of each source, mean and standard
error of seeds 0 to 2:

             chains         sums
  after sft  0.51 +- 0.06   0.14 +- 0.01
  after rl   0.59 +- 0.07   0.20 +- 0.03
  gain       0.08 +- 0.03   0.05 +- 0.02   (paired by seed)

Chance is 0.14 for the chains. With a warm start of 150 steps they are at
chance, and RL does not improve them, because answers that are correct by
chance give little signal. A run takes five minutes on two CPU cores shared
with other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=14, completion_len=30)
  c.data.sources = {
    'chains': dict(
      knobs=dict(ops='+-*', modulus=7, min_ops=3, max_ops=3, max_operand=6),
      weight=1.0,
    ),
    'sums': dict(
      name='countdown',
      knobs=dict(max_number=6, max_target=16, ops='+-*'),
      weight=3.0,
    ),
  }
  c.data.controller.update(name='uniform', sources='consumed', window=1024)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=600, rows=64, steps_per_dispatch=10)
  c.sft.optimizer.update(lr=3e-3)
  c.rl.update(steps=120, prompts=32, samples=8, steps_per_dispatch=10)
  c.rl.update(algorithm='dapo', filter='dead_groups')
  c.rl.optimizer.update(lr=5e-4, b2=0.99)
  c.eval.update(every=30, problems=64, samples=4, harder=False)
  c.checkpoint.update(every=30)
  c.log_every = 10
  return c
