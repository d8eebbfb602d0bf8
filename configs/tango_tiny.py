"""Trains a solver and a verifier together, with adapters of their own: Tango.

  tools/run --config=configs/tango_tiny.py:warm --workdir=runs/tango_warm
  tools/run --config=configs/tango_tiny.py --workdir=runs/tango

  problem   2*3+1-4*2%5=
  solver    1 2 3#1;
  verifier  1 2 3#1;?  1 2 3#1y;    solves the problem itself, and judges

The solver is rewarded for a correct solution and, with half of that, for the
verdict `y`. The verifier is rewarded for the correct verdict (docs/games.md).
The argument `answer` is the control: the verdict does not reward the solver.

256 held-out problems x 4 samples, sampled pass@1 of the solver by RL steps, and
the greedy pass@1 at both ends; +- is half of the 95 % t interval:

                 0        20       40       60       80       greedy
  tango  seed 0  0.503    0.568    0.589    0.607    0.699    0.637   0.785
         seed 1  0.354    0.410    0.474    0.545    0.656    0.480   0.738
         seed 2  0.576    0.688    0.708    0.748    0.822    0.715   0.910
         mean    0.478    0.555    0.590    0.633    0.726    0.611   0.811
                 +-0.281  +-0.346  +-0.291  +-0.258  +-0.214  +-0.296 +-0.221
  answer seed 0  0.503    0.570    0.614    0.669    0.738    0.637   0.848
         seed 1  0.354    0.431    0.501    0.630    0.707    0.480   0.797
         seed 2  0.576    0.671    0.729    0.765    0.824    0.715   0.906
         mean    0.478    0.557    0.615    0.688    0.757    0.611   0.850
                 +-0.281  +-0.300  +-0.284  +-0.172  +-0.151  +-0.296 +-0.136
  tango minus            -0.002   -0.024   -0.055   -0.031
  answer                 +-0.047  +-0.008  +-0.086  +-0.063

Share of correct solutions and of correct verdicts of training, in each quarter
of the RL steps (train/turns/0/reward and train/turns/1/reward):

  seed 0  solutions  0.545  0.564  0.584  0.612
          verdicts   0.600  0.602  0.573  0.601
  seed 1  solutions  0.389  0.443  0.491  0.605
          verdicts   0.609  0.577  0.487  0.471
  seed 2  solutions  0.605  0.698  0.719  0.754
          verdicts   0.597  0.669  0.719  0.750

The control has 0.538 to 0.690, 0.386 to 0.661 and 0.618 to 0.767 correct
solutions, and 0.596 to 0.674, 0.606 to 0.614 and 0.615 to 0.767 correct
verdicts, in the first and the last quarter.

So the solver learns, and the verifier does not: its verdicts end no better than
always writing `y`, and with two seeds of three the thought before the verdict
becomes shorter. Such verdicts do not help the solver. After 40 steps the
interval of the difference excludes 0 (the four intervals are not corrected for
their number). One value of every setting was tried. `warm` takes 0.4 to 0.5 min
of CPU time and a run 1.2 min, with compilation, on two cores with a load of
about 16 from other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

import dataclasses

import jax.numpy as jnp

from jaxrl_reason import config as config_lib
from jaxrl_reason import envs, trees
from jaxrl_reason.envs import moves, row_bytes
from jaxrl_reason.rewards import kernels
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import checked, games

WARM = 'runs/tango_warm'
NAME = 'solver_and_verifier'  # of the problems
WIDTH = 10  # bytes of a solution, and of a verdict after its thought
KERNEL = kernels.KERNELS['integer']
# Argument of the recipe -> reward of the solver for the verdict `y`.
TRUST = {'tango': 0.5, 'answer': 0.0, 'warm': 0.0}


def generate(rng, **knobs):
  example = checked.generate(rng, **knobs)
  return example and example | {'task': NAME}


def reset(encoded, key):
  del key
  zero = jnp.float32(0)
  return {'answer': encoded, 'right': zero, 'solved': jnp.bool_(False)}


def game(trust: float) -> envs.Env:
  """Returns the game of a solver and a verifier.

  Args:
    trust: reward of the solver if the verifier's verdict is `y`.
  """

  def step(state, text, length):
    n, verdict = moves.end_of(text, length), state['solved']
    one = trees.take((text, n, state['answer']), None)
    right = KERNEL.score(*one[:2], one[2])[0]
    yes, no = (row_bytes.byte(text, n - 1) == ord(x) for x in 'yn')
    agrees = jnp.where(state['right'] > 0.5, yes, no).astype(jnp.float32)
    shown = text, jnp.minimum(length, WIDTH)
    return envs.Step(
      state | {'right': right, 'solved': jnp.bool_(True)},
      *row_bytes.join(shown, row_bytes.constant('?')),
      reward=jnp.where(verdict, agrees, right),
      done=verdict,
      malformed=verdict & ~yes & ~no,
      other=jnp.where(verdict, trust * yes, 0.0),
    )

  # The verdict of evaluations, which count correct solutions.
  movers = {'no': lambda state, key: row_bytes.constant('n;')}
  letters = '0123456789+-*%=#;?yn '
  return envs.Env(
    KERNEL.encode, reset, step, letters, moves.STOP, WIDTH, None, 2, movers
  )


# A problem of `checked` that is solved if its game has a reward above 0.5.
tasks.GAMES[NAME] = dataclasses.replace(
  checked.TASK, name=NAME, generate=generate, check=games.won
)
envs.ENVS |= {f'{name}_game': game(trust) for name, trust in TRUST.items()}


@config_lib.recipe(TRUST)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name=NAME, prompt_len=12, completion_len=24)
  c.data.knobs = dict(ops='+-*', modulus=5, min_ops=4, max_ops=4, max_operand=4)
  c.data.knobs.second = 'recheck'
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=800, rows=64, stop_loss=0.1, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=5e-4)
  c.rl.update(steps=80, prompts=32, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dr_grpo', cache_segments=1)
  c.rl.roles = {'0': {}, '1': {}}  # a baseline of the group for each role
  c.rl.rewards = {}  # only the rewards of the game
  c.rl.turns.update(env=f'{variant}_game', most=2, tokens=10, observation=11)
  c.rl.optimizer.update(lr=1e-3, b2=0.99)
  c.eval.update(every=20, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=40)
  c.log_every = 5
  if variant == 'warm':
    c.stages = ('sft',)
  else:
    c.stages, c.init_from = ('rl',), WARM
    c.lora.rank, c.rl.role_adapters = 8, True
  return c
