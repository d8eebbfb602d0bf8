"""Trains on rewards that do not depend on the reference answer.

  tools/run study --config=configs/studies/spurious.py \\
    --out=studies/spurious

https://arxiv.org/abs/2506.10947 finds that RL with a random reward, with a
reward for the format, and even with a reward for incorrect answers raises the
accuracy of a strong pretrained model, but not of others.
https://arxiv.org/abs/2504.16084 (TTRL) rewards the most frequent answer of a
group. `wrong` rewards the most frequent incorrect answer. The weak and the
strong warm start end at different losses. The true reward is the control.

The paper explains the gain of a random reward by clipping, so every batch has
four updates. `clipping.py` compares updates with and without it.

All rewards are parts of one reward, with weights of 0 and 1, so that the runs
of a warm start are one program. Every setting has its own learning rate: 1e-4,
0.3 of it or a tenth of it, the best by pass@1 on two tuning seeds.

Result (5 seeds, each with a warm start of its own, 128 problems; ± is half of
the 95 % t interval).

                      rate  pass@1         gain
  strong, before            0.580 ± 0.045
    truth             1e-4  0.762 ± 0.025  +0.182 ± 0.040
    majority          3e-5  0.635 ± 0.038  +0.055 ± 0.030
    random            1e-5  0.575 ± 0.052  -0.005 ± 0.009
    format            1e-5  0.572 ± 0.060  -0.008 ± 0.021
    wrong             1e-5  0.241 ± 0.052  -0.339 ± 0.050
  weak, before              0.246 ± 0.024
    truth             1e-4  0.304 ± 0.033  +0.058 ± 0.026
    majority          1e-5  0.247 ± 0.036  +0.001 ± 0.022
    random            1e-5  0.244 ± 0.019  -0.002 ± 0.011

The true reward raises pass@1 from both warm starts (holds). The study could not
decide whether the majority raises pass@1 from the strong warm start: p is 0.026
after correction, and the level is 0.025. A random reward and the format are
undecided, and their intervals exclude gains above 0.013. A reward for incorrect
answers lowers pass@1 (the claim does not hold here). At its best learning rate,
no update of a random reward was clipped. These p are corrected for nine claims.
The ninth compared runs without clipping; it is now that of `clipping.py`. The
study takes 26 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'
REWARDS = {
  'truth': 'task',
  'majority': 'majority',
  'random': 'random',
  'format': 'format',
  'wrong': 'wrong_label',
}
WEAK, AT_WEAK = {'sft.stop_loss': 0.3}, ('truth', 'majority', 'random')


def _only(reward: str) -> dict:
  return {
    f'rl.rewards.{name}.weight': float(name == reward) for name in REWARDS
  }


def _raises(name: str):
  return Claim(f'{name} raises pass@1.', [Criterion(PASS, name, more_than=0.0)])


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.eval.update(problems=128, samples=16)  # large k is not measured
  c.sft.stop_loss = 0.1
  c.rl.update(steps=80, minibatches=4)
  c.rl.optimizer.lr = 1e-4
  c.rl.rewards = {
    name: dict(reward=reward, weight=float(name == 'truth'))
    for name, reward in REWARDS.items()
  }
  return Study(
    recipe=c,
    settings={
      **{f'strong_{name}': _only(name) for name in REWARDS},
      **{f'weak_{name}': WEAK | _only(name) for name in AT_WEAK},
    },
    shown=(PASS, 'eval/heldout/maj@16', 'train/entropy'),
    tuning=Tuning('rl.optimizer.lr', (0.1, 0.3, 1), PASS),
    at_once=30,
    claims=[
      *(
        _raises(f'{prior}_{name}')
        for prior, names in (('strong', REWARDS), ('weak', AT_WEAK))
        for name in names
      ),
    ],
  )
