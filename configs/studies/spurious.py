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

Result (5 seeds, each with a warm start of its own, 256 problems x 8; ± is half
of the 95 % t interval; p corrected for 16 criteria):

                      rate  pass@1         gain            lead
  strong, before            0.589 ± 0.029                  0.196 ± 0.025
    truth             1e-4  0.764 ± 0.026  +0.174 ± 0.022
    majority          3e-5  0.637 ± 0.016  +0.048 ± 0.021
    random            1e-5  0.581 ± 0.036  -0.008 ± 0.008
    format            1e-5  0.581 ± 0.035  -0.008 ± 0.014
    wrong             1e-5  0.250 ± 0.046  -0.339 ± 0.055
  weak, before              0.251 ± 0.013                  0.079 ± 0.024
    truth             1e-4  0.300 ± 0.024  +0.049 ± 0.021
    majority          1e-5  0.253 ± 0.023  +0.002 ± 0.013
    random            1e-5  0.244 ± 0.008  -0.007 ± 0.006
    format            1e-5  0.240 ± 0.010  -0.011 ± 0.003
    wrong             1e-5  0.226 ± 0.027  -0.025 ± 0.016
  poor, before              0.160 ± 0.011                  0.028 ± 0.019
    truth             1e-5  0.160 ± 0.016  +0.000 ± 0.007
    majority          1e-5  0.156 ± 0.022  -0.004 ± 0.020

The true reward raises pass@1 from the strong and the weak warm start (holds, p
below 0.001 and 0.018). The majority raises it from the strong one (holds, p
0.019), and from the weak one the study could not decide, although the majority
has a lead there (p 0.005). No reward that ignores the problem raises it: random
and format are undecided or lower it (format from the weak warm start does not
hold, p 0.006), and their intervals exclude gains above 0.006. So the claim that
a random reward helps only the strong warm start could not be decided. Rewards
for incorrect answers lower pass@1 (does not hold, p 0.001; weak: undecided, p
0.087). From the poor warm start not even the true reward raises pass@1, so the
majority has no control there. An earlier form of the study, with 128 problems x
16, had the same signs of all gains, and p 0.026 for the strong majority. The
study takes 19 CPU minutes on a shared AMD EPYC.
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
