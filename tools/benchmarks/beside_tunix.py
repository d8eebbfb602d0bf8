"""Compares our sampler and GRPO step with tunix's, alternately in one run.

  python -m venv TX && TX/bin/pip install google-tunix==0.1.7 jax==0.10.2
  .venv/bin/python tools/benchmarks/beside_tunix.py --tunix-python=TX/bin/python
    [--shapes=4x256,2x64,8x512] [--phases=sampler,step] [--repeats=5]
    [--tunix-cache=1024]

The last shape has 64 + 256 tokens, the others 32 + 64.

Each library has one worker process, and the workers run alternately
(alternate.py). CPU seconds are those of all threads of a worker. The tables
have medians over the repeats. Set GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as
tools/run does; both workers inherit it.

Phases:
  sampler    64 completions, as text. Ours: `sampler.generate`. Theirs:
             `RLCluster.generate` with the vanilla engine.
  step       prompts to updated weights. Ours: the fused step, reward inside
             the program. Theirs: one iteration inside `GRPOLearner.train`.
  host step  the same iteration of theirs, and our `HostStep`, whose rewards are
             Python functions of text, as in tunix.

Equal:
- 8 prompts x 8 samples, prompts without padding, vocabulary 512, temperature 1,
  no top-k or top-p.
- Layers of pre-norm attention and gated MLP of the same widths (tunix's
  Llama3), 4 heads, tied embedding, no biases. With the same weights, logits
  differ by 7e-6. The number of weights is equal, which is checked.
- float32 weights, cache and arithmetic; a separate reference of that size and a
  KL term of 0.04.
- One update per batch by AdamW (1e-4, 0.9, 0.95) after clipping the global norm
  at 1.
- A reward that differs between samples. Tokenizer and reward take about a
  millisecond.
- jax and the environment.
- No completion stops early: no token has the id of the stop token, and both
  sides check that every completion is full.

Not equal, by design of the libraries:
- We prefill a prompt once per group and share its cache. tunix prefills each of
  the 64 rows.
- Both attend to the whole cache at every token. The size of tunix's cache is
  `--tunix-cache`, by default prompt + completion, its best case. tunix's own
  default is 1,024.
- Our sampler also returns log-probabilities, and our step also computes entropy
  and the KL to the sampler.
- tunix samples, scores, rewards and updates in separate programs, and collects
  metrics. Its checkpoints, metric backends, progress bar and evaluation are
  off, and its micro-batches are the whole batch.
"""

from collections.abc import Callable, Iterator

import alternate
import beside
import jax
import numpy as np

PHASES = {
  'sampler': {'ours': 'sampler', 'tunix': 'sampler'},
  'step': {'ours': 'step', 'tunix': 'step'},
  'host step': {'ours': 'host step', 'tunix': 'step'},
}


def llama(shape: beside.Shape):
  """Returns tunix's Llama3 with random weights (by default MLPs are 0)."""
  from flax import nnx
  from tunix.models.llama3 import model as llama3

  config = llama3.ModelConfig(
    num_layers=shape.layers,
    vocab_size=beside.V,
    embed_dim=shape.width,
    hidden_dim=4 * shape.width,
    num_heads=4,
    head_dim=shape.width // 4,
    num_kv_heads=4,
    rope_theta=10_000,
    norm_eps=1e-6,
    weight_tying=True,
  )
  model = llama3.Llama3(config, rngs=nnx.Rngs(0))
  keys = nnx.Rngs(1)

  def draw(x):
    return 0.02 * jax.random.normal(keys.params(), x.shape)

  state = jax.tree.map(lambda x: draw(x) if x.ndim > 1 else x, nnx.state(model))
  nnx.update(model, state)
  return model


def cluster(shape: beside.Shape, cache: int):
  import optax
  from tunix.rl import rl_cluster
  from tunix.rl.rollout import base_rollout

  mesh = jax.sharding.Mesh(np.array(jax.devices())[:, None], ('fsdp', 'tp'))
  role = rl_cluster.Role
  adamw = optax.adamw(1e-4, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0)
  training = rl_cluster.RLTrainingConfig(
    actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), adamw),
    eval_every_n_steps=10**9,
    max_steps=10**9,
  )
  return rl_cluster.RLCluster(
    actor=llama(shape),
    reference=llama(shape),
    tokenizer=beside.Numbers(),
    cluster_config=rl_cluster.ClusterConfig(
      role_to_mesh=dict.fromkeys(
        (role.ACTOR, role.REFERENCE, role.ROLLOUT), mesh
      ),
      rollout_engine='vanilla',
      training_config=training,
      rollout_config=base_rollout.RolloutConfig(
        max_tokens_to_generate=shape.new,
        max_prompt_length=shape.prompt,
        kv_cache_size=cache or shape.prompt + shape.new,
        temperature=1.0,
        top_p=1.0,
      ),
    ),
  )


def tunix(shape: beside.Shape, commands: Iterator[str], reply: Callable, args):
  from absl import logging
  from flax import nnx
  from tunix.rl.grpo import grpo_learner

  logging.set_verbosity(logging.ERROR)
  rl = cluster(shape, args.tunix_cache)
  learner = grpo_learner.GRPOLearner(
    rl_cluster=rl,
    algo_config=grpo_learner.GRPOConfig(
      num_generations=beside.G, num_iterations=1, beta=0.04
    ),
    reward_fns=lambda prompts, completions, **_: beside.scores(
      completions, shape
    ),
  )
  rng, tokenizer = np.random.default_rng(0), beside.Numbers()
  ids = rng.integers(beside.V, size=(beside.B, shape.prompt)).tolist()
  prompts = [tokenizer.decode(row) for row in ids]
  rows = [p for p in prompts for _ in range(beside.G)]

  def sample():
    beside.check_full(rl.generate(rows).tokens, shape)

  def batches():
    """Yields one batch per iteration, after the learner finished the last."""
    for phase in commands:
      if phase == 'sampler':
        reply(alternate.timed(sample))
        continue
      clock = alternate.Clock()
      yield {'prompts': np.array(prompts)}
      jax.block_until_ready(jax.tree.leaves(nnx.state(rl.actor_trainer.model)))
      reply(clock.read())

  weights = jax.tree.leaves(nnx.state(rl.actor_trainer.model, nnx.Param))
  n_weights = sum(x.size for x in weights)
  reply(beside.about(('google-tunix', 'jax', 'flax'), n_weights))
  learner.train(batches())


def main():
  other = beside.Other(
    'tunix',
    PHASES,
    tunix,
    passed=('tunix-cache',),
    note=lambda args, shape: (
      f', cache {args.tunix_cache or shape.prompt + shape.new}'
    ),
  )
  parser = beside.parser(other, __doc__)
  parser.add_argument(
    '--tunix-cache', type=int, default=0, help='0: prompt + completion'
  )
  beside.main(other, parser)


if __name__ == '__main__':
  main()
