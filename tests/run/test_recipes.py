"""Runs the smoke version of every recipe from start to end.

Recipes of published models start from random weights of the same family.
Sizes and steps differ from the recipe itself, everything else is the same.
"""

import collections
import json

import numpy as np
import pytest
from jax import monitoring
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.checkpoints import hf, pretrained
from jaxrl_reason.config import recipes
from jaxrl_reason.models import families
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run import train
from jaxrl_reason.run.process import compile_log

pytestmark = pytest.mark.one_device

PATHS = sorted((ROOT / 'configs').glob('*.py'))
# Variants whose model, or whose programs, differ from the default's.
ARGUMENTS = [(path, 'smoke') for path in PATHS]
ARGUMENTS += [(ROOT / 'configs' / 'grpo_gsm8k.py', 'qwen3_1p7b,smoke')]
ARGUMENTS += [(ROOT / 'configs' / 'distill_tiny.py', 'jsd,smoke')]
ARGUMENTS += [(ROOT / 'configs' / 'pairs_tiny.py', 'steps,smoke')]
ARGUMENTS += [(ROOT / 'configs' / 'proposals_tiny.py', 'strings,smoke')]
IDS = [f'{path.stem}:{argument}' for path, argument in ARGUMENTS]


@pytest.fixture
def compiled():
  """Yields a counter of the programs compiled or read from the cache."""
  counts = collections.Counter()

  def note(event, seconds, **facts):
    if event == compile_log.COMPILED:
      counts[facts['fun_name']] += 1

  monitoring.register_event_duration_secs_listener(note)
  yield counts
  monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize('path, argument', ARGUMENTS, ids=IDS)
def test_a_recipe_runs_its_smoke_version(path, argument, tmp_path, compiled):
  """Every stage trains, every answer is verified, every weight is updated, and
  no stage compiles a program of a step twice.
  """
  pytest.importorskip('tokenizers')
  c = load_recipe(path).get_config(argument)
  c.compile_cache = ''
  if c.model_dir:  # random text is never right: without a coin, no gradient
    c.rl.rewards.coin = dict(reward='random', weight=1.0)
    c.rl.optimizer.lr = 1e-2
  if c.init_from or c.rl.teacher.weights:  # another run of the recipe
    variant, key = 'teacher', 'rl.teacher.weights'
    if c.init_from:
      variant, key = 'warm', 'init_from'
      if argument.startswith('strings'):
        variant = 'strings_warm'
    own, folder = (
      load_recipe(path).get_config(f'{variant},smoke'),
      tmp_path / variant,
    )
    own.compile_cache = ''
    train.run(own, folder)
    c.update_from_flattened_dict({key: str(folder)})
    compiled.clear()
  state = train.run(c, tmp_path)
  steps = {k: n for k, n in compiled.items() if '_steps' in k or 'rl_' in k}
  kinds = [planned.kind for planned in staging.each(c)]
  once = {k: kinds.count('rl') if 'rl_' in k else 1 for k in steps}
  assert steps and steps == once, steps
  text = (tmp_path / 'metrics.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  trained = [row for row in rows if 'train/loss' in row]
  assert [r['stage'] for r in trained] == [s for s in c.stages for _ in '12']
  assert all(np.isfinite(row['train/loss']) for row in trained)
  assert not any(row.get('train/reward_invalid', 0) for row in trained)
  assert any('eval/heldout/pass@1' in row for row in rows)
  if c.model_dir:
    check_updated(state.params, c)


def check_updated(params, c) -> None:
  """Checks that each weight was updated, or only the adapters."""
  folder, _ = pretrained.resolve(c.model_dir)
  config = families.from_hf(hf.read_config(folder))
  before = trees.flatten(hf.load(folder, config))
  for path, x in trees.flatten(params).items():
    if path in before:
      assert np.array_equal(x, before[path]) == bool(c.lora.rank), path
    elif path.endswith('/b'):  # adapters begin at 0
      assert np.any(x), path


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_a_recipe_refuses_other_arguments(path):
  get_config = load_recipe(path).get_config
  with pytest.raises(ValueError, match='argument of this recipe is .*smoke'):
    get_config('smok')
  variants = get_config.variants
  assert not variants or get_config(variants[0]) == get_config()
  assert get_config().rl.steps > get_config('smoke').rl.steps


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_rows_of_a_smoke_version_divide_over_eight_devices(path):
  c = load_recipe(path).get_config('smoke')
  assert c.rl.prompts % (8 * c.rl.parts) == 0
  assert c.rl.prompts * c.rl.samples % (8 * c.rl.micro_batches) == 0
  assert c.sft.rows % (8 * c.sft.micro_batches) == 0


def test_variants_and_smoke_are_combined():
  @config_lib.recipe(('small', 'large'))
  def get_config(size):
    c = config_lib.default()
    c.rl.samples = dict(small=8, large=16)[size]
    return c

  assert get_config().rl.samples == get_config('small').rl.samples == 8
  assert get_config('large').rl.samples == 16
  for argument in ('large,smoke', 'smoke,large'):
    assert get_config(argument).rl.steps == 2
  with pytest.raises(ValueError, match='one of small, large and smoke'):
    get_config('small,large')


def test_smoke_keeps_smaller_values():
  c = config_lib.default()
  c.rl.update(parts=1, minibatches=1, overlong=0)
  recipes.smoke(c)
  assert (c.rl.parts, c.rl.minibatches, c.rl.overlong) == (1, 1, 0)


def test_worlds_of_studies_have_numbers_in_their_argument():
  """Depth, prior and number of solutions, alone and with `smoke`."""
  folder = ROOT / 'configs' / 'studies'
  functions = load_recipe(folder / 'functions.py').get_config
  deeper = functions('depth=4,prior_loss=0.2')
  assert deeper.data.knobs.max_functions == 4 and deeper.sft.stop_loss == 0.2
  assert deeper.data.harder.min_functions == 5
  assert functions('depth=3') == functions() != deeper
  assert functions('depth=4,smoke').data.knobs.max_functions == 4
  expressions = load_recipe(folder / 'expressions.py').get_config
  few = expressions('solutions=1,numbers=4')
  assert few.data.knobs.max_solutions == 1 and few.data.knobs.min_numbers == 4
  for wrong in ('deep=4', 'depth=x', 'depth=', 'depth', '3'):
    with pytest.raises(ValueError, match='depth=3, prior_loss=0.35'):
      functions(wrong)
  with pytest.raises(ValueError, match="Did you mean 'depth'"):
    functions('dept=4')
