"""Adds an argument to a recipe: `--config=FILE.py:VARIANT,depth=4,smoke`.

  @config_lib.recipe(SIZES, depth=3)   # or recipe(), without variants, numbers
  def get_config(size, depth):         # or get_config()
    ...
    return c

`smoke` shrinks the recipe to a run of less than a minute on two CPU cores.
"""

import functools
import pathlib
from collections.abc import Callable, Iterable

import ml_collections

from jaxrl_reason.config.data import Files
from jaxrl_reason.config.recipe_file import RecipeArgumentError
from jaxrl_reason.names import nearest

SMOKE = 'smoke'
# Prefix of a `model_dir` that is replaced by random weights of its family.
RANDOM = 'random:'
PROBLEMS = pathlib.Path(__file__).with_name('smoke')  # in GSM8K's format
SIZES = dict(
  layers=1, width=32, mlp=32, heads=2, kv_heads=2, head_dim=16
)  # fmt: skip


def recipe(variants: Iterable[str] = (), **numbers: float) -> Callable:
  """Returns a decorator that adds the recipe's argument to `get_config`.

  Args:
    variants: allowed names of a variant; the first is the default.
      `get_config` is called with the chosen name, or without it if there are no
      variants.
    numbers: keyword arguments of `get_config` and their defaults. `depth=4` in
      the argument changes one; an int stays an int.
  """
  variants = tuple(variants)

  def decorate(get_config: Callable) -> Callable:
    @functools.wraps(get_config)
    def with_argument(argument: str = '') -> ml_collections.ConfigDict:
      words = [word for word in argument.split(',') if word]
      own = _numbers(words, numbers)
      names = [word for word in words if '=' not in word]
      chosen = [word for word in names if word != SMOKE]
      if own is None or len(chosen) > 1 or not set(chosen) <= set(variants):
        file = get_config.__code__.co_filename
        raise RecipeArgumentError(_choices(file, argument, variants, numbers))
      config = get_config(*(chosen or variants[:1]), **(numbers | own))
      return smoke(config) if SMOKE in words else config

    with_argument.variants = variants
    return with_argument

  return decorate


def _numbers(words: list[str], defaults: dict) -> dict | None:
  """Reads the words `key=number`; None if one is no number of the recipe."""
  out = {}
  for key, _, value in (w.partition('=') for w in words if '=' in w):
    try:
      out[key] = type(defaults[key])(value)
    except (KeyError, ValueError):
      return None
  return out


def _choices(
  file: str, argument: str, variants: tuple[str, ...], numbers: dict
) -> str:
  """Returns the error message for an argument that a recipe does not accept."""
  choices = f'{SMOKE} (a run of a minute)'
  if variants:
    choices = (
      f'one of {", ".join(variants)} and {choices}, or both with a comma'
    )
  if numbers:
    defaults = ', '.join(f'{k}={x}' for k, x in numbers.items())
    choices += f'. Numbers with their defaults, with commas: {defaults}'
  known = (*variants, SMOKE, *numbers)
  wrong = [w.partition('=')[0] for w in argument.split(',') if w]
  wrong = [w for w in wrong if w not in known]
  near = nearest(wrong[0], known) if wrong else ''
  return (
    f'--config={file}:{argument}: the argument of this recipe is {choices}'
    f'{near and f".{near}"}'
  )


def smoke(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Shrinks a config in place to two steps of each stage with a tiny model.

  Algorithm, rewards, environment and execution path do not change. Random
  weights of the same family replace a published model. The problems in
  `PROBLEMS` replace problems from files or downloads, and its pairs and labels
  of steps replace those of stages that learn from them.
  """
  c.model.update(SIZES)
  c.log_every = 1
  c.checkpoint.every = 2
  c.eval.update(every=2, problems=8, samples=2, batch=0)
  for stage in (c.pretrain, c.sft, c.preference, c.reward_model, c.rl):
    stage.update(steps=2, steps_per_dispatch=1)
    stage.micro_batches = min(stage.micro_batches, 2)
    stage.logprob_chunk = min(stage.logprob_chunk, 16)
    stage.optimizer.warmup_steps = 0
  for stage in c.named.values():
    if 'steps' in (own := stage.get(stage['kind'], {})):
      own.steps = 2
  for stage in (c.pretrain, c.sft, c.preference, c.reward_model):
    stage.rows = 8 * stage.micro_batches  # divides over eight devices
  for stage in (c.preference, c.reward_model):
    stage.heldout = min(stage.heldout, stage.rows)
    stage.pairs = str(PROBLEMS / 'pairs.jsonl') if stage.pairs else ''
    if stage.get('labels'):
      stage.labels = str(PROBLEMS / 'steps.jsonl')
  c.rl.update(samples=4, workers=1, cache_segments=1)
  for key, most in dict(parts=2, minibatches=2, overlong=8).items():
    c.rl[key] = min(c.rl[key], most)
  c.rl.prompts = 8 * c.rl.parts
  if c.data.name in ('gsm8k', 'files'):
    c.data.update(dir=str(PROBLEMS), completion_len=32)
    if c.data.name == 'files':  # of these problems
      c.data.prompt_len = 256
      c.data.files.update(question='question', answer='answer', solution='')
      c.data.files.heldout = Files().heldout
    if c.data.tokenizer == 'sentencepiece':
      c.data.vocab = min(c.data.vocab, 320)
  if c.model_dir:
    c.model_dir = RANDOM + c.model_dir
    c.data.prompt_len = 256  # the byte tokenizer makes prompts longer
  return c
