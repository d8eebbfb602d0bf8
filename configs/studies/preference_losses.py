"""Compares losses of pairs, before RL and after it.

  tools/run study --config=configs/studies/preference_losses.py \\
    --out=studies/preference_losses

The recipe is configs/pairs_tiny.py with 20 steps of sampling: a correct and an
incorrect completion of the same problem and step are a pair, about 1,000
pairs. 100 updates of 64 pairs follow with each loss, and then 30 steps of RL
with the verifier. `none` goes from the supervised stage to RL. The scale of the
log-probabilities is 0.1, and 2.0 for `simpo` without a margin.

Result (3 seeds, each with a warm start of its own, 256 problems x 4; ± is half
of the 95 % t interval). Sampled pass@1 after the pairs and after RL:

         after the pairs                   after RL
         pass@1         minus `none`       pass@1         minus `none`
  none   0.274 ± 0.161                     0.316 ± 0.330
  dpo    0.323 ± 0.266  +0.049 ± 0.132     0.592 ± 0.580  +0.276 ± 0.267
  ipo    0.364 ± 0.440  +0.090 ± 0.285     0.543 ± 0.642  +0.227 ± 0.356
  kto    0.377 ± 0.408  +0.103 ± 0.258     0.564 ± 0.666  +0.248 ± 0.338
  orpo   0.476 ± 0.409  +0.201 ± 0.255     0.585 ± 0.495  +0.269 ± 0.180
  simpo  0.248 ± 0.417  -0.026 ± 0.258     0.508 ± 0.653  +0.192 ± 0.342

After the correction for ten criteria, the study could not decide any of them (p
0.12 to 0.65): seeds differ more than losses. By seed (0, 1, 2), before and
after RL:

  none   0.226 0.249 0.348    0.194 0.296 0.458
  dpo    0.213 0.328 0.427    0.419 0.499 0.857
  ipo    0.201 0.338 0.553    0.390 0.397 0.841
  kto    0.219 0.366 0.547    0.336 0.498 0.859
  orpo   0.322 0.455 0.649    0.430 0.515 0.810
  simpo  0.104 0.208 0.433    0.319 0.396 0.809

After RL every loss is above `none` in every seed. Directly after the pairs only
`orpo` is above `none` in every seed; its loss contains the likelihood of the
correct completion. `simpo` has no reference, and loses accuracy in two seeds.
`none` has 20 steps of sampling and 100 updates less. A control with as many
updates on the likelihood of the correct completions was not run. The study
takes 10 CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'
AFTER_PAIRS = f'start/{PASS}'
LOSSES = {
  'dpo': {},
  'ipo': {'preference.loss': 'ipo'},
  'kto': {'preference.loss': 'kto'},
  'orpo': {'preference.loss': 'orpo'},
  'simpo': {'preference.loss': 'simpo', 'preference.beta': 2.0},
}


def get_study():
  c = recipe_beside(__file__, '../pairs_tiny.py', 'preference')
  c.rl.steps = 30
  c.named['samples'].rl.steps = 20
  c.eval.update(every=1000, problems=256, samples=4)
  return Study(
    recipe=c,
    settings={'none': {'stages': ('sft', 'rl')}, **LOSSES},
    seeds=3,
    shown=(AFTER_PAIRS, PASS, 'train/entropy'),
    claims=[
      Claim(
        f'{name} raises pass@1, and that of RL after it.',
        [
          Criterion(m, name, 'none', more_than=0.0) for m in (AFTER_PAIRS, PASS)
        ],
      )
      for name in LOSSES
    ],
  )
