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

Claims were written before the study ran. A slope of less than 4 tokens in 100
steps, about a tenth of the length, counts as none.

Result (5 seeds, each with a warm start of its own; ± is half of the 95 % t
interval; slopes are tokens in 100 steps).

                slope, all       slope, incorrect  held-out pass@1
  before                                           0.061 ± 0.027
  grpo          +4.7 ± 10.5      +5.4 ± 10.9       0.045 ± 0.013
  dr_grpo       +6.3 ± 18.4      +6.7 ± 18.3       0.036 ± 0.021
  dapo          +7.5 ± 14.6      +8.0 ± 14.5       0.036 ± 0.017
  grpo_still    -0.0 ± 1.0       +0.8 ± 1.3        0.061 ± 0.027
  grpo_true     -5.4 ± 3.1       -5.4 ± 3.0        0.143 ± 0.065
  dr_grpo_true  -12.6 ± 9.9      -12.8 ± 9.7       0.156 ± 0.075
  dapo_true     -11.7 ± 13.1     -11.7 ± 13.1      0.123 ± 0.055

The study could not decide any claim about a trained policy. With the true
reward, incorrect completions grow by 7.4 ± 10.3 tokens more with GRPO than with
Dr. GRPO (p 0.287), and by 6.3 ± 13.3 more than with DAPO (p 0.515). An earlier
form had the KL penalty of the preset `grpo`: 11.0 ± 8.1 (p 0.040). The study
takes about 8 minutes of a core of a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

LENGTH, WRONG = 'slope/train/length_mean', 'slope/train/length_wrong'
NONE = 4.0  # tokens in 100 steps
TRUE = {'rl.rewards.answer.reward': 'task'}


def _recipe():
  c = recipe_beside(__file__, 'expressions.py')
  c.data.completion_len = 64
  c.data.knobs = dict(max_number=8, max_target=24, max_tries=2)
  c.sft.steps = 300
  c.rl.update(steps=60, algorithm='grpo')
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
