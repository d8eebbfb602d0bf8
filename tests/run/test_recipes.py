"""Recipes of published models: a step of each, with a tiny model of the
same family for theirs. Everything but sizes is the recipe's own.
"""

import json

import jax
import numpy as np
import pytest
from data import hf_folders
from etils import epath
from small import ROOT, load_recipe

from jaxrl_reason import sharding, trees
from jaxrl_reason.checkpoints import hf, wheels
from jaxrl_reason.models import families, spec, transformer, zoo
from jaxrl_reason.run import prepare, rewarding, stages, staging, states

RECIPES = {
  path.stem: path
  for path in sorted((ROOT / 'configs').glob('*.py'))
  if 'model_dir' in path.read_text()
}
ROWS = [
  {'question': f'What is {i} + 1?', 'answer': f'It is so.\n#### {i + 1}'}
  for i in range(40)
]
SMALL = dict(
  hidden_size=32, intermediate_size=48, num_attention_heads=4, head_dim=16
)


def reduced(name: str) -> dict:
  """config.json of a published size, two layers deep and narrow; what makes
  its family (norms, windows, caps, rotary tables, ties) stays.
  """
  h = families.to_hf(zoo.ZOO[name])
  kv = max(1, 4 * h['num_key_value_heads'] // h['num_attention_heads'])
  changes = SMALL | {
    'num_key_value_heads': kv,
    'num_hidden_layers': 2,
    'vocab_size': 312,
    'max_window_layers': 2,
  }
  if 'layer_types' in h:  # the last two: one of each kind, where there are two
    changes['layer_types'] = h['layer_types'][-2:]
  if h.get('sliding_window'):
    changes['sliding_window'] = 24  # shorter than the rows
  return h | changes


def model_folder(path, name: str):
  h = reduced(name)
  c = families.from_hf(h)
  params = jax.jit(lambda key: spec.init(transformer.specs(c), key))(
    jax.random.key(0)
  )
  hf.save(path, params, c, dtype='float32', config=h)
  return hf_folders.byte_level(path)


def published_size(model_dir: str) -> str:
  """'hf:Qwen/Qwen2.5-0.5B-Instruct' -> 'qwen2.5-0.5b'."""
  package = model_dir.removeprefix(wheels.PREFIX)
  if package in wheels.KNOWN:
    return wheels.KNOWN[package][-1]
  assert model_dir.startswith('hf:')
  name = model_dir.split('/')[1].lower()
  for suffix in ('-instruct', '-it', '-base'):
    name = name.removesuffix(suffix)
  return name


def shrink(c, folder, data) -> None:
  """The sizes of a recipe, in place."""
  c.model_dir, c.data.dir = str(folder), str(data)
  c.compile_cache = ''
  c.data.update(prompt_len=256, completion_len=24)
  c.rl.update(steps=1, prompts=4, samples=4, parts=2, workers=1)
  c.rl.update(micro_batches=2, logprob_chunk=8)
  c.rl.update(minibatches=min(2, c.rl.minibatches))
  c.rl.overlong = min(8, c.rl.overlong)
  c.rl.optimizer.update(lr=1e-2, warmup_steps=0)
  # Random text is never right: a coin differs between samples.
  c.rl.rewards.coin = dict(reward='random', weight=1.0)
  c.eval.every = c.checkpoint.every = c.log_every = 1


def one_step(c, workdir):
  """(state, metrics) after the first step of a run."""
  workdir = epath.Path(workdir)
  made = prepare.prepare(c, workdir)
  rewarding.check(c, made.problems, made.tokenizer)
  parts = made._asdict()
  shape = parts.pop('shape')
  with jax.set_mesh(made.mesh):
    stage = stages.build(staging.Planned('rl', 'rl', c), **parts)
    params = states.init_params(
      c, made.model, shape, made.mesh, made.root, workdir
    )
    state = stage.layout.begin(params, 0)
    state, metrics, _ = stage.dispatch(state, False)
    stage.close()
  return state, metrics


@pytest.mark.parametrize('name', RECIPES)
def test_a_recipe_trains_a_small_model_of_its_family(
  name, tmp_path, monkeypatch
):
  """Rollouts, verifiers, scoring and the update, compiled and run."""
  c = load_recipe(RECIPES[name]).get_config()
  make, n = sharding.make_mesh, 1 if c.mesh[0] == -1 else 2
  monkeypatch.setattr(
    sharding, 'make_mesh', lambda shape: make(shape, jax.devices()[:n])
  )
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = model_folder(tmp_path / 'model', published_size(c.model_dir))
  before = trees.flatten(
    hf.load(folder, families.from_hf(hf.read_config(folder)))
  )
  for split, rows in {'train': ROWS[:32], 'test': ROWS[32:]}.items():
    text = ''.join(json.dumps(r) + '\n' for r in rows)
    (tmp_path / f'{split}.jsonl').write_text(text)
  shrink(c, folder, tmp_path)
  state, metrics = one_step(c, tmp_path / 'run')
  assert np.isfinite(metrics['loss']) and metrics['reward_invalid'] == 0
  assert ('overlong_penalty' in metrics) == (c.rl.overlong > 0)
  for path, x in trees.flatten(state.params).items():
    frozen = c.lora.rank and not path.startswith('lora/')
    if path in before:
      assert np.array_equal(x, before[path]) == bool(frozen), path
    elif path.endswith('/b'):  # adapters begin at 0
      assert np.any(x), path
