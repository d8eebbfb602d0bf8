"""Compares LoRA and steering vectors with training of all weights.

  tools/run study --config=configs/studies/adapters.py \\
    --out=studies/adapters

https://thinkingmachines.ai/blog/lora finds that LoRA of small rank reaches the
result of full training in RL, at ten times its learning rate.
https://arxiv.org/abs/2505.18706 finds that one vector per layer, added to the
residual stream, comes close. Here the warm start trains all weights. Adapters
are initialized so that they have no effect. Their learning rates were chosen
beforehand, 10 and 40 times that of full training.

LoRA, and the vector, are as good as `full` if they lose less than a fifth of
its gain over the warm start.

Result (5 seeds from one warm start, 128 problems; ± is a standard error; the 95
% interval is 2.78 of them wide on each side), warm start 0.467 ± 0.006: `full`
ends at 0.566 ± 0.017, `lora4` at 0.363 ± 0.032, below the warm start and below
`full` by 0.203 ± 0.022: it is not as good. Its reward falls in the first steps,
so ten times the learning rate is probably too high for this small model. Other
rates were not tried. `steering` ends at 0.478 ± 0.008, a gain of +0.010 ±
0.005. This is far below four fifths of the gain of full training.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.eval.update(problems=128, samples=16)  # large k is not measured
  return Study(
    recipe=c,
    settings={
      'full': {},
      'lora4': {'lora.rank': 4, 'rl.optimizer.lr': 5e-3},
      'steering': {'steering': True, 'rl.optimizer.lr': 2e-2},
    },
    shown=(PASS, 'eval/harder/pass@1', 'train/entropy'),
    claims=[
      Claim(
        f'{name} reaches the result of full training.',
        [Criterion(PASS, setting, 'full', more_than=-0.2, of_gain=True)],
      )
      for name, setting in (('LoRA', 'lora4'), ('One vector', 'steering'))
    ],
  )
