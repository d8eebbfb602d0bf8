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
         seed 3  0.393        0.670   0.891   0.935   0.941
         seed 4  0.369        0.632   0.820   0.862   0.933
  jsd    seed 0  0.364        0.671   0.883   0.934   0.966
         seed 1  0.334        0.790   0.940   0.966   0.979
         seed 2  0.247        0.550   0.830   0.965   0.989
         seed 3  0.393        0.795   0.938   0.965   0.984
         seed 4  0.369        0.690   0.926   0.956   0.979
  kdrl   seed 0  0.364        0.606   0.794   0.896   0.924
         seed 1  0.334        0.657   0.883   0.918   0.972
         seed 2  0.247        0.493   0.705   0.893   0.979
  grpo   seed 0  0.364        0.508   0.748   0.851   0.912
         seed 1  0.334        0.591   0.808   0.937   0.956
         seed 2  0.247        0.445   0.650   0.814   0.979
         seed 3  0.393        0.571   0.832   0.925   0.957
         seed 4  0.369        0.539   0.784   0.873   0.925

Difference to grpo of the same seed; +- is half of the 95 % t interval of five
seeds (of `kdrl` three):

  student                     +0.104  +0.049  +0.021  +0.002
                              +-0.036 +-0.044 +-0.047 +-0.015
  jsd                         +0.168  +0.139  +0.077  +0.034
                              +-0.057 +-0.033 +-0.060 +-0.024
  kdrl                        +0.071  +0.059  +0.035  +0.009
                              +-0.063 +-0.037 +-0.124 +-0.021

A teacher saves samples: whole distributions are ahead of the reward at every
evaluation, and sampled tokens at the first two. All variants have one learning
rate, and no other value of any setting was tried. On two cores the teacher took
2.6 minutes and a student 2.4 to 3.3 minutes.

At equal CPU seconds no variant is ahead of `grpo`, because a teacher with four
times the parameters scores every completion. A step of `grpo` takes 0.62 CPU
seconds, of `student` 1.01 and of `jsd` 0.99 (medians of `perf/cpu_s` of seeds 3
and 4, on one core of an AMD EPYC). pass@1 at equal seconds is interpolated
linearly between the evaluations of the table above. The next table has its
difference to `grpo` of the same seed; +- is half of the 95 % t interval of five
seeds:

  CPU seconds of rl           15      31      46      62
  steps of grpo               25      50      75      100
  steps of student            15.3    30.6    45.9    61.1
  student           seed 0   +0.024  -0.069  -0.063  -0.064
                    seed 1   -0.018  -0.046  -0.072  -0.047
                    seed 2   -0.038  -0.111  -0.192  -0.224
                    seed 3   -0.009  -0.113  -0.071  -0.047
                    seed 4   -0.009  -0.110  -0.084  -0.086
                    mean     -0.010  -0.090  -0.096  -0.093
                             +-0.028 +-0.038 +-0.067 +-0.093
  steps of jsd                15.5    31.0    46.4    61.9
  jsd               seed 0   +0.046  -0.026  +0.002  -0.005
                    seed 1   +0.025  +0.018  -0.018  -0.004
                    seed 2   -0.010  -0.033  -0.024  -0.085
                    seed 3   +0.070  -0.003  -0.008  -0.006
                    seed 4   +0.029  -0.038  +0.019  +0.015
                    mean     +0.032  -0.017  -0.006  -0.017
                             +-0.037 +-0.029 +-0.021 +-0.048

At equal seconds `student` reaches less than `grpo` from 31 CPU seconds on (at
62 the interval ends at 0), and whether `jsd` differs is undecided. These eight
intervals are not corrected for their number. The training of the teacher is not
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
