"""Trains on rewards that do not depend on the reference answer.

  tools/run study --config=configs/studies/spurious.py \\
    --out=studies/spurious

https://arxiv.org/abs/2506.10947 finds that RL with a random reward, with a
reward for the format, and even with a reward for incorrect answers raises the
accuracy of a strong pretrained model, but not of others.
https://arxiv.org/abs/2504.16084 (TTRL) rewards the most frequent answer of a
group. `wrong` rewards the most frequent incorrect answer. The poor, weak and
strong warm starts end at different losses. The true reward is the control.

The majority should raise pass@1 only if it is right more often than a sample
before RL: `lead/eval/heldout/maj@8`. The poor warm start is near chance (1/7).
On a seed that is not evaluated, its lead was 0.015 and its pass@1 0.165, and
the other two warm starts have a lead. A gain of 0.02 or less counts as none.
The paper expects a gain of a random reward only at the strong warm start, so
the gains at the strong and the weak one are compared.

The paper explains the gain of a random reward by clipping, so every batch has
four updates. `clipping.py` compares updates with and without it.

All rewards are parts of one reward, with weights of 0 and 1, so that the runs
of a warm start are one program. Every setting has its own learning rate: 1e-4,
0.3 of it or a tenth of it, the best by pass@1 on two tuning seeds.

This form of the study has not been run yet. An earlier form had neither the
poor warm start nor `format` and `wrong` at the weak one, 128 problems x 16, and
of each setting only the claim that it raises pass@1. Its result (5 seeds, each
with a warm start of its own; ± is half of the 95 % t interval):

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

The true reward raised pass@1 from both warm starts (holds). The study could not
decide whether the majority raises pass@1 from the strong warm start: p was
0.026 after correction, and the level is 0.025. A random reward and the format
were undecided, and their intervals excluded gains above 0.013. A reward for
incorrect answers lowered pass@1 (the claim did not hold). At its best learning
rate, no update of a random reward was clipped. These p were corrected for nine
claims. The ninth compared runs without clipping; it is now that of
`clipping.py`. The earlier form took 26 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS, VOTE = 'eval/heldout/pass@1', 'eval/heldout/maj@8'
LEAD, GAIN = f'lead/{VOTE}', f'gain/{PASS}'
NONE = 0.02  # a gain that counts as none
REWARDS = {
  'truth': 'task',
  'majority': 'majority',
  'random': 'random',
  'format': 'format',
  'wrong': 'wrong_label',
}
PRIORS = {
  'strong': ({}, REWARDS),
  'weak': ({'sft.stop_loss': 0.3}, REWARDS),
  'poor': ({'sft.stop_loss': 0.5}, ('truth', 'majority')),
}


def _only(reward: str) -> dict:
  return {
    f'rl.rewards.{name}.weight': float(name == reward) for name in REWARDS
  }


def _raises(name: str) -> Claim:
  return Claim(f'{name} raises pass@1.', [Criterion(PASS, name, more_than=0.0)])


def _claims() -> list[Claim]:
  names = [
    f'{prior}_{name}' for prior, (_, own) in PRIORS.items() for name in own
  ]
  apart = ('strong_random', 'strong_majority', 'weak_majority', 'poor_majority')
  return [
    *(_raises(name) for name in names if name not in apart),
    *(
      Claim(
        f'The majority raises pass@1 where it has a lead ({prior}).',
        [
          Criterion(m, f'{prior}_majority', more_than=0.0) for m in (LEAD, PASS)
        ],
      )
      for prior in ('strong', 'weak')
    ),
    Claim(
      'The majority does not raise pass@1 where it has no lead.',
      [
        Criterion(LEAD, 'poor_majority', less_than=0.05),
        Criterion(PASS, 'poor_majority', less_than=NONE),
      ],
    ),
    Claim(
      'A random reward raises pass@1 only at the strong warm start.',
      [
        Criterion(PASS, 'strong_random', more_than=0.0),
        Criterion(GAIN, 'strong_random', 'weak_random', more_than=0.0),
      ],
    ),
  ]


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.eval.update(problems=256, samples=8, harder=False)
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
      f'{prior}_{name}': changes | _only(name)
      for prior, (changes, names) in PRIORS.items()
      for name in names
    },
    shown=(PASS, VOTE, LEAD, 'train/entropy'),
    tuning=Tuning('rl.optimizer.lr', (0.1, 0.3, 1), PASS),
    at_once=30,
    claims=_claims(),
  )
