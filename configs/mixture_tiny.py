"""Two tasks at once: chained arithmetic and countdown, in the ratio wanted of
what is learnt from.

  python -m jaxrl_reason.main --config=configs/mixture_tiny.py \\
    --workdir=runs/mixture --config.seed=0

  chains    3*6-2*3=       4 2 6#6
  sums      6 8 2>1:       2+6=8 8/8=1#(2+6)/8

Each source has its own task, verifier and difficulty; a row is judged by the
kernel of its source, inside the compiled step. Three rows of four that are
learnt from shall be countdown's: groups without signal are left out
(`rl.filter='dead_groups'`), of which the two tasks have different shares, and
`data.controller.sources='consumed'` makes up for that.

Seed 0, sampled pass@1 of 64 held-out problems x 4 of each source:

             chains  sums
  after sft  0.137   0.078
  after rl   0.121   0.164

89 s (1.5 min) on two CPU cores shared with other work, 38 of them compiling.
Four of five rows generated were countdown's (0.80 after 10 steps, 0.82 at the
end), for the three of four that are learnt from. The chains stay at chance
(0.14), from where rl does not move them in 60 steps: their warm start is too
short.

Hardware: two CPU cores; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


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
  c.sft.update(steps=150, rows=64, steps_per_dispatch=10)
  c.sft.optimizer.update(lr=3e-3)
  c.rl.update(steps=60, prompts=32, samples=8, steps_per_dispatch=10)
  c.rl.update(algorithm='dapo', filter='dead_groups')
  c.rl.optimizer.update(lr=5e-4, b2=0.99)
  c.eval.update(every=30, problems=64, samples=4, harder=False)
  c.checkpoint.update(every=30)
  c.log_every = 10
  return c
