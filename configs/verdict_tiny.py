"""Trains one policy to solve and to verify its own solutions, in one pass.

  tools/run --config=configs/verdict_tiny.py:verdict --workdir=runs/verdict
  tools/run --config=configs/verdict_tiny.py:none --workdir=runs/none

  problem     2*3+1-4*2%5=
  completion  1 2 3#1
  question    =
  verdict     +, or - if the answer is wrong

The argument `none` is the control without verdicts (docs/verdicts.md). 256
held-out problems x 4 samples, sampled pass@1 by RL steps, and the greedy pass@1
at both ends. Both settings began from the same warm start of a seed
(--config.stages=sft, then --config.stages=rl --config.init_from=runs/warm); +-
is half of the 95 % t interval:

                  0        20       40       60       80       greedy
  none    seed 0  0.469    0.516    0.539    0.679    0.752    0.629  0.820
          seed 1  0.399    0.531    0.734    0.885    0.937    0.594  0.992
          seed 2  0.380    0.348    0.369    0.443    0.514    0.531  0.590
  verdict seed 0  0.469    0.490    0.567    0.713    0.783    0.629  0.836
          seed 1  0.399    0.504    0.710    0.847    0.938    0.594  0.996
          seed 2  0.380    0.368    0.328    0.417    0.468    0.531  0.492
  verdict minus            -0.011   -0.012   -0.010   -0.005
  none                     +-0.067  +-0.090  +-0.096  +-0.097

In each quarter of the RL steps, the AUROC of the verdicts on the sampled
completions, their accuracy, and the share of correct completions, which is the
accuracy of always giving the verdict `+`:

  AUROC     seed 0  0.574    0.567    0.599    0.536
            seed 1  0.513    0.570    0.628    0.639
            seed 2  0.514    0.546    0.526    0.570
            mean    0.534    0.561    0.584    0.582
                    +-0.086  +-0.031  +-0.130  +-0.131
  accuracy  seed 0  0.530    0.524    0.607    0.712
            seed 1  0.533    0.568    0.791    0.910
            seed 2  0.620    0.655    0.595    0.558
  correct   seed 0  0.489    0.492    0.621    0.713
            seed 1  0.461    0.596    0.789    0.909
            seed 2  0.342    0.327    0.384    0.418

So training on verdicts hardly changes pass@1, and the verdicts are little
better than chance: at the end, their accuracy is that of always giving the same
verdict. A policy with two layers has to check four steps in one forward pass,
because it does not reason before the verdict.

The weight of the verdicts rises from 0.003 to 0.03 over 40 updates, because the
policy has never seen the question: its first loss is 6 nats. With 0.03 from the
start, the final pass@1 is 0.790, 0.831 and 0.248: seed 2 falls from 0.40 to
0.23 within 20 steps and does not recover. With 0.3 and seed 0 it is 0.554.

The verdict as the only reward, without training on verdicts, from the same warm
starts. `judged` asks the policy, which has never seen the question.
`judged_by_teacher` asks the run runs/verdict of the first command, here with
the same seed. pass@1 by RL steps, and the mean reward of the first and the last
five steps:

                            0      20     40     60     80     reward
  judged            seed 0  0.469  0.002  0.000  0.000  0.000  0.67  0.20
                    seed 1  0.399  0.004  0.000  0.000  0.000  0.41  0.19
                    seed 2  0.380  0.162  0.000  0.000  0.000  0.54  0.24
  judged_by_teacher seed 0  0.469  0.191  0.191  0.191  0.191  0.80  0.89
                    seed 1  0.399  0.211  0.216  0.212  0.188  0.92  0.93
                    seed 2  0.380  0.178  0.176  0.176  0.002  0.38  0.54

pass@1 after 80 steps minus that of `none` is -0.734 +- 0.527 with `judged` and
-0.607 +- 0.311 with `judged_by_teacher`. A policy that always gives the same
answer has a pass@1 of 0.2. The reward of the teacher rises with every seed, and
pass@1 falls to this level or below.

A warm start takes 0.2 to 0.4 min of CPU time, and its rl stage 0.4 to 0.7 min,
with compilation, on two cores with a load of 5 to 16 from other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

JUDGES = {'judged': 'policy', 'judged_by_teacher': 'teacher'}
TEACHER = 'runs/verdict'


@config_lib.recipe(('verdict', 'none', *JUDGES))
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
  if variant != 'none':
    c.rl.verdict.update(ask='=', yes='+', no='-')
  if variant == 'verdict':
    c.rl.loss.update(sft_on='verdict', sft_coef=0.003)
    c.rl.loss.update(sft_coef_end=0.03, sft_steps=40)
  if variant in JUDGES:
    c.rl.rewards = dict(
      answer=dict(reward='task', weight=0.0),
      judge=dict(reward='verdict', weight=1.0),
    )
    c.rl.verdict.by = JUDGES[variant]
  if variant == 'judged_by_teacher':
    c.rl.teacher.weights = TEACHER
  c.eval.update(every=20, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=40)
  c.log_every = 5
  return c
