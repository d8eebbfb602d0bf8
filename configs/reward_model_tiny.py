"""Trains a reward model on pairs, and a policy on its reward.

  tools/run --config=configs/reward_model_tiny.py:samples \\
    --workdir=runs/reward_model_samples
  tools/run --config=configs/reward_model_tiny.py \\
    --workdir=runs/reward_model

  problem   4-1+2%5=      evaluated from left to right
  solution  3#0           every running total, then the answer

The first run samples 8 completions of 64 problems in each of 50 steps, with one
policy, which it does not train. Its `rollouts/` are the pairs of the second
run: a correct and an incorrect completion of the same problem and step, 2,729
to 2,834 pairs. The argument of the recipe selects the reward of the rl stage:

  reward_model  the reward model alone; the verifier only measures
  mixed         the reward model and the verifier, with equal weights
  verifier      the verifier alone, without a reward model

The reward model sees each pair nine times, and new pairs in its first 42 steps.
Its accuracy is measured before each update. Range of three seeds:

  steps     1-20       21-40      41-60      81-100     381-400
  accuracy  0.54-0.58  0.57-0.64  0.65-0.68  0.79-0.83  0.97-0.99

Sampled pass@1, 256 held-out problems x 4, by rl steps; share of correct
completions of training problems in the last five rl steps; and the reward of
the reward model in the first and the last five:

                        0       50      100     training  reward
  reward_model  seed 0  0.226   0.250   0.384   0.674     -0.18  3.83
                seed 1  0.249   0.261   0.363   0.621     -0.20  4.38
                seed 2  0.348   0.244   0.208   0.372      0.51  4.12
  mixed         seed 0  0.226   0.255   0.498   0.760     -0.18  3.73
                seed 1  0.249   0.278   0.404   0.761     -0.20  4.54
                seed 2  0.348   0.336   0.347   0.654      0.51  4.11
  verifier      seed 0  0.226   0.260   0.362   0.876
                seed 1  0.249   0.336   0.438   0.871
                seed 2  0.348   0.628   0.787   0.935

The reward rises in every run. Correctness follows it in two seeds of three. In
seed 2 the policy finds incorrect answers that the reward model prefers, and its
accuracy falls. With the verifier as a second part, it ends where it began. The
problem set is small (500 problems), so that training and held-out accuracy
differ. Two harder sets were tried with one seed each. With operands up to 9,
the accuracy of the policy fell. With six operations modulo 7, the reward model
did not learn (accuracy 0.56 after 90 steps), and RL on its reward ended at 0.

On two cores, which other work shared, the first run of seed 2 took 0.5 min and
the second 0.9 min.

Hardware: two CPU cores; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

SAMPLES = 'runs/reward_model_samples'
VARIANTS = ('reward_model', 'samples', 'mixed', 'verifier')


@config_lib.recipe(VARIANTS)
def get_config(variant: str):
  c = config_lib.default()
  c.data.update(name='arithmetic', prompt_len=12, completion_len=8)
  c.data.knobs = dict(ops='+-', modulus=5, min_ops=2, max_ops=2, max_operand=4)
  c.model.update(layers=2, width=64, mlp=128, heads=4, kv_heads=4)
  c.model.update(head_dim=16, qk_norm=True)
  c.sft.update(steps=400, rows=64, stop_loss=0.3, steps_per_dispatch=5)
  c.rl.update(steps=100, prompts=64, samples=8, steps_per_dispatch=5)
  c.rl.update(algorithm='dapo')
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=50, problems=256, samples=4, harder=False)
  c.checkpoint.update(every=50)
  c.log_every = 5
  if variant == 'samples':
    c.rl.update(steps=50, steps_per_dispatch=1)
    c.rl.optimizer.update(lr=0.0)
    c.rollouts.update(every=1, problems=64)
  elif variant != 'verifier':
    c = preferring(c, variant)
  return c


def preferring(c, variant: str):
  c.stages = ('sft', 'reward_model', 'rl')
  c.reward_model.update(pairs=SAMPLES, rows=64, steps=400)
  c.reward_model.steps_per_dispatch = 5
  c.rl.reward_model.weights = 'reward_model'
  c.rl.rewards = dict(
    answer=dict(reward='task', weight=1.0 if variant == 'mixed' else 0.0),
    preferred=dict(reward='reward_model', weight=1.0),
  )
  return c
