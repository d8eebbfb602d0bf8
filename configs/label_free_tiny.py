"""Trains without reference answers, and runs the controls that this needs.

  tools/run --config=configs/label_free_tiny.py --workdir=runs/majority
  tools/run --config=configs/label_free_tiny.py:random --workdir=runs/random

  problem   3*6-2*3*5=      evaluated from left to right, modulo 7
  solution  4 2 6#2         every intermediate result, then the answer

The argument of the recipe is the reward. Correctness is measured beside it, and
not rewarded (`train/reward/answer`):

  majority        TTRL: the most frequent answer of a group
  self_certainty  INTUITOR: mean KL divergence from uniform probabilities
  neg_entropy     minus the mean entropy of the tokens
  format          control: any well-formed answer
  random          control: one of two completions
  wrong_label     control: the most frequent incorrect answer
  truth           control: the reference answer

Sampled pass@1, 256 held-out problems x 16, by rl steps; the reward in the first
and the last five steps; and whether the console and the report raised the alarm
"reward does not follow correctness":

                          0      50     100    reward        alarm
  truth           seed 0  0.583  0.672  0.698   0.63   0.73
                  seed 1  0.555  0.631  0.673   0.54   0.68
                  seed 2  0.619  0.697  0.730   0.67   0.73
  majority        seed 0  0.583  0.631  0.638   0.72   0.81
                  seed 1  0.555  0.591  0.620   0.66   0.71
                  seed 2  0.619  0.672  0.673   0.72   0.83
  self_certainty  seed 0  0.583  0.465  0.168   6.25   6.34  yes
                  seed 1  0.555  0.308  0.115   5.28   5.82  yes
                  seed 2  0.619  0.489  0.233   5.77   6.19  yes
  neg_entropy     seed 0  0.583  0.497  0.329  -0.20  -0.25  yes
                  seed 1  0.555  0.478  0.354  -0.26  -0.34
                  seed 2  0.619  0.431  0.161  -0.20  -0.32  yes
  format          seed 0  0.583  0.588  0.538   0.99   1.00
                  seed 1  0.555  0.490  0.433   0.97   1.00
                  seed 2  0.619  0.577  0.530   0.99   1.00  yes
  random          seed 0  0.583  0.508  0.446   0.52   0.50  yes
                  seed 1  0.555  0.489  0.458   0.51   0.49  yes
                  seed 2  0.619  0.576  0.532   0.50   0.51  yes
  wrong_label     seed 0  0.583  0.158  0.134   0.30   0.65  yes
                  seed 1  0.555  0.158  0.136   0.32   0.64  yes
                  seed 2  0.619  0.158  0.125   0.27   0.80  yes

Change of pass@1 since step 0; ± is half of the 95 % t interval of three seeds:

                  50              100
  truth           +0.081 ± 0.017  +0.115 ± 0.009
  majority        +0.046 ± 0.022  +0.058 ± 0.015
  self_certainty  -0.165 ± 0.177  -0.414 ± 0.067
  neg_entropy     -0.117 ± 0.153  -0.304 ± 0.337
  format          -0.034 ± 0.089  -0.085 ± 0.096
  random          -0.061 ± 0.041  -0.107 ± 0.066
  wrong_label     -0.428 ± 0.080  -0.454 ± 0.094

Without reference answers, only the majority raises pass@1. It does so in every
seed, by half of the gain with reference answers. All other rewards lower the
mean after 100 steps, `format` and `neg_entropy` with intervals that contain 0.
The alarm needs a correlation of reward and correctness below 0.1 on
three lines in a row. So it was not raised in two seeds of `format`, where the
correlation was about 0.1, and in one seed of neg_entropy. These runs evaluated
at the steps of the table, and the alarm "reward rises while evaluation falls"
needs four evaluations of the rl stage. With one in 10 steps, as below, seed 0
of self_certainty has the same pass@1. It raises this alarm at step 40, and the
other one at step 65, as it did before. The study
`configs/studies/spurious.py` has other conditions: there, every reward has its
best learning rate.

A run takes 1 to 2 minutes on two cores that it shares with another run.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

# Argument of the recipe -> the device reward.
SIGNALS = {
  name: name
  for name in (
    'majority self_certainty neg_entropy format random wrong_label'.split()
  )
} | {'truth': 'task'}


@config_lib.recipe(SIGNALS)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=16, completion_len=13)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=4, max_ops=4, max_operand=6)
  c.model.update(layers=2, width=48, mlp=96, heads=2, kv_heads=2)
  c.model.update(head_dim=24, qk_norm=True)
  c.sft.update(steps=2000, rows=64, stop_loss=0.1, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=100, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo', minibatches=4)
  c.rl.optimizer.update(lr=3e-5, b2=0.99)
  c.rl.rewards = dict(
    answer=dict(reward='task', weight=0.0),
    signal=dict(reward=SIGNALS[variant], weight=1.0),
  )
  c.eval.update(every=10, problems=256, samples=16, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
