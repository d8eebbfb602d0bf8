"""Learns from pairs of its own completions: a preference stage before RL, or a
reward model and RL on its reward.

  tools/run --config=configs/pairs_tiny.py --workdir=runs/preference
  tools/run --config=configs/pairs_tiny.py:reward_model \\
    --workdir=runs/reward_model

  problem   4-1+2%5=      evaluated from left to right
  solution  3#0           every running total, then the answer

After the supervised stage, the stage `samples` samples 8 completions of 64
problems in each of 50 steps, without training. A correct and an incorrect
completion of the same problem and step are a pair: 2,729 to 2,834 pairs. The
argument of the recipe selects what follows:

  preference    100 updates of DPO, then RL with the verifier, the order of
                TÜLU 3 (https://arxiv.org/abs/2411.15124)
  reward_model  a reward model, then RL on its reward alone; the verifier only
                measures
  mixed         the same, with equal weights of reward model and verifier
  verifier      RL with the verifier alone, directly after the supervised stage

Sampled pass@1, 256 held-out problems x 4, by steps of the last rl stage; share
of correct completions of training problems in its last five steps; and the
reward of the reward model in its first and its last five:

                        0       50      100     training  reward
  preference    seed 0  0.305   0.561   0.697   0.968
                seed 1  0.370   0.550   0.582   0.949
                seed 2  0.372   0.891   0.934   0.991
  verifier      seed 0  0.226   0.260   0.362   0.876
                seed 1  0.249   0.336   0.438   0.871
                seed 2  0.348   0.628   0.787   0.935
  reward_model  seed 0  0.226   0.256   0.408   0.586     -0.21  3.74
                seed 1  0.249   0.290   0.377   0.727     -0.44  4.15
                seed 2  0.348   0.246   0.239   0.347      0.59  4.26
  mixed         seed 0  0.226   0.250   0.482   0.732     -0.21  3.77
                seed 1  0.249   0.282   0.368   0.805     -0.44  4.25
                seed 2  0.348   0.408   0.334   0.636      0.58  4.15

The preference stage raises pass@1 by 0.02 to 0.12, and RL after it ends higher
than RL without it in every seed: by 0.335, 0.144 and 0.147. The 50 steps of
sampling and 100 updates before it are not counted.

The reward model sees each pair nine times, and new pairs in its first 42 steps.
Its accuracy is measured before each update. Range of three seeds:

  steps     1-20       21-40      41-60      81-100     381-400
  accuracy  0.54-0.58  0.57-0.64  0.65-0.68  0.79-0.83  0.97-0.99

Its reward rises in every run. Correctness follows it in two seeds of three. In
seed 2 the policy finds incorrect answers that the reward model prefers, and its
accuracy falls. With the verifier as a second part, it ends where it began. The
problem set is small (500 problems), so that training and held-out accuracy
differ. With operands up to 9, the accuracy of the policy fell in a run on one
seed. With six operations modulo 7, the reward model did not learn (accuracy
0.56 after 90 steps), and RL on its reward ended at 0.

A run takes 1 to 2 minutes on two cores.

Hardware: two CPU cores; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib

VARIANTS = ('preference', 'reward_model', 'mixed', 'verifier')
# Samples completions of the policy, which it does not train.
SAMPLES = dict(
  kind='rl',
  rl=dict(
    steps=50,
    steps_per_dispatch=1,
    optimizer=dict(lr=0.0),
    rewards=dict(answer=dict(reward='task', weight=1.0)),
    reward_model=dict(weights=''),
  ),
)


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
  if variant != 'verifier':
    kind = 'preference' if variant == 'preference' else 'reward_model'
    c.stages = ('sft', 'samples', kind, 'rl')
    c.named = {'samples': SAMPLES}
    c[kind].update(pairs='samples', rows=64, steps=400, steps_per_dispatch=5)
    c.preference.update(steps=100)
    c.preference.optimizer.update(lr=3e-4)
    c.rollouts.update(every=1, problems=64)
  if variant in ('reward_model', 'mixed'):
    c.rl.reward_model.weights = 'reward_model'
    c.rl.rewards = dict(
      answer=dict(reward='task', weight=float(variant == 'mixed')),
      preferred=dict(reward='reward_model', weight=1.0),
    )
  return c
