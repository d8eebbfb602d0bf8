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

Result (5 seeds, each with a warm start of its own, 128 problems; ± is half of
the 95 % t interval, p corrected for 7 criteria).

            rate  pass@1         pass@64        entropy, nats
  before          0.217 ± 0.031  0.795 ± 0.051  0.445 ± 0.030
  all       1e-4  0.266 ± 0.037  0.811 ± 0.042  0.375 ± 0.028
  positive  1e-4  0.281 ± 0.039  0.828 ± 0.023  0.354 ± 0.031
  negative  3e-5  0.246 ± 0.035  0.825 ± 0.047  0.405 ± 0.021
  weighted  3e-5  0.250 ± 0.039  0.828 ± 0.061  0.402 ± 0.022
  random    3e-5  0.183 ± 0.067  0.750 ± 0.166  0.450 ± 0.055

Claim 1 holds in part: pass@1 of `negative` rises by 0.029 ± 0.015 (p 0.002),
and pass@64 of `negative` - `positive` is -0.003 ± 0.032. The study could not
decide claim 2 (`weighted` - `all`: +0.017 ± 0.048 in pass@64, -0.016 ± 0.014 in
pass@1), nor whether the signs matter (`negative` - `random`: +0.062 ± 0.083 in
pass@1). The study takes 24 CPU minutes on a shared AMD EPYC.

An earlier form compared pass@16 on countdown (`expressions.py`), with rates
from 3e-5 to 3e-4 that two seeds chose. Its control lowered the probability of
three quarters of the samples, drawn at random. There `negative` - `positive`
was +0.077 ± 0.087 in pass@16, and `negative` - `random` +0.067 ± 0.033 in
pass@1 (5 seeds).
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
