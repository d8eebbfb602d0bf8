"""Compares rewards with a teacher that sees the reference solution.

  tools/run study --config=configs/studies/self_distillation.py \\
    --out=studies/self_distillation

  problem   3+5-2+4-1=           from left to right, results from 0 to 20
  solution  8 6 10#9
  teacher   3+5-2+4-1=8 6 10#9:  the prompt under which the teacher scores

The warm start learns solutions of plain problems and of problems whose prompt
contains the solution. Every setting then reads 60 x 32 problems: `sft` with
their solutions, the others with eight samples of each.

  dapo       the verifier alone
  sft        supervised learning of the solutions
  opsd       the teacher is the warm start (https://arxiv.org/abs/2601.18734)
  opsd_top2  the same over the two most likely tokens of the teacher, and one
             class for all others
  sdpo       the teacher is the policy, over its two likeliest tokens and the
             total of all others (https://arxiv.org/abs/2601.20802)
  sdpo_top8  the same over eight tokens. This setting was added after the
             result of `sdpo`, so it has no claim
  sdft       the teacher is a running mean of the policy
             (https://arxiv.org/abs/2601.19897)

The loss of all teachers is the Jensen-Shannon divergence, without a reward.
`opsd_top2` equals `opsd` if pass@1 differs by less than 0.03. Each setting but
`sft` has the better of two learning rates on a seed that is not evaluated.
`sft` has the learning rate of the warm start.

Result (5 seeds, each with a warm start of its own, 128 problems x 16; ± is half
of the 95 % t interval; p corrected for 7 criteria). `shown` is the pass@1 under
the prompt of the teacher.

             lr    pass@1         minus `dapo`    minus `sft`     shown
  before           0.213 ± 0.039                                  0.885 ± 0.107
  dapo       3e-4  0.223 ± 0.057                                  0.823 ± 0.088
  sft        1e-3  0.241 ± 0.025  +0.017 ± 0.037                  0.663 ± 0.099
  opsd       9e-4  0.246 ± 0.056  +0.023 ± 0.010  +0.005 ± 0.034  0.691 ± 0.121
  opsd_top2  9e-4  0.241 ± 0.053  +0.018 ± 0.029                  0.671 ± 0.160
  sdpo       3e-4  0.144 ± 0.081  -0.080 ± 0.080  -0.097 ± 0.080  0.511 ± 0.465
  sdpo_top8  3e-4  0.137 ± 0.165  -0.086 ± 0.168                  0.525 ± 0.596
  sdft       3e-4  0.242 ± 0.060  +0.018 ± 0.020  +0.001 ± 0.039  0.799 ± 0.177

`opsd` reaches more than `dapo` (holds, p 0.011). The study could not decide
whether `sdft` does (p 0.173), whether any setting reaches more than `sft`, and
whether `opsd_top2` and `opsd` are equal (-0.005 ± 0.024, p 0.126). `sdpo` is
below its warm start with all five seeds. The claims that it reaches more than
`dapo` and `sft` are undecided (p 0.153 and 0.098 for the opposite). `sdpo_top8`
is above its warm start with three seeds and at 0.000 with two, so the number of
tokens is not the only reason. Two other differences from `opsd_top2` remain:
the teacher moves with the policy, and the policy selects the tokens. With the
warm start or a running mean as the teacher, no seed collapsed. The study takes
18 CPU minutes on a shared AMD EPYC.
"""

import pathlib

from jaxrl_reason.studies.grid import Study, Tuning, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion
from jaxrl_reason.verifiers import resolve

resolve.load_file(str(pathlib.Path(__file__).with_name('signal_tasks.py')))

PASS = 'eval/heldout/plain/pass@1'
STEPS, PROBLEMS = 60, 32
SHOWN = {
  'rl.algorithm': 'gkd',
  'rl.logprob_chunk': 8,
  'rl.teacher.prompt': '{prompt}{solution}:',
  'rl.teacher.prompt_len': 36,
}
POLICY = SHOWN | {'rl.teacher.weights': 'policy', 'rl.algorithm': 'sdpo'}
REFERENCE = SHOWN | {'rl.teacher.weights': 'reference'}
TOP_2 = {'rl.loss.distill_top_k': 2}
SELF = {
  'opsd': REFERENCE,
  'sdpo': POLICY | TOP_2,
  'sdft': REFERENCE | {'rl.reference.ema': 0.95},
}


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.data.update(name='shown', prompt_len=28)
  c.data.knobs = dict(ops='+-', modulus=0, min_ops=4, max_ops=4)
  c.data.knobs.update(max_operand=5, max_total=20)
  c.data.sources = {
    'plain': {'weight': 1.0},
    'shown': {'weight': 0.0, 'knobs': {'shown': 1.0}},
  }
  c.sft.update(steps=360, stop_loss=0.0)
  more = dict(steps=STEPS, rows=PROBLEMS)
  c.named = {'more': dict(kind='sft', sft=more)}
  c.rl.update(steps=STEPS, prompts=PROBLEMS)
  c.rl.optimizer.lr = 3e-4
  c.eval.update(problems=128, samples=16, harder=False)
  return Study(
    recipe=c,
    settings={
      'dapo': {},
      'sft': {
        'stages': ('sft', 'more'),
        'data.sources.shown.supervised': False,
      },
      **SELF,
      'opsd_top2': REFERENCE | TOP_2,
      'sdpo_top8': POLICY | {'rl.loss.distill_top_k': 8},
    },
    first_seed=1,  # seed 0 served to choose the recipe
    shown=(PASS, 'eval/heldout/shown/pass@1', 'train/entropy'),
    tuning=Tuning('rl.optimizer.lr', (1, 3), PASS, seeds=1),
    claims=[
      *(
        Claim(
          f'{name} reaches more than {other}.',
          [Criterion(PASS, name, other, more_than=0.0)],
        )
        for name in SELF
        for other in ('dapo', 'sft')
      ),
      Claim(
        'Two tokens of the teacher replace its whole distribution.',
        [Criterion(PASS, 'opsd_top2', 'opsd', within=0.03)],
      ),
    ],
  )
