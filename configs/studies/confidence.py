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
  before  0.517 ± 0.017  0.231 ± 0.028  0.322 ± 0.018  0.490 ± 0.028
  answer  0.744 ± 0.057  0.308 ± 0.099  0.317 ± 0.068  0.496 ± 0.034
  both    0.742 ± 0.054  0.099 ± 0.058  0.194 ± 0.036  0.498 ± 0.012
  brier   0.150 ± 0.383  0.130 ± 0.101  0.073 ± 0.116

  both - answer   pass@1 -0.002 ± 0.025, ece -0.209 ± 0.138, brier -0.123 ±
                  0.069, auroc 0.001 ± 0.036
  brier - answer  pass@1 -0.594 ± 0.365

The Brier score calibrates the confidence (holds, p 0.016), and costs less than
a fifth of the gain in accuracy (holds, p 0.013). The study could not decide
whether correct completions state a higher confidence with this reward than
without it (auroc, p 0.461): the policy learns one confidence for all
completions, near its accuracy. A constant confidence equal to pass@1 has a
Brier score of 0.19 here. The Brier score alone raises accuracy less (holds, p
0.016). With four seeds of five it leads to completions that are almost never
correct (pass@1 of 0 to 0.05) and state a low confidence, which has the best
Brier score of all.

One learning rate (3e-4) was tried. The study takes 6 CPU minutes on a shared
AMD EPYC.
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
  c.eval.update(problems=128, samples=16, harder=False)
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
