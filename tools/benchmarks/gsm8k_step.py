"""Seconds and memory of GRPO steps on GSM8K with a published model's shapes.

  python tools/benchmarks/gsm8k_step.py --data=DIR            (runs it)
  python tools/benchmarks/gsm8k_step.py --data=DIR --plan     (compiles it only)

DIR holds GSM8K's train.jsonl and test.jsonl. The step is that of
configs/grpo_gsm8k.py: rollout, verifier pool, reference
log-probs, loss with KL, AdamW. What differs from it:

  weights     random, of `models/zoo.py` (Qwen2.5-0.5B: 494 M, vocabulary
              151,936, tied)
  compute     float32: CPUs have no fast bf16 products
  tokenizer   SentencePiece, trained on the train split; most of the sampled ids
              lie past it and decode to nothing
  reward      the recipe's verifier, and 0.1 of the share of letters in the
              text: a random model is never right, and a step of equal rewards
              has no gradient
  sizes       the arguments

Memory in the update, in units of the parameters (1.84 GiB in float32): the
policy, its reference and two moments 4, the gradient's sum and one
micro-batch's gradient 2. Logits never exist whole: rows of a micro-batch x
--chunk x vocabulary x 4 bytes at a time. --plan prints what the compiler says
each program needs, without weights.
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
  """The share of letters: a reward of which random text has some."""
  del example
  return sum(c.isalpha() for c in completion) / max(len(completion), 1)


def arguments() -> argparse.Namespace:
  p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  p.add_argument('--data', required=True, help='folder of GSM8K')
  p.add_argument('--model', default='qwen2.5-0.5b', choices=zoo.ZOO)
  p.add_argument('--layers', type=int, default=0, help='0: those of the model')
  p.add_argument('--prompts', type=int, default=4)
  p.add_argument('--samples', type=int, default=4)
  p.add_argument('--prompt_len', type=int, default=160)
  p.add_argument('--completion_len', type=int, default=128)
  p.add_argument('--micro_batches', type=int, default=8)
  p.add_argument('--chunk', type=int, default=32, help='columns of logits')
  p.add_argument('--tokens', type=int, default=4096, help='of the tokenizer')
  p.add_argument('--steps', type=int, default=2, help='the first compiles')
  p.add_argument('--limit_gib', type=float, default=20.0, help='of peak RSS')
  p.add_argument('--plan', action='store_true', help='compile, do not run')
  return p.parse_args()


def configured(a: argparse.Namespace):
  """The recipe with the arguments' sizes."""
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
  """Makes what `prepare` does, with a model of the zoo for a folder's."""
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
  """A counter that jax adds its compilation seconds to."""
  seen = collections.Counter()

  def note(event: str, seconds: float, **_):
    if event.endswith('backend_compile_duration'):
      seen['seconds'] += seconds

  jax.monitoring.register_event_duration_secs_listener(note)
  return seen


def rss_gib(who=resource.RUSAGE_SELF) -> float:
  """Peak resident memory so far; kilobytes on Linux, bytes on macOS."""
  unit = 1 if sys.platform == 'darwin' else 1024
  return resource.getrusage(who).ru_maxrss * unit / GIB


def run_steps(
  c: Run,
  made: prepare.Prepared,
  workdir: epath.Path,
  n: int,
) -> None:
  """Runs n steps and prints what each took."""
  compiled = compile_seconds()
  begun = time.perf_counter()
  stage = stages.build(staging.Planned('rl', 'rl', c), made)
  params = states.init_params(made, workdir)
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


def plan(made: prepare.Prepared) -> None:
  """Prints what each program of a step needs, from shapes alone."""
  for phase in phases.phases(made):
    begun = time.perf_counter()
    m = phase.lower(made.mesh).compile().memory_analysis()
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
    made = set_up(a, c, workdir)
    shape = made.shape
    print(
      f'{a.model}, {shape.layers} layers, vocabulary {shape.vocab:,}; '
      f'{a.prompts} prompts x {a.samples} samples, {a.prompt_len} + '
      f'{a.completion_len} tokens, {a.micro_batches} micro-batches, '
      f'{a.chunk} columns of logits; float32; jax {jax.__version__}, Python '
      f'{sys.version.split()[0]}'
    )
    with jax.set_mesh(made.mesh):
      if a.plan:
        plan(made)
        return 0
      run_steps(c, made, workdir, a.steps)
  peak = rss_gib()
  print(
    f'peak RSS {peak:.2f} GiB (limit {a.limit_gib:g}), largest worker '
    f'{rss_gib(resource.RUSAGE_CHILDREN):.2f} GiB'
  )
  return int(peak > a.limit_gib)


if __name__ == '__main__':
  sys.exit(main())
