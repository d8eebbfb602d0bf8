"""Measures GRPO steps on GSM8K with the shapes of a published model.

  .venv/bin/python tools/benchmarks/gsm8k_step.py --data=DIR
      (runs the step)
  .venv/bin/python tools/benchmarks/gsm8k_step.py --data=DIR --plan
      (only compiles it)

DIR contains GSM8K's train.jsonl and test.jsonl. The step is that of
configs/grpo_gsm8k.py: rollout, verifier pool, reference log-probs, loss with
KL, AdamW. There are these differences:

  weights     random, with a shape of `models/zoo.py` (Qwen2.5-0.5B: 494 M,
              vocabulary 151,936, tied)
  compute     float32, because CPUs have no fast bf16 products
  tokenizer   SentencePiece, trained on the train split. Most sampled ids are
              outside its vocabulary and decode to an empty text.
  reward      the recipe's verifier + 0.1 x the share of letters in the text. A
              random model is never correct, and a step of equal rewards has no
              gradient.
  sizes       the arguments

The update needs six times the memory of the parameters (1.84 GiB in float32): 4
for the policy, the reference and two moments, 2 for the accumulated gradient
and the gradient of a micro-batch. Logits are computed in chunks of micro-batch
rows x --chunk x vocabulary x 4 bytes. --plan prints the memory of each program
by the compiler, without weights.
"""

import argparse
import collections
import importlib.util
import pathlib
import resource
import sys
import tempfile
import time

import jax
from etils import epath

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.config import Run
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.models import families, zoo
from jaxrl_reason.planning import phases
from jaxrl_reason.run import prepare, stages, states
from jaxrl_reason.run import stage_list as staging

RECIPE = 'configs/grpo_gsm8k.py'
GIB = 2**30


def letters(completion: str, example: dict) -> float:
  """Returns the share of letters, a reward that is not 0 for random text."""
  del example
  return sum(c.isalpha() for c in completion) / max(len(completion), 1)


def arguments() -> argparse.Namespace:
  p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  p.add_argument('--data', required=True, help='folder of GSM8K')
  p.add_argument('--model', default='qwen2.5-0.5b', choices=zoo.ZOO)
  p.add_argument('--layers', type=int, default=0, help='0: all of the model')
  p.add_argument('--prompts', type=int, default=4)
  p.add_argument('--samples', type=int, default=4)
  p.add_argument('--prompt_len', type=int, default=160)
  p.add_argument('--completion_len', type=int, default=128)
  p.add_argument('--micro_batches', type=int, default=8)
  p.add_argument('--chunk', type=int, default=32, help='columns of logits')
  p.add_argument('--tokens', type=int, default=4096, help='vocabulary size')
  p.add_argument('--steps', type=int, default=2, help='the first compiles')
  p.add_argument('--limit_gib', type=float, default=20.0, help='largest RSS')
  p.add_argument('--plan', action='store_true', help='compile, do not run')
  return p.parse_args()


def configured(a: argparse.Namespace):
  """Returns the recipe with the sizes of the arguments."""
  path = pathlib.Path(__file__).resolve().parents[2] / RECIPE
  module_spec = importlib.util.spec_from_file_location('recipe', path)
  recipe = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(recipe)
  c = recipe.get_config()
  c.model_dir = ''
  c.model.dtype = 'float32'
  c.data.update(
    dir=a.data,
    tokenizer='sentencepiece',
    vocab=a.tokens,
    template='qa',
    system='',
    prompt_len=a.prompt_len,
    completion_len=a.completion_len,
  )
  c.rl.update(
    prompts=a.prompts,
    samples=a.samples,
    parts=2 if a.prompts % 2 == 0 else 1,
    micro_batches=a.micro_batches,
    logprob_chunk=a.chunk,
  )
  source = f'{pathlib.Path(__file__).resolve()}:letters'
  c.rl.rewards.letters = dict(reward=source, weight=0.1)
  return config_lib.read(c)


def set_up(
  a: argparse.Namespace, c: Run, workdir: epath.Path
) -> prepare.Prepared:
  """Returns the result of `prepare`, with a model of the zoo."""
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  problems = problems_lib.load(c.data, c.seed)
  tokenizer = problems_lib.make_tokenizer(c.data, problems, workdir)
  problems = problems_lib.rendered(problems, c.data, tokenizer)
  problems, _ = problems_lib.drop_long(problems, c.data, tokenizer)
  h = families.to_hf(zoo.ZOO[a.model])
  h['num_hidden_layers'] = a.layers or h['num_hidden_layers']
  shape = families.from_hf(h, dtype='float32', remat='none')
  return prepare.assemble(c, mesh, problems, tokenizer, shape)


def compile_seconds() -> collections.Counter:
  """Returns a counter to which jax adds compile seconds."""
  counter = collections.Counter()

  def note(event: str, seconds: float, **_):
    if event.endswith('backend_compile_duration'):
      counter['seconds'] += seconds

  jax.monitoring.register_event_duration_secs_listener(note)
  return counter


def rss_gib(who=resource.RUSAGE_SELF) -> float:
  """Returns the peak resident memory in GiB."""
  unit = 1 if sys.platform == 'darwin' else 1024
  return resource.getrusage(who).ru_maxrss * unit / GIB


def run_steps(
  c: Run,
  prepared: prepare.Prepared,
  workdir: epath.Path,
  n: int,
) -> None:
  """Runs n steps and prints the time and memory of each."""
  compiled = compile_seconds()
  begun = time.perf_counter()
  stage = stages.build(staging.Planned('rl', 'rl', c), prepared)
  params = states.init_params(prepared, workdir)
  state = stage.layout.begin(params, 0)
  jax.block_until_ready(state)
  print(
    f'state of {trees.n_params(state.params):,} parameters: '
    f'{trees.n_bytes(state) / GIB:.2f} GiB, made in '
    f'{time.perf_counter() - begun:.1f} s, peak RSS {rss_gib():.2f} GiB'
  )
  for i in range(n):
    compiled.clear()
    begun = time.perf_counter()
    state, metrics, host = stage.dispatch(state, False)
    sampled = time.perf_counter() - begun
    jax.block_until_ready(metrics)
    total = time.perf_counter() - begun
    spent = {k: host[f'perf/{k}'] for k in ('rollout_s', 'verify_wait_s')}
    spent['update_s'] = total - sum(spent.values())
    print(
      f'step {i + 1}: {total:.1f} s, of them compiling '
      f'{compiled["seconds"]:.1f} s; '
      + ', '.join(f'{k} {v:.1f}' for k, v in spent.items())
      + f' (dispatched after {sampled:.1f} s); '
      f'{metrics["tokens"]:.0f} completion tokens, '
      f'{metrics["tokens"] / spent["rollout_s"]:.1f} a second of rollout; '
      f'peak RSS {rss_gib():.2f} GiB'
    )
    shown = 'loss kl entropy reward_mean grad_norm gap_max dead_rows'.split()
    print('  ' + ', '.join(f'{k} {float(metrics[k]):.4g}' for k in shown))
  stage.close()


def plan(prepared: prepare.Prepared) -> None:
  """Prints the memory that each program of a step needs, from shapes alone."""
  for phase in phases.phases(prepared):
    begun = time.perf_counter()
    m = phase.lower(prepared.mesh).compile().memory_analysis()
    new = m.output_size_in_bytes - m.alias_size_in_bytes
    total = m.argument_size_in_bytes + m.temp_size_in_bytes + new
    print(
      f'{phase.name:9} {total / GIB:6.2f} GiB: arguments '
      f'{m.argument_size_in_bytes / GIB:.2f}, temporary '
      f'{m.temp_size_in_bytes / GIB:.2f}, new results {new / GIB:.2f}; '
      f'compiled in {time.perf_counter() - begun:.1f} s'
    )


def main() -> int:
  a = arguments()
  with tempfile.TemporaryDirectory() as folder:
    c, workdir = configured(a), epath.Path(folder)
    prepared = set_up(a, c, workdir)
    shape = prepared.shape
    print(
      f'{a.model}, {shape.layers} layers, vocabulary {shape.vocab:,}; '
      f'{a.prompts} prompts x {a.samples} samples, {a.prompt_len} + '
      f'{a.completion_len} tokens, {a.micro_batches} micro-batches, '
      f'{a.chunk} columns of logits; float32; jax {jax.__version__}, Python '
      f'{sys.version.split()[0]}'
    )
    with jax.set_mesh(prepared.mesh):
      if a.plan:
        plan(prepared)
        return 0
      run_steps(c, prepared, workdir, a.steps)
  peak = rss_gib()
  print(
    f'peak RSS {peak:.2f} GiB (limit {a.limit_gib:g}), largest worker '
    f'{rss_gib(resource.RUSAGE_CHILDREN):.2f} GiB'
  )
  return int(peak > a.limit_gib)


if __name__ == '__main__':
  sys.exit(main())
