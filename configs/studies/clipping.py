"""Tests whether clipping makes a random reward raise pass@1.

  tools/run study --config=configs/studies/clipping.py \\
    --out=studies/clipping

https://arxiv.org/abs/2506.10947 finds that RL with a random reward raises the
accuracy of a strong pretrained model, and explains this by clipping: without
it, the accuracy stays. In `spurious.py` the best learning rate is so low that
no update is clipped. Here every batch has four updates at a learning rate at
which ratios leave the clipping range of 0.2. Rewards are 0 or 1 at random.

The claim holds if pass@1 rises from the strong warm start with clipping, and is
then higher than without it. The weak warm start is the control.

Result (5 seeds, each with a warm start of its own, 128 problems x 16; ± is half
of the 95 % t interval). The claim does not hold here: a random reward lowers
pass@1 from both warm starts, with and without clipping (p < 0.001 from the
strong one). Whether clipping reduces the loss is undecided.

                  pass@1         gain             greedy
  strong, before  0.580 ± 0.045                   0.867 ± 0.012
    clip          0.226 ± 0.044  -0.354 ± 0.046   0.314 ± 0.087
    free          0.160 ± 0.039  -0.421 ± 0.045   0.177 ± 0.050
  weak, before    0.246 ± 0.024
    clip          0.153 ± 0.028  -0.093 ± 0.015   0.180 ± 0.062
    free          0.154 ± 0.016  -0.092 ± 0.022   0.172 ± 0.051

clip - free is 0.067 ± 0.071 from the strong warm start (p 0.089) and -0.001 ±
0.028 from the weak one. Ratios left the range for 0.1 % of the tokens. The
study takes 7 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'
WEAK = {'sft.stop_loss': 0.3}
FREE = {'rl.loss.clip_low': 1.0, 'rl.loss.clip_high': 1e6}


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.eval.update(problems=128, samples=16)  # large k is not measured
  c.sft.stop_loss = 0.1
  c.rl.update(steps=80, minibatches=4)
  c.rl.loss.update(clip_low=0.2, clip_high=0.2)
  c.rl.optimizer.lr = 1e-4
  c.rl.rewards = {'random': dict(reward='random')}
  return Study(
    recipe=c,
    settings={
      'strong_clip': {},
      'strong_free': FREE,
      'weak_clip': WEAK,
      'weak_free': WEAK | FREE,
    },
    shown=(PASS, 'eval/heldout/greedy', 'train/clip_high', 'train/entropy'),
    claims=[
      Claim(
        'A random reward raises pass@1 if updates are clipped.',
        [Criterion(PASS, 'strong_clip', more_than=0.0)],
      ),
      Claim(
        'Clipping explains this gain.',
        [Criterion(PASS, 'strong_clip', 'strong_free', more_than=0.0)],
      ),
      Claim(
        'From a weak warm start, it does not.',
        [Criterion(PASS, 'weak_clip', 'weak_free', more_than=0.0)],
      ),
    ],
  )
