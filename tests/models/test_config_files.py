"""A damaged config.json is an error of one line that names the file and key."""

import copy
import functools
import re

import pytest
from models import family_shapes

from jaxrl_reason.models import families, weights, zoo

BAD = (None, 'x', -1, 0, 0.5, [1], {'a': 1}, [None], True, 1e300, 10**30)
BAD += (float('nan'), float('inf'), [], '1')


# Values that are only wrong together with those of other keys, which the error
# names.
TOGETHER = 'mamba_expand', 'mamba_d_ssm', 'max_window_layers', 'model_type'
TOGETHER += 'enable_moe_block', 'num_dense_layers', 'rope_scaling'


@functools.cache
def published() -> dict[str, dict]:
  """Returns a config.json of every family with a published size or a small
  shape."""
  found = {}
  for c in zoo.ZOO.values():
    h = families.to_hf(c)
    found.setdefault(h['model_type'], h)
  for name in family_shapes.FAMILIES | family_shapes.ALIKE:
    kind = name.partition(',')[0]
    if kind not in found:
      c = family_shapes.config(name)
      found[kind] = families.to_hf(c, family=kind)
  return found


def places(h: dict, at: tuple = ()):
  """Yields the paths of all values, and of the first item of each list."""
  for key, value in h.items():
    yield (*at, key)
    if isinstance(value, dict):
      yield from places(value, (*at, key))
    elif isinstance(value, list) and value:
      yield (*at, key, 0)


def mutated(h: dict, place: tuple, value) -> dict:
  out = copy.deepcopy(h)
  inner = out
  for key in place[:-1]:
    inner = inner[key]
  inner[place[-1]] = value
  return out


@pytest.mark.parametrize('name', published())
def test_every_value_is_read_or_refused(name):
  h, n = published()[name], 0
  for i, place in enumerate(places(h)):
    for value in BAD[i % 3 :: 3]:
      broken = mutated(h, place, value)
      try:
        families.beside_of(broken)
        families.tensors_of(broken)
        families.constants_of(broken)
        weights.specs(families.from_hf(broken))
      except ValueError as error:
        n += 1
        assert '\n' not in str(error)
        if place[0] not in TOGETHER:
          assert str(error).startswith('config.json: ')
          assert {*place} & {*re.findall(r'\w+', str(error))}, (place, value)
  assert n > 20


def test_a_family_is_read_under_another_published_name():
  h = published()['deepseek_v3']
  c = families.from_hf(h)
  assert families.from_hf(h | {'model_type': 'kimi_k2'}) == c
  assert families.to_hf(c)['model_type'] == 'deepseek_v3'


@pytest.mark.parametrize('outer', [True, False, None])
def test_the_outer_key_ties_the_head_of_a_text_model(outer):
  for inner in True, False:
    text = families.to_hf(zoo.ZOO['qwen3-0.6b']) | {
      'tie_word_embeddings': inner
    }
    h = {'model_type': 'qwen3_vl', 'text_config': text}
    if outer is not None:
      h['tie_word_embeddings'] = outer
    assert families.from_hf(h).tied == (inner if outer is None else outer)


def test_an_unknown_family_is_refused_with_the_nearest():
  h = published()['glm4_moe'] | {'model_type': 'glm9_moe', 'index_topk': 8}
  with pytest.raises(ValueError) as error:
    families.from_hf(h)
  said = str(error.value)
  assert "model_type 'glm9_moe' is not supported: no file of" in said
  assert 'index_topk: attention to chosen tokens is supported only' in said
  assert 'The most similar family is glm4_moe; supported are' in said


@pytest.mark.parametrize(
  'change, words',
  [
    ({'rope_theta': [1]}, 'rope_theta=.1. is not a number'),
    ({'num_attention_heads': 2.5}, 'num_attention_heads=2.5 is not a whole'),
    ({'num_hidden_layers': 10**9}, 'num_hidden_layers=1000000000 is not'),
    ({'hidden_act': {}}, r'hidden_act=\{\} is not supported'),
    ({'rope_scaling': 3}, 'rope_scaling=3 is not an object'),
    (
      {'rope_scaling': {'rope_type': 'linear', 'factor': 'x'}},
      "factor='x' is not a number",
    ),
    ({'model_type': [1]}, 'model_type=.1. is not a name'),
    ({'quantization_config': 'fp8'}, "quant_method='fp8' is not supported"),
  ],
)
def test_the_key_is_named(change, words):
  with pytest.raises(ValueError, match=words):
    families.from_hf(published()['llama'] | change)
