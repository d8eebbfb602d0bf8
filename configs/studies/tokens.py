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

Result so far (5 seeds, 128 problems, warm start 0.467 ± 0.006): `all` ends at
0.566 ± 0.017, `top20` at 0.537 ± 0.016, a difference of -0.029 ± 0.023: not
below by two standard errors, so the first half holds, but it gains nothing; the
reward of training in the last interval is lower by 0.045 ± 0.005. It keeps more
entropy (+0.037 ± 0.003 nats). The control `random20` has not been run to its
end yet, so that the second half is open.
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
