"""Measures the length bias of GRPO (https://arxiv.org/abs/2503.20783).

  tools/run study --config=configs/studies/length.py --out=studies/length

GRPO divides the loss of a completion by its length. The paper finds that
incorrect completions therefore become longer, and that Dr. GRPO, which divides
by a constant, has no such bias. Here, completions of countdown try zero to two
combinations before the correct one, so their length can change.

With a random reward, no length is better than another, and any slope of the
length is a bias. The controls are the true reward, and a learning rate of
almost 0. No setting has a KL penalty (the preset `grpo` has 0.04), so that the
loss alone differs.

With the true reward, each setting has the best of three learning rates by
pass@1 on two seeds that are not evaluated. With the random reward, a setting
has the rate of the same loss with the true reward. This was 6e-4 for all, the
highest that was tried.

Claims were written before the study ran. A slope of less than 4 tokens in 100
steps, about a tenth of the length, counts as none.

Result (5 seeds, each with a warm start of its own, 120 steps; ± is half of the
95 % t interval; slopes are tokens in 100 steps; p corrected for 6 criteria).

                slope, all       slope, incorrect  held-out pass@1
  before                                           0.058 ± 0.013
  grpo          +6.0 ± 33.6      +5.9 ± 33.8       0.000
  dr_grpo       +18.0 ± 10.0     +17.9 ± 10.2      0.000 ± 0.001
  dapo          +9.9 ± 23.0      +10.2 ± 23.0      0.000
  grpo_still    +0.1 ± 0.4       +0.0 ± 0.3        0.058 ± 0.013
  grpo_true     -9.0 ± 8.2       -9.0 ± 8.5        0.113 ± 0.031
  dr_grpo_true  -8.4 ± 8.6       -8.5 ± 8.7        0.114 ± 0.040
  dapo_true     -11.5 ± 5.4      -11.5 ± 5.4       0.115 ± 0.036

The study could not decide any claim about a trained policy. At this rate, a
random reward destroys the policy, and with Dr. GRPO completions become longer
(the claim that they do not is undecided, p 0.053). With the true reward, the
slopes of incorrect completions of GRPO and Dr. GRPO differ by -0.6 ± 12.1, and
those of GRPO and DAPO by 2.5 ± 13.2 (p 1 for both). An earlier form had one
rate, 2e-4, and 60 steps: +4.7 ± 10.5 (`grpo`), +6.3 ± 18.4 (`dr_grpo`), and
with the true reward a difference of 7.4 ± 10.3 to Dr. GRPO (p 0.287). Another
had the KL penalty of the preset `grpo`: 11.0 ± 8.1 (p 0.040). The study takes
about 19 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LENGTH, WRONG = 'slope/train/length_mean', 'slope/train/length_wrong'
NONE = 4.0  # tokens in 100 steps
TRUE = {'rl.rewards.answer.reward': 'task'}


def _recipe():
  c = recipe_beside(__file__, 'expressions.py')
  c.data.completion_len = 64
  c.data.knobs = dict(max_number=8, max_target=24, max_tries=2)
  c.sft.steps = 300
  c.rl.update(steps=120, algorithm='grpo')
  c.rl.loss.kl_coef = 0.0
  c.rl.rewards.answer.reward = 'random'
  c.rl.optimizer.lr = 2e-4
  c.eval.update(problems=64, samples=8, batch=0)
  c.checkpoint.every = 30
  return c


def get_study():
  return Study(
    recipe=_recipe(),
    settings={
      'grpo': {},
      'dr_grpo': {'rl.algorithm': 'dr_grpo'},
      'dapo': {'rl.algorithm': 'dapo'},
      'grpo_still': {'rl.optimizer.lr': 1e-9},
      'grpo_true': TRUE,
      'dr_grpo_true': {'rl.algorithm': 'dr_grpo', **TRUE},
      'dapo_true': {'rl.algorithm': 'dapo', **TRUE},
    },
    shown=(LENGTH, WRONG, 'train/length_mean', 'eval/heldout/pass@1'),
    tuning=Tuning(
      'rl.optimizer.lr',
      (0.3, 1, 3),
      'eval/heldout/pass@1',
      copies={name: f'{name}_true' for name in ('grpo', 'dr_grpo', 'dapo')},
    ),
    claims=[
      Claim(
        'With a random reward, GRPO makes completions longer.',
        [Criterion(LENGTH, 'grpo', more_than=0.0)],
      ),
      *(
        Claim(
          f'With a random reward, {name} keeps their length.',
          [Criterion(LENGTH, name, within=NONE)],
        )
        for name in ('dr_grpo', 'dapo', 'grpo_still')
      ),
      *(
        Claim(
          'With the true reward, incorrect completions grow more with GRPO '
          f'than with {name}.',
          [Criterion(WRONG, 'grpo_true', f'{name}_true', more_than=0.0)],
        )
        for name in ('dr_grpo', 'dapo')
      ),
    ],
  )
