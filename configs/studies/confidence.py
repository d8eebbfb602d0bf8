"""Compares rewards for the answer and for a stated confidence (RLCR).

  tools/run study --config=configs/studies/confidence.py \\
    --out=studies/confidence

  problem   3*4-2*3+1%5=      evaluated from left to right, modulo 5
  solution  2 0 0 confidence=.7#1

https://arxiv.org/abs/2507.16806 adds the Brier score of a stated confidence to
the reward for a correct answer, and finds that this calibrates the confidence
without a loss of accuracy. `answer` rewards a correct answer alone, `both` adds
the Brier score, and `brier` is the Brier score alone. The warm start learns
solutions with confidences from 0.1 to 0.9 that are drawn at random. `ece` is
the expected calibration error of ten bins, and `auroc` the probability that a
correct completion states a higher confidence than an incorrect one. `both`
keeps the accuracy if it loses less than a fifth of the gain of `answer`.

Result (5 seeds, each with a warm start of its own, 128 problems x 16, 80 steps;
± is half of the 95 % t interval; p corrected for 5 criteria).

          pass@1         ece            brier          auroc
  before  0.516 ± 0.019  0.232 ± 0.030  0.322 ± 0.018  0.490 ± 0.028
  answer  0.740 ± 0.051  0.308 ± 0.103  0.318 ± 0.072  0.495 ± 0.028
  both    0.739 ± 0.056  0.099 ± 0.056  0.195 ± 0.038  0.503 ± 0.011
  brier   0.138 ± 0.384  0.072 ± 0.047  0.047 ± 0.110

  both - answer   pass@1 -0.001 ± 0.015, ece -0.209 ± 0.141, brier -0.123 ±
                  0.078, auroc 0.008 ± 0.025
  brier - answer  pass@1 -0.601 ± 0.363

By RL steps:

                  20             40             60             80
  pass@1  answer  0.595 ± 0.039  0.643 ± 0.069  0.697 ± 0.045  0.740 ± 0.051
          both    0.588 ± 0.030  0.639 ± 0.056  0.690 ± 0.038  0.739 ± 0.056
          brier   0.363 ± 0.163  0.273 ± 0.319  0.160 ± 0.345  0.138 ± 0.384
  ece     answer  0.249 ± 0.034  0.256 ± 0.059  0.285 ± 0.099  0.308 ± 0.103
          both    0.181 ± 0.027  0.154 ± 0.025  0.135 ± 0.025  0.099 ± 0.056
          brier   0.190 ± 0.038  0.179 ± 0.077  0.135 ± 0.085  0.072 ± 0.047

The Brier score calibrates the confidence (holds, p 0.020), and costs less than
a fifth of the gain in accuracy (holds, p 0.006). The study could not decide
whether correct completions state a higher confidence with this reward than
without it (auroc, p 0.209): the policy learns one confidence for all
completions, near its accuracy. A constant confidence equal to pass@1 has a
Brier score of 0.19 here. The Brier score alone raises accuracy less (holds, p
0.020). With four seeds of five it leads to completions that are never correct
and state a low confidence, which has the best Brier score of all.

One learning rate (3e-4) was tried. The study takes about 5 CPU minutes on a
shared AMD EPYC.
"""

import pathlib

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion
from jaxrl_reason.verifiers import resolve

resolve.load_file(str(pathlib.Path(__file__).with_name('signal_tasks.py')))

PASS, ECE, BRIER, AUROC = (
  f'eval/heldout/{x}' for x in ('pass@1', 'ece', 'brier', 'auroc')
)
CONFIDENCE, ANSWER = (f'rl.rewards.{x}.weight' for x in ('stated', 'answer'))


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.data.update(name='confident', completion_len=27)
  c.data.knobs.update(modulus=5, max_operand=4)
  c.rl.steps = 80
  c.rl.optimizer.lr = 3e-4
  c.rl.rewards = {
    'answer': {'reward': 'task', 'weight': 1.0},
    'stated': {'reward': 'brier', 'weight': 0.0},
  }
  c.eval.update(every=20, problems=128, samples=16, harder=False)
  return Study(
    recipe=c,
    settings={
      'answer': {},
      'both': {CONFIDENCE: 1.0},
      'brier': {CONFIDENCE: 1.0, ANSWER: 0.0},
    },
    first_seed=1,  # seed 0 served to choose the recipe
    smoke={'sft.steps': 150, 'sft.rows': 64},  # so that confidences are stated
    shown=(PASS, ECE, BRIER, AUROC),
    claims=[
      Claim(
        'The Brier score calibrates the confidence.',
        [Criterion(m, 'both', 'answer', less_than=0.0) for m in (ECE, BRIER)],
      ),
      Claim(
        'It costs less than a fifth of the gain in accuracy.',
        [Criterion(PASS, 'both', 'answer', more_than=-0.2, of_gain=True)],
      ),
      Claim(
        'Correct completions state a higher confidence than incorrect ones.',
        [Criterion(AUROC, 'both', 'answer', more_than=0.0)],
      ),
      Claim(
        'The Brier score alone raises accuracy less than the answer does.',
        [Criterion(PASS, 'brier', 'answer', less_than=0.0)],
      ),
    ],
  )
