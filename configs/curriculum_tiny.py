"""Trains with a curriculum over chains of 1 to 8 operations modulo 7.

  tools/run --config=configs/curriculum_tiny.py \\
    --workdir=runs/curriculum --config.seed=0

  problem   3*6-2              %7=    one to eight operations, left to right
  solution  4 2#2                     every intermediate result, then the answer

The warm start trains on chains of one to three operations. The controller
`ladder` starts with chains of one operation. When 0.85 of them are solved, it
moves to two operations, and so on. Two fifths of the problems come from the
levels below. The baseline samples uniformly from all lengths, from the same
warm start:

  --config.data.controller.name=uniform --config.data.controller.sources=weights
  --config.data.controller.rungs=None --config.data.controller.climb=None
  --config.data.controller.review=None --config.stages=rl
  --config.init_from=runs/curriculum@1000

Sampled pass@1 of 64 held-out problems x 4 of each length, after 300 steps:

                        1     2     3     4     5     6     7     8
  seed 0  after sft  0.98  0.98  0.98  0.22  0.21  0.16  0.04  0.00
          ladder     0.91  0.98  0.96  0.95  0.96  0.96  0.89  0.75
          uniform    0.97  0.97  0.98  0.89  0.51  0.34  0.14  0.14
  seed 1  after sft  0.97  0.99  0.95  0.27  0.12  0.06  0.01  0.00
          ladder     0.91  0.98  0.96  0.95  0.94  0.96  0.93  0.88
          uniform    0.97  0.99  0.98  0.84  0.33  0.19  0.10  0.15
  seed 2  after sft  0.94  1.00  0.96  0.23  0.19  0.07  0.00  0.00
          ladder     0.73  1.00  1.00  1.00  1.00  0.99  0.99  0.96
          uniform    0.80  1.00  1.00  1.00  0.99  0.99  0.98  0.92

Chance is 0.14. The ladder solves the longest chains with all three seeds.
Uniform sampling stays at chance with two seeds, and solves them a little later
with the third. In longer runs both solve them. Longest chains, seed 0, another
warm start: uniform 0.45 after 450 steps and 0.93 after 750, ladder 0.92 and
0.96. Chains of up to five (`--config=configs/curriculum_tiny.py:5`), ladder and
uniform: 0.80 and 0.41 after 400 steps, 0.93 and 0.55 after 500, 0.98 and 0.96
after 1,000. docs/choosing.md compares the other controllers for 150 steps.

The recipe needs these choices (one seed each):

- A warm start on three lengths. With a warm start on one and two operations,
  chains of three start at 0.09.
- Blanks after a chain (`width`), so that the operands have the same distance
  from their result in chains of all lengths. Chains of four start at 0.07
  without blanks, and at 0.14 to 0.40 with them.
- Blanks after the longest chains as well. With a width of five operations,
  chains of five had no blanks, and the ladder left them at chance.
- A slow ladder. With climb=0.7, review=0.2 and a learning rate of 5e-4, chains
  of five reached 0.26 after 125 steps and fell again. Chains of one to four
  fell too (0.64, 0.89, 0.77, 0.56). If samples are correct only by chance (one
  of seven), a level has little signal, and accuracy falls on the other levels.

Problems that the warm start does not solve: 128 chains of eight operations, for
which no sample of 1,024 has correct steps and the correct answer. After the
ladder, 100 (seed 0) and 122 (seed 1) of them are solved in at least one of 64
samples, and 60 and 116 in at least half:

  S='task:arithmetic?min_ops=8&max_ops=8&ops=%2B-*&modulus=7&max_operand=6'
  tools/run evaluate --model=runs/curriculum@1000 --suite="$S&width=19&n=128" \\
    --k=1024 --batch=8192 --out=evals/before
  tools/run evaluate --model=runs/curriculum --suite="$S&width=19&n=128" \\
    --k=64 --batch=8192 --out=evals/after

A run takes 3 minutes on two shared cores.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

KNOWN = 3  # operations of the warm start


def chains(longest: int) -> dict:
  """Returns one data source per number of operations, its difficulty."""
  return {
    f'chain{n}': dict(
      knobs=dict(min_ops=n, max_ops=n), difficulty=n, supervised=n <= KNOWN
    )
    for n in range(1, longest + 1)
  }


@config_lib.recipe(('8', '4', '5', '6', '7', '9', '10'))
def get_config(longest: str):
  n = int(longest)
  c = config_lib.default()
  c.data.update(name='arithmetic')
  c.data.update(prompt_len=2 * n + 10, completion_len=2 * n + 5)
  # One operation wider, so that the longest chains have blanks as well.
  c.data.knobs = dict(ops='+-*', modulus=7, max_operand=6, width=2 * n + 3)
  c.data.knobs.update(min_ops=1, max_ops=KNOWN)
  c.data.harder = dict(min_ops=n + 1, max_ops=n + 1)
  c.data.sources = chains(n)
  c.data.controller.update(name='ladder', sources='free', rungs=n)
  c.data.controller.update(climb=0.85, review=0.4, window=4096)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=1000, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=300, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=50, problems=64, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
