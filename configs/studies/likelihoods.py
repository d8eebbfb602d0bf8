"""Compares rewards from the likelihood of reference answers with a verifier.

  tools/run study --config=configs/studies/likelihoods.py \\
    --out=studies/likelihoods

The reference answer replaces the answer of a completion, and its probability
under the policy is the reward: the product of its tokens (`prob`,
https://arxiv.org/abs/2505.21493), their mean (`mean_prob`,
https://arxiv.org/abs/2506.18254), this mean minus that without reasoning
(`gain`, same paper), the log-probability (`logp`,
https://arxiv.org/abs/2503.19618), or the log-probability per token
(`mean_logp`, https://arxiv.org/abs/2505.16022). `verifier` rewards a correct
answer. Answers are numbers from 0 to 20, of one or two digits. All rewards are
parts of one reward, with weights of 0 and 1, so that all runs are one program.
A likelihood is as good as the verifier if it loses less than a fifth of its
gain.

Result (3 seeds, each with a warm start of its own, 128 problems x 16, 30 steps;
± is half of the 95 % t interval; p corrected for 10 criteria).

             pass@1         gain             minus `verifier`
  before     0.474 ± 0.059
  verifier   0.511 ± 0.109  +0.037 ± 0.053
  prob       0.285 ± 0.085  -0.189 ± 0.035   -0.226 ± 0.059
  mean_prob  0.287 ± 0.149  -0.187 ± 0.093   -0.224 ± 0.071
  gain       0.275 ± 0.165  -0.199 ± 0.130   -0.236 ± 0.094
  logp       0.279 ± 0.173  -0.195 ± 0.114   -0.232 ± 0.072
  mean_logp  0.242 ± 0.061  -0.232 ± 0.115   -0.269 ± 0.167

Every likelihood lowers pass@1 in every seed. The claim that `prob` raises
pass@1 does not hold here (p 0.009). For the other likelihoods the study could
not decide it (p 0.032, where the level is 0.025). The claim that a likelihood
loses less than a fifth of the gain of the verifier does not hold here for
`prob`, `mean_prob` and `logp` (p 0.013 to 0.024), and is undecided for `gain`
and `mean_logp` (p 0.031 and 0.032). The rewards fall as well, `prob` on average
from 0.51 to 0.32, so the updates do not raise the reward. A likely reason was
not tested: the reward does not depend on the sampled answer, but the loss
trains on the tokens of this answer with the reward, which is noise for them.
Here the answer is the fourth of four results of equal difficulty. One learning
rate (3e-4) was tried. With configs/arithmetic_tiny.py and 100 steps,
`mean_prob` raised pass@1 of one seed (docs/label_free.md). The study takes 3
CPU minutes on a shared AMD EPYC.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside
from jaxrl_reason.studies.verdicts import Claim, Criterion

PASS = 'eval/heldout/pass@1'
REWARDS = {
  'verifier': 'task',
  'prob': 'reference_prob',
  'mean_prob': 'reference_mean_prob',
  'gain': 'reference_gain',
  'logp': 'reference_logp',
  'mean_logp': 'reference_mean_logp',
}
KNOBS = dict(ops='+-', modulus=0, min_ops=4, max_ops=4)


def _only(reward: str) -> dict:
  return {
    f'rl.rewards.{name}.weight': float(name == reward) for name in REWARDS
  }


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.data.knobs = dict(KNOBS, max_operand=5, max_total=20)
  c.rl.steps = 30
  c.rl.optimizer.lr = 3e-4
  c.rl.rewards = {
    name: dict(reward=reward, weight=float(name == 'verifier'))
    for name, reward in REWARDS.items()
  }
  c.eval.update(samples=16, problems=128, harder=False)
  likelihoods = [name for name in REWARDS if name != 'verifier']
  return Study(
    recipe=c,
    settings={name: _only(name) for name in REWARDS},
    seeds=3,
    shown=(PASS, 'eval/heldout/pass@16', 'train/entropy'),
    claims=[
      *(
        Claim(f'{name} raises pass@1.', [Criterion(PASS, name, more_than=0.0)])
        for name in likelihoods
      ),
      *(
        Claim(
          f'{name} loses less than a fifth of the gain of the verifier.',
          [Criterion(PASS, name, 'verifier', more_than=-0.2, of_gain=True)],
        )
        for name in likelihoods
      ),
    ],
  )
