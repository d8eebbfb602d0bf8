"""Learning from a fifth of the tokens (https://arxiv.org/abs/2506.01939).

  python -m jaxrl_reason.study --config=configs/studies/tokens.py \\
    --out=studies/tokens

The paper trains on the 20 % of tokens with the highest entropy and loses
nothing, or gains. `random20` is the control: as many tokens, drawn at random,
under the same divisor (all tokens).

Written before the first run. The claim holds here if `top20` is not below `all`
in pass@1 on held-out problems by more than two standard errors of the
difference, and above `random20` by more than two (of the difference of their
differences to `all`).
"""

from jaxrl_reason.studies.grid import Study, recipe_beside


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.eval.update(problems=128, samples=16)  # nothing is asked of large k
  return Study(
    recipe=c,
    settings={
      'all': {},
      'top20': {'rl.loss.entropy_share': 0.2},
      'random20': {'rl.loss.random_share': 0.2},
    },
    shown=('eval/heldout/pass@1', 'eval/harder/pass@1', 'train/entropy'),
  )
