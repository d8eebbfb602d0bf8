"""Compares training on negative and on positive samples.

  tools/run study --config=configs/studies/samples.py \\
    --out=studies/samples

The paper (https://arxiv.org/abs/2506.01347) makes two claims. 1: training on
incorrect answers alone (NSR) keeps pass@k at large k and does not lower pass@1,
and training on correct answers alone (PSR) loses pass@k. 2: a weight of 0.1 for
correct answers is best over all k. All use rewards of 1 and -1 without a
baseline. Answers are strings that cannot be guessed (`functions.py`), and k is
64. The control `random` has rewards of 1 and -1 at random, whatever the answer,
at the learning rate of `negative`. Updates of Adam then have about equal norms:
on the tuning seed at 1e-4, in updates 6 to 20, 0.0083 for `negative` and 0.0081
for `random`.

Every other setting has its own learning rate: 1e-4, three times it or 0.3 of
it, the best by pass@1 on a tuning seed.

This form of the study has not been run yet. An earlier form compared pass@16 on
countdown (`expressions.py`), with rates from 3e-5 to 3e-4 that two seeds chose.
Its control lowered the probability of three quarters of the samples, drawn at
random. Result (5 seeds, each with a warm start of its own, 128 problems; ± is
half of the 95 % t interval).

            rate  pass@1         pass@16        distinct       entropy, nats
  before          0.177 ± 0.027  0.794 ± 0.023  1.789 ± 0.207  0.352 ± 0.046
  all       1e-4  0.274 ± 0.024  0.747 ± 0.020  2.044 ± 0.129  0.308 ± 0.039
  positive  3e-4  0.299 ± 0.023  0.670 ± 0.064  1.895 ± 0.231  0.310 ± 0.029
  negative  1e-4  0.242 ± 0.026  0.747 ± 0.050  1.980 ± 0.123  0.326 ± 0.036
  weighted  1e-4  0.250 ± 0.031  0.786 ± 0.044  2.023 ± 0.181  0.323 ± 0.036
  random    3e-5  0.175 ± 0.029  0.775 ± 0.040  1.783 ± 0.133  0.346 ± 0.040

Claim 1 held in part: pass@1 of `negative` rises by 0.066 ± 0.031. The study
could not decide whether its pass@16 is above that of `positive` (+0.077 ±
0.087), and could not decide claim 2: `weighted` - `all` is +0.039 ± 0.060 in
pass@16 and -0.023 ± 0.012 in pass@1. `negative` is better than `random` by
0.067 ± 0.033. The study takes about 11 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, LARGE_K = 'eval/heldout/pass@1', 'eval/heldout/pass@64'
RANDOM = {'reward': 'random', 'kwargs': {'p': 0.5}}


def get_study():
  c = recipe_beside(__file__, 'functions.py')
  c.eval.update(problems=128, harder=False)
  c.rl.algorithm = 'w_reinforce'
  c.rl.loss.pos_weight = 1.0
  c.rl.rewards = {'answer': {'reward': 'task', 'weight': 1.0}}
  return Study(
    recipe=c,
    settings={
      'all': {},
      'positive': {'rl.loss.neg_weight': 0.0},
      'negative': {'rl.loss.pos_weight': 0.0},
      'weighted': {'rl.loss.pos_weight': 0.1},
      'random': {'rl.rewards.answer': RANDOM},
    },
    shown=(PASS, LARGE_K, 'train/entropy'),
    tuning=Tuning(
      'rl.optimizer.lr',
      (0.3, 1, 3),
      PASS,
      seeds=1,
      copies={'random': 'negative'},
    ),
    claims=[
      Claim(
        'Negative samples alone keep pass@k, and pass@1.',
        [
          Criterion(LARGE_K, 'negative', 'positive', more_than=0.0),
          Criterion(PASS, 'negative', more_than=-0.02),
        ],
      ),
      Claim(
        'A weight of 0.1 for positive samples is best over all k.',
        [
          Criterion(LARGE_K, 'weighted', 'all', more_than=0.0),
          Criterion(PASS, 'weighted', 'all', more_than=-0.2, of_gain=True),
        ],
      ),
      Claim(
        'The signs matter, and not the size of the updates.',
        [
          Criterion(LARGE_K, 'negative', 'random', more_than=0.0),
          Criterion(PASS, 'negative', 'random', more_than=0.0),
        ],
      ),
    ],
  )
