"""Learning from a fifth of the tokens (https://arxiv.org/abs/2506.01939).

  tools/run study --config=configs/studies/tokens.py \\
    --out=studies/tokens

The paper trains on the 20 % of tokens with the highest entropy and loses
nothing, or gains. `random20` is the control: as many tokens, drawn at random,
under the same divisor (all tokens).

Written before the first run. The claim holds here if `top20` is not below `all`
in pass@1 on held-out problems by more than two standard errors of the
difference, and above `random20` by more than two (of the difference of their
differences to `all`).

Result (5 seeds, 128 problems, warm start 0.467 ± 0.006): `all` ends at 0.566
± 0.017, `top20` at 0.537 ± 0.016, a difference of -0.029 ± 0.023, `random20` at
0.345 ± 0.019, below `all` by 0.221 ± 0.023 and `top20` by 0.192 ± 0.022. By the
letter of it the claim holds: `top20` is not below `all` by two standard
errors, and above `random20` by far more. But it gains nothing over `all`, in
whose favour the reward of training in the last interval is (by 0.045 ± 0.005).
And the control says less than it seems to: `random20` does not learn less, it
unlearns (-0.123 ± 0.017 against the warm start, on every seed). Drawn tokens
leave the gradient's norm at a third (0.48 for 1.45), more of it noise, and Adam
makes steps of the usual size of that. With --config.rl.optimizer.lr=1e-4, a
fifth of it, chosen after the result above was seen, the order is the same and
the distances are small: `all` 0.554 ± 0.007, `top20` -0.002 ± 0.002 and
`random20` -0.030 ± 0.006 from it, 0.027 ± 0.006 between the two. Most of what
`random20` loses at 5e-4 is the learning rate's.

Four and a half minutes on two cores of an AMD EPYC, another run beside it.
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
