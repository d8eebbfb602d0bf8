"""With `model.numerics='exact'`, sampler and trainer of a run have no gap."""

import json

import pytest
import tiny_recipe

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device


@pytest.mark.parametrize('path, cache', [('fused', 'model'), ('host', 'int8')])
def test_every_step_has_a_gap_of_zero_and_a_ratio_of_one(tmp_path, path, cache):
  """The run on the host is resumed after its second step."""
  c = tiny_recipe.get_config()
  c.stages, c.log_every, c.compile_cache = ('rl',), 1, ''
  c.model.update(dtype='bfloat16', numerics='exact', cache_dtype=cache)
  c.rl.update(path=path, epochs=1, minibatches=1, steps_per_dispatch=1)
  c.rl.update(steps=3, prompts=4, samples=2, parts=1, micro_batches=2)
  c.eval.update(every=100, problems=2, samples=1, harder=False)
  c.checkpoint.every = 100
  if path == 'host':
    c.rl.steps = 2
    train.run(c, tmp_path)
    c.rl.steps = 3
  train.run(c, tmp_path)
  lines = map(json.loads, (tmp_path / 'metrics.jsonl').read_text().splitlines())
  steps = [line for line in lines if 'train/gap_max' in line]
  assert len(steps) == 3
  for line in steps:
    assert line['train/gap_max'] == 0 and line['train/nll'] > 0
    assert line['train/ratio_max'] == line['train/ratio_mean'] == 1
