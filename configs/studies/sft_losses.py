"""Compares losses of a supervised stage on solutions with errors.

  tools/run study --config=configs/studies/sft_losses.py \\
    --out=studies/sft_losses

  problem   3*4-2*3+1%5=      evaluated from left to right, modulo 5
  solution  2 1 3#4           the author erred in the second step

The author of the solutions errs in 0.15 of the steps, and continues from the
wrong result. All solutions are trained on. After 500 steps with the likelihood,
240 updates of 64 solutions follow with each loss, and then 60 steps of RL with
the verifier.

  sft       the likelihood
  dft       https://arxiv.org/abs/2508.05629
  psft      https://arxiv.org/abs/2508.17784, four updates a batch
  eksft     https://arxiv.org/abs/2605.29303, 0.2 of the tokens left out by each
            score, without the two terms of these tokens
  pear      https://arxiv.org/abs/2602.01058, from the author's probabilities
  weighted  the likelihood with a weight of 0 for wrong results, which are known

Result (3 seeds, each with a warm start of its own, 128 problems x 16; ± is half
of the 95 % t interval; p corrected for 10 criteria).

            after the loss                    after RL
            pass@1         minus `sft`        pass@1         minus `sft`
  sft       0.507 ± 0.079                     0.857 ± 0.021
  dft       0.935 ± 0.158  +0.428 ± 0.097     0.974 ± 0.072  +0.117 ± 0.058
  psft      0.538 ± 0.050  +0.032 ± 0.052     0.874 ± 0.020  +0.018 ± 0.008
  eksft     0.231 ± 0.044  -0.276 ± 0.044     0.238 ± 0.039  -0.619 ± 0.029
  pear      0.503 ± 0.073  -0.004 ± 0.011     0.859 ± 0.021  +0.002 ± 0.003
  weighted  0.981 ± 0.042  +0.474 ± 0.112     0.995 ± 0.006  +0.139 ± 0.025

`dft` is better than `sft` directly after the loss (p 0.013), and undecided
after RL (p 0.043). It raises sampled pass@1 to the level of greedy pass@1,
which hardly differs: 0.940 ± 0.156 with `dft`, 0.969 ± 0.070 with `sft`. Two
seeds of three stay below the greedy pass@1 of `sft`. `weighted` is better at
both times (p 0.013 and 0.009). For `psft` and `pear` the study found no
difference. `eksft` is worse (p 0.006 and 0.001), and its greedy pass@1 falls to
0.263 ± 0.073. Half of the tokens of a solution are certain, such as spaces. So
the tokens that `eksft` leaves out are up to 0.8 of all results, beginning with
the results that the policy has not learned. The terms that EKSFT computes on
these tokens (`sft.entropy_coef`, `sft.kl_coef`) were not tried. The variants of
PEAR with blocks and sequences (`sft.block`) were not tried either. The weights
of PEAR were clipped to 0.1 to 10. They are now clipped to exp(-10) to exp(5).

The study takes 11 CPU minutes on a shared AMD EPYC.
"""

import pathlib

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion
from jaxrl_reason.verifiers import resolve

resolve.load_file(str(pathlib.Path(__file__).with_name('signal_tasks.py')))

PASS = 'eval/heldout/pass@1'
AFTER_SFT = f'start/{PASS}'
STEPS = 240
LOSSES = {
  'dft': {'sft.loss': 'dft'},
  # As many updates, each of as many rows.
  'psft': {
    'sft.loss': 'psft',
    'sft.minibatches': 4,
    'sft.rows': 256,
    'sft.steps': STEPS // 4,
  },
  'eksft': {'sft.loss': 'eksft'},
  'pear': {'sft.loss': 'pear', 'sft.behaviour': 'logp'},
  'weighted': {'sft.weights': 'right'},
}


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.stages = ('pretrain', 'sft', 'rl')
  c.data.name = 'written'
  c.data.knobs.update(modulus=5, max_operand=4)
  c.pretrain.update(steps=500, rows=64, steps_per_dispatch=5)
  c.pretrain.optimizer.update(lr=1e-3)
  c.sft.update(steps=STEPS, stop_loss=0.0)
  c.rl.optimizer.lr = 1e-4
  c.eval.update(problems=128, samples=16, harder=False)
  return Study(
    recipe=c,
    settings={'sft': {}, **LOSSES},
    shown=(AFTER_SFT, 'start/eval/heldout/greedy', PASS, 'train/entropy'),
    claims=[
      Claim(
        f'{name} reaches a higher pass@1 than the likelihood.',
        [Criterion(m, name, 'sft', more_than=0.0) for m in (AFTER_SFT, PASS)],
      )
      for name in LOSSES
    ],
  )
