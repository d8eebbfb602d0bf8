"""Our sampler and whole GRPO step beside tunix's, alternating in one run.

  python -m venv TX && TX/bin/pip install google-tunix==0.1.7 jax==0.10.2
  python tools/benchmarks/beside_tunix.py --tunix-python=TX/bin/python
    [--shapes=4x256,2x64,8x512] [--phases=sampler,step] [--repeats=5]
    [--tunix-cache=1024]

The last shape has 64 + 256 tokens, the others 32 + 64.

One worker process per library, asked in turn: ours, theirs, ours, theirs ...
(alternate.py). CPU seconds are those of all threads of a worker. The tables
have medians over the repeats. Set GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as
tools/run does; both workers inherit it.

Phases:
  sampler    64 completions, as text. Ours: `sampler.generate`. Theirs:
             `RLCluster.generate` with the vanilla engine.
  step       prompts to updated weights. Ours: the fused step, reward inside
             the program. Theirs: one iteration inside `GRPOLearner.train`.
  host step  the same iteration of theirs beside our `HostStep`, whose rewards
             are Python on the completions' text, as tunix's always are.

Equal: 8 prompts x 8 samples, prompts without padding, vocabulary 512,
temperature 1, no top-k or top-p; layers of pre-norm attention and gated MLP of
the same widths (tunix's Llama3), 4 heads, tied embedding, no biases: the same
function (given the same weights, logits differ by 7e-6), and as many weights,
which is checked; float32 weights, cache and arithmetic; a separate reference of
that size and a KL term of 0.04; one update per batch by AdamW (1e-4, 0.9, 0.95)
after clipping the global norm at 1; a reward that differs between samples; jax,
and the environment. Tokenizer and reward cost about a millisecond. No
completion stops early: the stop token is an id that no token has, and both
sides check that every completion is full.

Not equal, because it is how each library works: we prefill a prompt once per
group and share its cache, tunix prefills each of the 64 rows; tunix attends to
its whole cache (`--tunix-cache`: by default exactly prompt + completion, the
best it can have; its own default is 1,024) and, as we do, to all of it at every
token; our sampler also returns log-probabilities; our step also computes
entropy and the KL to the sampler; tunix samples, scores, rewards and updates as
separate programs, and keeps metrics. Its checkpoints, metric backends, progress
bar and evaluation are off; its micro-batches are the whole batch.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Sequence

import alternate
import jax
import numpy as np

B, G, V = 8, 8, 512
PHASES = {
  'sampler': {'ours': 'sampler', 'tunix': 'sampler'},
  'step': {'ours': 'step', 'tunix': 'step'},
  'host step': {'ours': 'host step', 'tunix': 'step'},
}
PACKAGES = {'ours': ('jax', 'flax'), 'tunix': ('google-tunix', 'jax', 'flax')}


@dataclasses.dataclass(frozen=True)
class Shape:
  layers: int
  width: int
  prompt: int
  new: int


SHAPES = {
  '4x256': Shape(4, 256, 32, 64),
  '2x64': Shape(2, 64, 32, 64),
  '8x512': Shape(8, 512, 64, 256),
}


class Numbers:
  """A tokenizer whose words are the token ids in decimal."""

  # No token has these ids: nothing stops, nothing counts as padding. The id 0
  # for `bos` makes tunix prepend none.
  pad_id = staticmethod(lambda: -1)
  eos_id = staticmethod(lambda: -2)
  bos_id = staticmethod(lambda: 0)

  def encode(self, text: str) -> list[int]:
    return [int(word) for word in text.split()]

  def decode(self, ids: list[int]) -> str:
    return ' '.join(map(str, ids))


def scores(texts: Sequence[str], shape: Shape) -> list[float]:
  """Rewards that differ between samples, as grpo_step.reward_fn."""
  rows = [text.split() for text in texts]
  check_full(rows, shape)
  return [float(int(row[0]) % 7) for row in rows]


def check_full(completions, shape: Shape):
  lengths = [len(row) for row in completions]
  if lengths != [shape.new] * (B * G):
    raise RuntimeError(f'completions are not {shape.new} tokens: {lengths}')


def about(side: str, params) -> dict:
  """A worker's first words."""
  return {
    'weights': sum(x.size for x in jax.tree.leaves(params)),
    'versions': ' '.join(
      f'{name} {importlib.metadata.version(name)}' for name in PACKAGES[side]
    ),
  }


# Our worker.


class InlinePool:
  """Judges where it is asked, as tunix does."""

  def __init__(self, shape: Shape):
    self.shape = shape

  def submit(self, cases) -> concurrent.futures.Future:
    from jaxrl_reason.rewards import verdict

    values = scores([text for text, _ in cases], self.shape)
    future = concurrent.futures.Future()
    future.set_result([verdict.Verdict(x) for x in values])
    return future


def host_step(learner, gen, state, prompts, shape: Shape) -> Callable:
  """() -> state and metrics of one step with rewards in Python."""
  import grpo_step

  from jaxrl_reason import logits, rollout
  from jaxrl_reason.rewards import compose

  step = rollout.HostStep(
    learner,
    dataclasses.replace(gen, part_names=(compose.SINGLE,)),
    InlinePool(shape),
    Numbers(),
    parts=1,
    root=jax.random.key(2),
    sampling=logits.Sampling.make(),
    stop=grpo_step.NEVER,
  )
  state = jax.tree.map(jax.numpy.copy, state)  # it is donated

  def run():
    nonlocal state
    state, metrics, *_ = step(state, prompts, [{}] * B)
    return state, metrics

  return run


def our_phases(shape: Shape) -> tuple[dict[str, Callable], dict]:
  """Phases by name: () -> arrays to wait for; and what to say first."""
  import grpo_step

  made = grpo_step.problem(
    shape.layers,
    shape.width,
    prompt=shape.prompt,
    new=shape.new,
    rope_theta=1e6,  # whatever its config says, tunix's Llama3 has this
  )
  programs = grpo_step.programs(*made)

  def sample():
    out = programs['sampler']()
    rows = zip(np.asarray(out.tokens), np.asarray(out.length))
    rows = [row[:n].tolist() for row, n in rows]
    check_full(rows, shape)
    return [len(Numbers().decode(row)) for row in rows]

  def step():
    metrics = programs['step']()
    if float(metrics['length_mean']) != shape.new:
      raise RuntimeError(f'a completion stopped early: {metrics}')
    return metrics

  phases = {
    'sampler': sample,
    'step': step,
    'host step': host_step(*made, shape),
  }
  return phases, about('ours', made[2].params)


def ours(shape: Shape, commands: Iterator[str], reply: Callable, _: int):
  import grpo_step

  phases, first = our_phases(shape)
  reply(first)
  for phase in commands:
    if phase == 'peak':
      reply({'gflops': grpo_step.matmul_peak(3) / 1e9})
    else:
      reply(alternate.timed(phases[phase]))


# Their worker.


def llama(shape: Shape):
  """tunix's Llama3 with random weights (its own MLPs begin as zeros)."""
  from flax import nnx
  from tunix.models.llama3 import model as llama3

  config = llama3.ModelConfig(
    num_layers=shape.layers,
    vocab_size=V,
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
  draw = lambda x: 0.02 * jax.random.normal(keys.params(), x.shape)
  state = jax.tree.map(lambda x: draw(x) if x.ndim > 1 else x, nnx.state(model))
  nnx.update(model, state)
  return model


def cluster(shape: Shape, cache: int):
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
    tokenizer=Numbers(),
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


def tunix(shape: Shape, commands: Iterator[str], reply: Callable, cache: int):
  from absl import logging
  from flax import nnx
  from tunix.rl.grpo import grpo_learner

  logging.set_verbosity(logging.ERROR)
  rl = cluster(shape, cache)
  learner = grpo_learner.GRPOLearner(
    rl_cluster=rl,
    algo_config=grpo_learner.GRPOConfig(
      num_generations=G, num_iterations=1, beta=0.04
    ),
    reward_fns=lambda prompts, completions, **_: scores(completions, shape),
  )
  rng, tokenizer = np.random.default_rng(0), Numbers()
  ids = rng.integers(V, size=(B, shape.prompt)).tolist()
  prompts = [tokenizer.decode(row) for row in ids]
  rows = [p for p in prompts for _ in range(G)]

  def sample():
    check_full(rl.generate(rows).tokens, shape)

  def batches():
    """Each batch is one iteration: the learner asks for the next when it has
    done with the last."""
    for phase in commands:
      if phase == 'sampler':
        reply(alternate.timed(sample))
        continue
      clock = alternate.Clock()
      yield {'prompts': np.array(prompts)}
      jax.block_until_ready(jax.tree.leaves(nnx.state(rl.actor_trainer.model)))
      reply(clock.read())

  reply(about('tunix', nnx.state(rl.actor_trainer.model, nnx.Param)))
  learner.train(batches())


# The driver.


def compare(name: str, args) -> dict:
  """Measures one shape: what the workers say first, peaks and answers."""
  phases = {phase: PHASES[phase] for phase in args.phases.split(',')}
  options = [f'--shapes={name}', f'--tunix-cache={args.tunix_cache}']
  pythons = {'ours': sys.executable, 'tunix': args.tunix_python}
  workers = {
    side: alternate.Worker(
      [python, __file__, f'--worker={side}', *options], ours=side == 'ours'
    )
    for side, python in pythons.items()
  }
  weights = {side: w.about['weights'] for side, w in workers.items()}
  if len(set(weights.values())) != 1:
    raise RuntimeError(f'the models differ in size: {weights}')
  rows, peaks = alternate.in_turn(workers, phases, args.repeats, args.warm_up)
  for w in workers.values():
    w.close()
  versions = {side: w.about['versions'] for side, w in workers.items()}
  return {
    'shape': name,
    'weights': weights['ours'],
    'versions': versions,
    'peak_gflops': peaks,
    'rows': rows,
  }


def print_result(result: dict, args):
  shape = SHAPES[result['shape']]
  cache = args.tunix_cache or shape.prompt + shape.new
  versions = result['versions']
  print(
    f'\n{shape.layers} layers x {shape.width}, '
    f'{result["weights"] / 1e6:.2f} M weights, {B} x {G} rows, '
    f'{shape.prompt} + {shape.new} tokens, vocabulary {V}, float32\n'
    f'ours: {versions["ours"]}; tunix: {versions["tunix"]}, cache {cache}\n'
    f'{alternate.machine(result["peak_gflops"])}, medians of {args.repeats}'
  )
  alternate.print_table(result['rows'], B * G * shape.new)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--tunix-python', help='interpreter of its venv')
  parser.add_argument('--shapes', default='4x256,2x64')
  parser.add_argument('--phases', default=','.join(PHASES))
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument(
    '--warm-up', type=int, default=2, help='rounds before; the first compiles'
  )
  parser.add_argument(
    '--tunix-cache', type=int, default=0, help='0: prompt + completion'
  )
  parser.add_argument('--json', help='file to append every measurement to')
  parser.add_argument('--worker', choices=PACKAGES, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker:
    work = {'ours': ours, 'tunix': tunix}[args.worker]
    work(SHAPES[args.shapes], *alternate.serve(), args.tunix_cache)
    return
  if not args.tunix_python:
    parser.error('--tunix-python is needed')
  for name in args.shapes.split(','):
    result = compare(name, args)
    print_result(result, args)
    if args.json:
      with open(args.json, 'a') as f:
        print(json.dumps(result), file=f)


if __name__ == '__main__':
  main()
