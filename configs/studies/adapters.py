"""Compares LoRA and steering vectors with training of all weights.

  tools/run study --config=configs/studies/adapters.py \\
    --out=studies/adapters

https://thinkingmachines.ai/blog/lora finds that LoRA of small rank reaches the
result of full training in RL, and that adapters on attention alone are worse
than adapters with as many parameters on all projections.
https://arxiv.org/abs/2505.18706 finds that one vector per layer, added to the
residual stream, comes close to full training. Here the warm start trains all
weights. Adapters are initialized so that they have no effect. `attention` has
LoRA of rank 17 on attention alone, with as many parameters as `lora8`.

Every setting has the best of four learning rates, by pass@1 on two tuning
seeds. An adapter is as good as `full` if it loses less than a fifth of the gain
of `full` over the warm start.

Result (5 seeds, each with a warm start of its own, 256 problems; ± is half of
the 95 % t interval).

             rate  pass@1         gain            minus `full`
  before           0.453 ± 0.020
  full       3e-4  0.622 ± 0.042  +0.169 ± 0.042
  lora8      3e-3  0.607 ± 0.074  +0.154 ± 0.072  -0.015 ± 0.033
  attention  3e-3  0.540 ± 0.018  +0.087 ± 0.020  -0.082 ± 0.029
  vector     5e-3  0.463 ± 0.018  +0.010 ± 0.010  -0.159 ± 0.047

The margin is 0.034. The study could not decide whether `lora8` is as good as
`full` (p 0.39). `attention` and `vector` are not as good (p 0.005 and 0.002).
After the correction, the study could not decide whether `lora8` is better than
`attention` (+0.067 ± 0.061, p 0.074). At 1e-2, LoRA collapsed on both tuning
seeds. The study takes 17 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'
ATTENTION = {'lora.rank': 17, 'lora.targets': '.*attn/(q|k|v|o)'}


def _reaches(name: str, setting: str) -> Claim:
  return Claim(
    f'{name} reaches the result of full training.',
    [Criterion(PASS, setting, 'full', more_than=-0.2, of_gain=True)],
  )


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.rl.steps = 80
  c.rl.optimizer.lr = 1e-4
  c.eval.update(problems=256, samples=16)  # large k is not measured
  lora = {'rl.optimizer.lr': 1e-3}
  return Study(
    recipe=c,
    settings={
      'full': {},
      'lora8': {'lora.rank': 8, **lora},
      'attention': {**ATTENTION, **lora},
      'vector': {'steering': True, 'rl.optimizer.lr': 5e-3},
    },
    shown=(PASS, 'eval/harder/pass@1', 'train/entropy'),
    tuning=Tuning('rl.optimizer.lr', (1 / 3, 1, 3, 10), PASS),
    claims=[
      _reaches('LoRA of rank 8', 'lora8'),
      _reaches('LoRA on attention alone', 'attention'),
      _reaches('One vector per layer', 'vector'),
      Claim(
        'LoRA on all projections is better than on attention alone.',
        [Criterion(PASS, 'lora8', 'attention', more_than=0.0)],
      ),
    ],
  )
