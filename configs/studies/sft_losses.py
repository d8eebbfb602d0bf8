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
  eksft     https://arxiv.org/abs/2605.29303
  pear      https://arxiv.org/abs/2602.01058, from the author's probabilities
  weighted  the likelihood with a weight of 0 for wrong results, which are known

Result (5 seeds, each with a warm start of its own, 128 problems x 16; ± is half
of the 95 % t interval; p corrected for 10 criteria).

            after the loss                    after RL
            pass@1         minus `sft`        pass@1         minus `sft`
  sft       0.517 ± 0.022                     0.862 ± 0.015
  dft       0.939 ± 0.103  +0.422 ± 0.091     0.955 ± 0.081  +0.093 ± 0.079
  psft      0.538 ± 0.024  +0.021 ± 0.010     0.870 ± 0.014  +0.009 ± 0.003
  eksft     0.342 ± 0.058  -0.175 ± 0.056     0.605 ± 0.168  -0.256 ± 0.174
  pear      0.509 ± 0.021  -0.008 ± 0.007     0.860 ± 0.015  -0.002 ± 0.003
  weighted  0.996 ± 0.005  +0.479 ± 0.025     0.997 ± 0.002  +0.135 ± 0.016

`dft` is better than `sft` directly after the loss (p 0.001), and undecided
after RL (p 0.078). It raises sampled pass@1 to the level of greedy pass@1,
which is 0.948 ± 0.096 with `dft` and 0.989 ± 0.025 with `sft`. `weighted` is
better at both times (p < 0.001), and `psft` too, by little (p 0.014 and 0.004).
`pear` is undecided. `eksft` is worse after the loss (p 0.005), and undecided
after RL (p 0.068). Half of the tokens of a solution are certain, such as
spaces. So the tokens that `eksft` leaves out are up to 0.8 of all results,
beginning with the results that the policy has not learned. All losses have one
learning rate. The variants of PEAR with blocks and sequences (`sft.block`) were
not tried.

Mean reward of the sampled completions in RL steps 1 to 5, 16 to 20, 36 to 40
and 56 to 60:

  sft       0.524 ± 0.016  0.683 ± 0.021  0.798 ± 0.014  0.852 ± 0.019
  dft       0.937 ± 0.108  0.956 ± 0.076  0.972 ± 0.045  0.963 ± 0.061
  psft      0.552 ± 0.034  0.710 ± 0.012  0.810 ± 0.012  0.863 ± 0.018
  eksft     0.339 ± 0.075  0.422 ± 0.119  0.540 ± 0.129  0.587 ± 0.168
  pear      0.520 ± 0.014  0.680 ± 0.020  0.798 ± 0.016  0.849 ± 0.021
  weighted  0.995 ± 0.006  0.997 ± 0.004  0.997 ± 0.002  0.996 ± 0.003

An earlier form had three seeds, and `eksft` without its two terms for the
tokens that it leaves out: -0.276 ± 0.044 and -0.619 ± 0.029. The study takes
about 13 CPU minutes on a shared AMD EPYC.
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
