"""Steering vectors: the difference of right and wrong answers, and its effect
on a model.
"""

import errno
import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from data import hf_folders
from small import small_config, small_model

from jaxrl_reason import steer, trees
from jaxrl_reason.checkpoints import hf
from jaxrl_reason.evals import loading
from jaxrl_reason.models.adapters import steering

pytest.importorskip('safetensors.numpy')
CHANGES = dict(qk_norm=False, vocab=312)
# (problem, completion, score): the last two problems have one kind of answer.
ANSWERS = [
  (0, 'yes', 1.0),
  (0, 'no, not at all', 0.0),
  (1, 'four', 0.0),
  (0, 'certainly', 1.0),
  (1, '5', 1.0),
  (1, 'six or seven', 0.0),
  (2, 'well', 1.0),
  (3, 'bad', 0.0),
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('model')
  params = small_model(**CHANGES)[2]
  hf.save(path, params, small_config(**CHANGES), dtype='float32')
  return hf_folders.byte_level(path)


def answers(path, rows=ANSWERS, **more):
  lines = []
  for problem, completion, score in rows:
    verdict = dict(score=score, status='parsed', extracted=None, detail=None)
    row = dict(prompt=f'problem {problem}', problem=problem, verdict=verdict)
    lines.append(row | dict(completion=completion, truncated=False) | more)
  path.write_text(''.join(json.dumps(row) + '\n' for row in lines))
  return path


def run(folder, tmp_path, *flags, rows=ANSWERS, **more):
  out = tmp_path / 'v.npz'
  file = answers(tmp_path / 'answers.jsonl', rows, **more)
  base = (f'--model={folder}', f'--answers={file}', f'--out={out}')
  steer.main([*base, '--layer=1', '--batch=4', *flags])
  return out


@pytest.mark.parametrize('token', ['last', 'mean'])
def test_the_vector_is_a_mean_of_differences(folder, tmp_path, token):
  """Computes the vector answer by answer, without padding. Problems with only
  correct or only incorrect answers do not count.
  """
  out = run(folder, tmp_path, f'--token={token}')
  with np.load(out) as found:
    got = found[steering.KEY]
  model = loading.load(str(folder), dtype='float32')
  encode, (stop, *_) = model.tokenizer.encode, model.tokenizer.eos_ids
  states = {}
  for problem, completion, score in ANSWERS:
    prompt = [*model.tokenizer.prefix_ids, *encode(f'problem {problem}')]
    row = jnp.asarray([[*prompt, *encode(completion), stop]])
    x = model.model.hidden_after(
      model.params, row, jnp.ones(row.shape, bool), 1
    )
    x = np.asarray(x[0], np.float64)
    x = x[-1] if token == 'last' else x[len(prompt) :].mean(axis=0)
    states.setdefault((problem, score), []).append(x)
  want = [
    np.mean(states[i, 1.0], axis=0) - np.mean(states[i, 0.0], axis=0)
    for i in (0, 1)
  ]
  np.testing.assert_allclose(got[1], np.mean(want, axis=0), atol=2e-4)
  assert got.shape == (3, 16) and not got[[0, 2]].any()


def test_a_file_that_is_not_written_whole_leaves_the_earlier_one(
  folder, tmp_path, monkeypatch
):
  out = run(folder, tmp_path)
  before = out.read_bytes()

  def full(fd):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(SystemExit):
    run(folder, tmp_path, '--layer=2')
  assert out.read_bytes() == before


def test_a_steered_model_adds_the_vector(folder, tmp_path):
  out = run(folder, tmp_path)
  base = loading.load(str(folder), dtype='float32')
  name = f'steered:{folder}+{out}*2.5'
  got = loading.load(name, dtype='float32')
  assert got.name == name
  vectors = np.load(out)[steering.KEY]
  tokens, valid = jnp.arange(9)[None] + 40, jnp.ones((1, 9), bool)

  def after(found, layer):
    return found.model.hidden_after(found.params, tokens, valid, layer)

  np.testing.assert_array_equal(after(got, 0), after(base, 0))
  moved = after(got, 1) - after(base, 1)
  np.testing.assert_allclose(
    moved[0], np.tile(2.5 * vectors[1], (9, 1)), atol=1e-4
  )
  # No strength is 1.
  one = loading.load(f'steered:{folder}+{out}', dtype='float32')
  np.testing.assert_allclose(one.params[steering.KEY], vectors)


@pytest.mark.parametrize(
  'flags, more, words',
  [
    (['--layer=3'], {}, '--layer=3: must be from -3 to 2'),
    (['--token=first'], {}, "--token='first'"),
    (['--out=v.txt'], {}, '--out=v.txt: must end with .npz'),
    (['--answers=none*.jsonl'], {}, '--answers=none*.jsonl: no such file'),
    ([], {'rows': ANSWERS[-2:]}, 'no problem has both a right and a wrong'),
    ([], {'prompt': None}, 'a line has no text as its prompt'),
  ],
)
def test_bad_flags_are_named(folder, tmp_path, capsys, flags, more, words):
  with pytest.raises(SystemExit):
    run(folder, tmp_path, *flags, **more)
  assert words in capsys.readouterr().err


def test_files_of_another_model_are_refused(folder, tmp_path):
  other = tmp_path / 'other.npz'
  np.savez(other, **{steering.KEY: np.zeros((2, 16), np.float32)})
  with pytest.raises(
    ValueError, match=r'has vectors \(2, 16\).*needs \(3, 16\)'
  ):
    loading.load(f'steered:{folder}+{other}')
  with pytest.raises(ValueError, match='is no file of `jaxrl steer`'):
    loading.load(f'steered:{folder}+{tmp_path}/none.npz')
  with pytest.raises(
    ValueError, match='steered:MODEL.FILE, a model and a file'
  ):
    loading.load(f'steered:{folder}')


def test_a_changed_model_adds_the_change_to_its_weights(folder, tmp_path):
  base = loading.load(str(folder), dtype='float32')
  flat = trees.flatten(base.params)
  change = {k: np.full(x.shape, 0.5, np.float32) for k, x in flat.items()}
  file = tmp_path / 'change.npz'
  np.savez(file, **change)
  name = f'changed:{folder}+{file}*0.5'
  got = loading.load(name, dtype='float32')
  assert got.name == name
  for path, x in trees.flatten(got.params).items():
    np.testing.assert_allclose(x, flat[path] + 0.25, rtol=1e-6)
  np.savez(file, **{k: x for k, x in change.items() if k != 'embed'})
  with pytest.raises(ValueError, match='changes of other weights than those'):
    loading.load(name)
  with pytest.raises(ValueError, match='no file of tools/weight_change.py'):
    loading.load(f'changed:{folder}+{tmp_path}/none.npz')
