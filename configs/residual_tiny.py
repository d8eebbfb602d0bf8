"""Raises the temperature of problems with zero-variance groups (ERPO).

  tools/run --config=configs/residual_tiny.py --workdir=runs/solved
  tools/run --config=configs/residual_tiny.py:none --workdir=runs/none

  problem   3*6-2*3*5=      evaluated from left to right, modulo 7
  solution  4 2 6#2         every intermediate result, then the answer

The pool has 256 problems. A run samples each problem about 25 times, with 8
samples. The argument of the recipe selects a kind of zero-variance group. The
temperature of a problem rises by 0.1 after each group of this kind, and falls
by 0.1 after each group whose rewards differ. It stays between 1 and 2:

  solved  all samples are correct, as in ERPO (https://arxiv.org/abs/2511.04800)
  failed  all samples are wrong
  both    either
  none    control: the temperature is 1

Sampled pass@1 at temperature 1, 256 held-out problems x 16, by rl steps; and in
the last 20 steps the share of groups whose samples are all correct, the mean
temperature, and the entropy of the sampled tokens in nats:

                  0      50     100    150    200    solved  T     entropy
  none    seed 0  0.583  0.682  0.721  0.749  0.747  0.567   1     0.063
          seed 1  0.555  0.660  0.707  0.736  0.765  0.542   1     0.073
          seed 2  0.619  0.715  0.743  0.786  0.775  0.637   1     0.058
  solved  seed 0  0.583  0.680  0.715  0.724  0.740  0.444   1.13  0.107
          seed 1  0.555  0.643  0.710  0.763  0.774  0.434   1.09  0.109
          seed 2  0.619  0.699  0.742  0.778  0.789  0.477   1.12  0.100
  both    seed 0  0.583  0.682  0.723  0.719  0.762  0.434   1.13  0.110
          seed 1  0.555  0.646  0.698  0.750  0.756  0.436   1.10  0.113
          seed 2  0.619  0.701  0.739  0.768  0.788  0.480   1.13  0.110

In every seed, the share of groups that are all correct ends lower by 0.11 to
0.16, and the entropy ends at 0.10 to 0.11 instead of 0.06 to 0.07. Difference
to `none` of the same seed; ± is half of the 95 % t interval of three seeds:

          pass@1, 50      100             150             200
  solved  -0.012 ± 0.021  -0.001 ± 0.011  -0.002 ± 0.066  +0.005 ± 0.027
  both    -0.009 ± 0.020  -0.004 ± 0.014  -0.011 ± 0.057  +0.006 ± 0.033

          solved          entropy
  solved  -0.130 ± 0.066  +0.041 ± 0.010
  both    -0.132 ± 0.063  +0.046 ± 0.015

So the temperatures keep entropy and unsolved groups, and no difference of
pass@1 was found. pass@16 is 0.96 to 0.99 after 200 steps in all runs. `failed`
was not run: at the start, 0.02 of the groups fail.

A run takes 1 minute on two cores that it shares with others.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

# Argument of the recipe -> the problems whose temperature rises; '': none.
RAISED = {'solved': 'solved', 'failed': 'failed', 'both': 'both', 'none': ''}


@config_lib.recipe(RAISED)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=16, completion_len=13)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=4, max_ops=4, max_operand=6)
  c.data.controller.update(name='uniform', window=256)
  c.model.update(layers=2, width=48, mlp=96, heads=2, kv_heads=2)
  c.model.update(head_dim=24, qk_norm=True)
  c.sft.update(steps=2000, rows=64, stop_loss=0.1, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=200, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo', minibatches=4)
  c.rl.optimizer.update(lr=1e-4, b2=0.99)
  if RAISED[variant]:
    c.rl.temperature_control.update(residual=0.1, high=2.0)
    c.rl.temperature_control.update(residual_of=RAISED[variant])
  c.eval.update(every=50, problems=256, samples=16, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
