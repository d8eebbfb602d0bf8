"""Trains a policy on problems that it writes itself (docs/proposals.md).

  tools/run --config=configs/proposals_tiny.py:warm \\
    --workdir=runs/proposals_warm
  tools/run --config=configs/proposals_tiny.py --workdir=runs/proposals

  propose   3*4-2*3+1%10=?    2+2*4*1-3%10=
  answer    2+2*4*1-3%10=     4 6 6#3

`warm` learns both roles from random problems until its loss falls below 0.6.
Most of this loss is the entropy of the random problems. RL then rewards answers
to the policy's own problems, and problems that some of eight answers solve. It
reads no answer of the data. `data` is RL on problems of the data, from the same
warm start:

  --config=configs/proposals_tiny.py:data

Sampled pass@1, 256 held-out problems x 4, by RL steps of 576 rows:

                0      25     50     75     100    greedy
  self  seed 0  0.332  0.425  0.509  0.588  0.693  0.953
        seed 1  0.345  0.409  0.461  0.541  0.615  0.844
        seed 2  0.284  0.379  0.467  0.565  0.689  0.852
  data  seed 0  0.332  0.435  0.534  0.687  0.762  0.977
        seed 1  0.345  0.400  0.520  0.584  0.672  0.898
        seed 2  0.284  0.388  0.497  0.609  0.737  0.867

Without a problem or an answer of the data, the policy reaches 0.058 +- 0.026
less (95 % t interval of three pairs). 94 to 98 % of its proposals are problems,
and 69 to 87 % of these are solved by some answers and not by all at the end.
Proposals remain like those of the warm start: of 71 near the end, 66 have four
operations and 5 have three. One value of every setting was tried. `warm` takes
a minute and a run two minutes, on two cores shared with much other work.

String functions (`proposed_strings`), which the program also evaluates:

  tools/run --config=configs/proposals_tiny.py:strings_warm \\
    --workdir=runs/strings_warm
  tools/run --config=configs/proposals_tiny.py:strings --workdir=runs/strings

  propose   heecf|LIX=?       dead|IIX=
  answer    dead|IIX=         efbe fgcf#fgcf

`strings_data` is RL on problems of the data, from the same warm start. The same
figures:

                0      25     50     75     100    greedy
  self  seed 0  0.354  0.433  0.466  0.465  0.460  0.551
        seed 1  0.476  0.546  0.569  0.576  0.604  0.703
        seed 2  0.491  0.579  0.602  0.609  0.631  0.668
  data  seed 0  0.354  0.446  0.451  0.479  0.494  0.586
        seed 1  0.476  0.561  0.570  0.619  0.604  0.715
        seed 2  0.491  0.586  0.620  0.649  0.647  0.695

The policy reaches 0.017 +- 0.042 less than with the problems of the data. 99 to
100 % of its proposals are problems at the end, and 57 to 68 % of these are
solved by some answers and not by all.
`strings_warm` and a run take one and a half minutes each.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

WARM = 'runs/proposals_warm'
STRINGS_WARM = 'runs/strings_warm'


@config_lib.recipe(
  ('self', 'warm', 'data', 'strings', 'strings_warm', 'strings_data')
)
def get_config(variant: str):
  of_strings = variant.startswith('strings')
  c = config_lib.default()
  c.data.update(name='proposed', prompt_len=14, completion_len=14)
  c.data.knobs = dict(ops='+-*', modulus=10, min_ops=4, max_ops=4)
  c.data.knobs.update(max_operand=4)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=800, rows=64, stop_loss=0.6, steps_per_dispatch=5)
  c.sft.optimizer.lr = 1e-3
  c.rl.update(steps=100, prompts=8, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dr_grpo', propose='?')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=25, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  if of_strings:
    c.data.update(name='proposed_strings', completion_len=20)
    c.data.knobs = dict(min_functions=2, max_functions=3, functions='RSLXIT')
    c.sft.update(steps=2000, stop_loss=0.0)
  if variant.endswith('warm'):
    c.stages = ('sft',)
    c.data.knobs.asked = 0.5
  else:
    c.stages, c.init_from = ('rl',), STRINGS_WARM if of_strings else WARM
  if variant.endswith('data'):
    c.rl.update(propose='', prompts=72)
  return c
