"""Trains one policy to solve and to verify its own solutions, in one pass.

  tools/run --config=configs/verdict_tiny.py:verdict --workdir=runs/verdict
  tools/run --config=configs/verdict_tiny.py:none --workdir=runs/none

  problem     2*3+1-4*2%5=
  completion  1 2 3#1
  question    =
  verdict     +, or - if the answer is wrong

The argument `none` is the control without verdicts (docs/verdicts.md). 256
held-out problems x 4 samples, sampled pass@1 (greedy), and the AUROC of the
verdicts on the sampled completions, as the mean of the last 20 steps:

           warm start     none           verdict        AUROC
  seed 0   0.466 (0.629)  0.776 (0.828)  0.773 (0.828)  0.585
  seed 1   0.398 (0.598)  0.915 (0.992)  0.935 (0.992)  0.614
  seed 2   0.402 (0.535)  0.570 (0.625)  0.584 (0.672)  0.583
  mean     0.42           0.75 +- 0.10   0.76 +- 0.10   0.594 +- 0.010

+-: standard error of three seeds. Training on verdicts does not change pass@1,
and the verdicts are little better than chance. A policy with two layers has to
check four steps in one forward pass, because it does not reason before the
verdict. The accuracy of the verdicts (0.76, 0.90, 0.57) is about that of always
giving the same verdict (0.77, 0.90, 0.53).

The weight of the verdicts rises from 0.003 to 0.03 over 40 updates, because the
policy has never seen the question: its first loss is 6 nats. With 0.03 from the
start, the final pass@1 is 0.790, 0.831 and 0.248: seed 2 falls from 0.40 to
0.23 within 20 steps and does not recover. With 0.3 and seed 0 it is 0.554.

A run takes 2 to 4.5 minutes on two CPU cores with a load of 8 to 15 from other
work, and 45 to 70 s of CPU time.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

# Argument of the recipe -> the weight of the verdicts in the loss, at the start
# of RL and after 40 updates.
WEIGHTS = {'verdict': (0.003, 0.03), 'none': None}


@config_lib.recipe(WEIGHTS)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=12, completion_len=12)
  c.data.knobs = dict(ops='+-*', modulus=5, min_ops=4, max_ops=4, max_operand=4)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=500, rows=64, stop_loss=0.2, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=80, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dr_grpo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  if WEIGHTS[variant]:
    first, last = WEIGHTS[variant]
    c.rl.loss.update(sft_on='verdict', sft_coef=first)
    c.rl.loss.update(sft_coef_end=last, sft_steps=40)
    c.rl.verdict.update(ask='=', yes='+', no='-')
  c.eval.update(every=20, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=40)
  c.log_every = 5
  return c
