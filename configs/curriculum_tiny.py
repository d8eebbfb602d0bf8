"""Chains of 1 to 5 operations modulo 7, climbed rung by rung.

  python -m jaxrl_reason.main --config=configs/curriculum_tiny.py \\
    --workdir=runs/curriculum --config.seed=0

  problem   3*6-2=        one to five operations, evaluated from left to right
  solution  4 2#2         every running total, then the answer

The warm start knows chains of one and two operations alone. The ladder asks
for chains of one operation until 0.7 of them are solved, then for those of two,
and so on, with a fifth of the draws for what is below. Beside it, uniform draws
over the same chains: `--config.data.controller.name=uniform
--config.data.controller.sources=weights`.

Not run to its end yet, so neither pass@1 nor minutes are given;
tools/benchmarks/controllers.py compares controllers (docs/choosing.md).

Hardware: two CPU cores; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

LONGEST = 5  # operations


def chains(longest: int) -> dict:
  """A source per number of operations, as hard as it is long."""
  return {
    f'chain{n}': dict(
      knobs=dict(min_ops=n, max_ops=n), difficulty=n, supervised=n <= 2
    )
    for n in range(1, longest + 1)
  }


def get_config():
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=20, completion_len=15)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=1, max_ops=2, max_operand=6)
  c.data.harder = dict(min_ops=6, max_ops=6)
  c.data.sources = chains(LONGEST)
  c.data.controller.update(name='ladder', sources='free', rungs=LONGEST)
  c.data.controller.update(window=1024)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=60, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=100, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=5e-4, b2=0.99)
  c.eval.update(every=50, problems=64, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
