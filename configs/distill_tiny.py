"""Trains a small student by on-policy distillation from a larger teacher.

  tools/run --config=configs/distill_tiny.py:teacher \\
    --workdir=runs/distill_teacher
  tools/run --config=configs/distill_tiny.py \\
    --workdir=runs/distill --config.seed=0

  problem   3*6-2*3*5+1*6%7=      evaluated from left to right
  solution  4 2 6 2 3#4           every running total, then the answer

The teacher has 1.3 million parameters. It learns worked solutions for 600
steps, and its sampled pass@1 is then 1.000. The student has 0.3 million
parameters. Its supervised stage stops when its loss falls below 0.15. The
argument of the recipe selects the signal of its rl stage:

  student  log-probabilities of the teacher for the sampled tokens
  jsd      divergence from the teacher's whole distributions
  kdrl     the reward, and the log-probabilities of the teacher
  grpo     the reward, without a teacher

`:smoke` needs a teacher of its size: run `:teacher,smoke` first.

Sampled pass@1, 256 held-out problems x 4, by rl steps. Each step samples 6,100
to 6,200 tokens. The other variants began from the warm start of `student` with
the same seed (--config.stages=rl --config.init_from=runs/distill@220):

                 warm start   25      50      75      100
  student seed 0 0.364        0.639   0.818   0.886   0.929
         seed 1  0.334        0.725   0.893   0.929   0.961
         seed 2  0.247        0.509   0.644   0.894   0.977
  jsd    seed 0  0.364        0.671   0.883   0.934   0.966
         seed 1  0.334        0.790   0.940   0.966   0.979
         seed 2  0.247        0.550   0.830   0.965   0.989
  kdrl   seed 0  0.364        0.606   0.794   0.896   0.924
         seed 1  0.334        0.657   0.883   0.918   0.972
         seed 2  0.247        0.493   0.705   0.893   0.979
  grpo   seed 0  0.364        0.508   0.748   0.851   0.912
         seed 1  0.334        0.591   0.808   0.937   0.956
         seed 2  0.247        0.445   0.650   0.814   0.979

Difference to grpo of the same seed; +- is half of the 95 % t interval of three
seeds:

  student                     +0.110  +0.050  +0.036  +0.007
                              +-0.098 +-0.121 +-0.109 +-0.024
  jsd                         +0.156  +0.149  +0.088  +0.029
                              +-0.118 +-0.067 +-0.152 +-0.056
  kdrl                        +0.071  +0.059  +0.035  +0.009
                              +-0.063 +-0.037 +-0.124 +-0.021

A teacher saves samples: the intervals after 25 steps do not contain 0. Whole
distributions have the largest differences. After 75 steps or more, three seeds
do not decide. All variants have one learning
rate, and no other value of any setting was tried. On two cores the teacher took
2.6 minutes and a student 2.4 to 3.3 minutes.

At equal CPU seconds no variant is ahead of `grpo`. A step of `grpo` takes 1.10
CPU seconds (`perf/cpu_s`; 1.09 to 1.11 in three intervals of 5 steps), a step
of `student` 1.88 (1.76 to 2.01 in four intervals), and a step of `jsd` 1.82
(one interval), because a teacher with four times the parameters scores every
completion. These seconds were measured once, in short runs with a teacher after
50 steps of its training. pass@1 at equal seconds is interpolated linearly
between the evaluations of the table above. The next table has its difference to
`grpo` of the same seed; +- is half of the 95 % t interval of three seeds:

  CPU seconds of rl           28      55      83      110
  steps of grpo               25      50      75      100
  steps of student            14.7    29.4    44.1    58.8
  student           seed 0   +0.018  -0.078  -0.075  -0.070
                    seed 1   -0.027  -0.053  -0.084  -0.050
                    seed 2   -0.044  -0.117  -0.202  -0.247
                    mean     -0.018  -0.083  -0.120  -0.122
                             +-0.079 +-0.080 +-0.176 +-0.269
  steps of jsd                15.2    30.3    45.5    60.6
  jsd               seed 0   +0.042  -0.032  -0.007  -0.007
                    seed 1   +0.019  +0.014  -0.024  -0.005
                    seed 2   -0.014  -0.041  -0.035  -0.092
                    mean     +0.016  -0.020  -0.022  -0.035
                             +-0.071 +-0.073 +-0.036 +-0.123

Of these eight intervals, which are not corrected for their number, only that of
`student` after 55 CPU seconds excludes 0. The training of the teacher is not
counted.

With a teacher of 5.3 million parameters (the argument `teacher_5m`; its pass@1
is 1.000) and five seeds, on an H100, the means of `grpo` after 25, 50, 75 and
100 steps are 0.529, 0.774, 0.884 and 0.945. Difference to it, seed by seed; +-
is half of the 95 % t interval:

  student                     +0.107  +0.032  +0.011  +0.003
                              +-0.055 +-0.055 +-0.036 +-0.014
  jsd                         +0.180  +0.128  +0.076  +0.033
                              +-0.058 +-0.050 +-0.049 +-0.017
  kdrl                        +0.090  +0.043  +0.035  +0.009
                              +-0.040 +-0.017 +-0.039 +-0.008

The whole distributions of this teacher are ahead of the reward at every
evaluation, and its sampled tokens at the first one.

A teacher on disk. `early` is a teacher of an easier task (three operations
modulo 5) that stops when its loss falls below 0.2, with a sampled pass@1 of
0.61 and a greedy accuracy of 0.77. It answers 2,048 problems, twice each. The
student learns from these 4,096 answers, or from the first 512 of them: `soft`
trains on the teacher's probabilities of the eight likeliest tokens, `hard` on
the sampled tokens alone.

  tools/run --config=configs/distill_tiny.py:early --workdir=runs/distill_early
  SUITE='task:arithmetic?split=train&ops=+-&modulus=5&min_ops=3&max_ops=3'
  tools/run evaluate --model=runs/distill_early --k=1 --top_logprobs=8 \\
    --suite="$SUITE&max_operand=4&n=2048" --out=evals/distill_early
  tools/run --config=configs/distill_tiny.py:soft --workdir=runs/distill_soft
  tools/run --config=configs/distill_tiny.py:hard --workdir=runs/distill_hard

Sampled pass@1 (greedy), 256 held-out problems x 8, by updates of 64 answers:

                         100            150            200
  4,096   soft seed 0    0.271 (0.297)  0.597 (0.797)  0.609 (0.816)
               seed 1    0.292 (0.324)  0.576 (0.754)  0.594 (0.703)
               seed 2    0.245 (0.254)  0.526 (0.645)  0.641 (0.781)
          hard seed 0    0.240 (0.316)  0.580 (0.746)  0.628 (0.727)
               seed 1    0.280 (0.250)  0.573 (0.707)  0.663 (0.777)
               seed 2    0.219 (0.234)  0.455 (0.543)  0.570 (0.652)
  512     soft seed 0    0.235 (0.285)  0.336 (0.441)  0.392 (0.508)
               seed 1    0.258 (0.273)  0.332 (0.363)  0.380 (0.438)
               seed 2    0.235 (0.227)  0.290 (0.301)  0.367 (0.402)
          hard seed 0    0.208 (0.227)  0.288 (0.316)  0.311 (0.332)
               seed 1    0.250 (0.242)  0.243 (0.207)  0.275 (0.297)
               seed 2    0.226 (0.254)  0.230 (0.191)  0.263 (0.254)

Difference of pass@1, soft to hard of the same seed, mean and standard error:

  4,096                  +0.023         +0.030         -0.006
                         +-0.005        +-0.021        +-0.041
  512                    +0.014         +0.065         +0.097
                         +-0.006        +-0.012        +-0.008

With few answers (--config.sft.teacher=FILE, the first 512 lines), the
distributions help in every seed. With many answers there is no difference at
the end. With 1,024 answers of `teacher` after 495 of its steps, the losses of
both differed by at most 0.001 in 200 updates (seed 0), because this teacher is
certain of nearly every token. A run of `soft` or `hard` takes about a minute
and a half.

Hardware: two CPU cores; or one TPU chip for teacher, student and grpo,
v5e:1x1.
"""

from jaxrl_reason import config as config_lib

TEACHER = 'runs/distill_teacher'
ANSWERS = 'evals/distill_early'
STORED = ('early', 'soft', 'hard')
TEACHERS = ('teacher', 'teacher_5m')
VARIANTS = ('student', *TEACHERS, 'jsd', 'kdrl', 'grpo', *STORED)
ALGORITHMS = dict(student='opd', jsd='gkd', kdrl='kdrl', grpo='dapo')


@config_lib.recipe(VARIANTS)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=20, completion_len=17)
  c.data.knobs = dict(ops='+-*', modulus=7, min_ops=6, max_ops=6, max_operand=6)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=800, rows=64, stop_loss=0.15, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=100, prompts=64, samples=8, steps_per_dispatch=5)
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=25, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  if variant in STORED:
    return stored(c, variant)
  if variant not in TEACHERS:
    return student(c, variant)
  c = teacher(c)
  if variant == 'teacher_5m':
    c.model.update(layers=4, width=320, mlp=960, heads=10, kv_heads=10)
  return c


def teacher(c):
  c.stages = ('sft',)
  c.model.update(width=256, mlp=512, heads=8, kv_heads=8)
  c.sft.update(steps=600, stop_loss=0.0)
  c.sft.optimizer.update(schedule='linear')
  c.eval.every = 100
  return c


def student(c, variant: str):
  c.rl.algorithm = ALGORITHMS[variant]
  if variant != 'grpo':
    c.rl.teacher.weights = TEACHER
  if variant == 'jsd':
    c.rl.logprob_chunk = 8
  if variant == 'kdrl':
    c.rl.loss.distill_coef = 0.1
  return c


def stored(c, variant: str):
  """Learns an easier task, from a teacher that is often wrong."""
  c.stages = ('sft',)
  c.data.knobs.update(ops='+-', modulus=5, min_ops=3, max_ops=3, max_operand=4)
  if variant == 'early':
    c = teacher(c)
    c.sft.update(stop_loss=0.2)
    return c
  c.sft.update(steps=200, teacher=ANSWERS, stop_loss=0.0)
  c.eval.update(every=50, samples=8)
  if variant == 'soft':
    c.sft.loss = 'topk'
  return c
