"""Models that `evaluate` and `generate` load are those that were trained."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from small import small_config, small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.checkpoints import hf, manager
from jaxrl_reason.data import tokenizers
from jaxrl_reason.evals import (
  answer_judges,
  cell_settings,
  evaluation,
  loading,
  suites,
)
from jaxrl_reason.update import critics

EXPERTS = dict(
  bias=False, tied=False, experts=4, experts_per_token=2, expert_norm=True,
  router='sigmoid', choice_bias=True, vocab=264,
)  # fmt: skip
PLAIN = dict(qk_norm=False, vocab=264)


def saved(workdir, critic=None, seed=0, **changes):
  """Writes a run from scratch with a checkpoint; returns its parameters."""
  params, c = small_model(seed, **changes)[2], small_config(**changes)
  config = config_lib.default()
  config.model.update({k: getattr(c, k) for k in config.model})
  config.data.tokenizer, config.stages = 'byte', ('reward_model',)
  workdir.mkdir()
  (workdir / 'config.json').write_text(config.to_json_best_effort())
  state = {'params': params}
  if critic is not None:
    state['critic'] = {'params': critic(params)}
  checkpoints = manager.Checkpoints(epath.Path(workdir), 1)
  checkpoints.save(1, state, {'stage': 0})
  checkpoints.wait()
  checkpoints.close()
  return params


def check_cast(found, params) -> None:
  want = trees.flatten(params)
  for path, x in trees.flatten(found).items():
    exact = path.endswith('choice_bias')
    assert x.dtype == (jnp.float32 if exact else jnp.bfloat16), path
    np.testing.assert_array_equal(x, want[path].astype(x.dtype), path)
  assert any(path.endswith('choice_bias') for path in want)


def test_biases_that_choose_experts_are_never_rounded(tmp_path):
  """Rounded biases would choose other experts than in training."""
  params = saved(tmp_path / 'run', **EXPERTS)
  found = loading.load(str(tmp_path / 'run'), dtype='bfloat16')
  check_cast(found.params, params)


def test_a_judge_chooses_the_experts_that_it_was_trained_with(tmp_path):
  def critic(params):
    body = {k: x for k, x in params.items() if k != 'head'}
    return {'body': body, critics.HEAD: jnp.ones(16)}

  params = saved(tmp_path / 'run', critic, **EXPERTS)
  policy = loading.load(str(tmp_path / 'run'), dtype='bfloat16')
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  judge = answer_judges.load(str(tmp_path / 'run'), policy, mesh)
  check_cast(judge.params['body'], params)


@pytest.mark.parametrize(
  'kept', [dict(numerics='exact'), dict(attention='cudnn', head_dim=8)]
)
def test_a_run_in_bfloat16_is_read_in_float32(tmp_path, kept):
  """The settings of computation of a run apply to its training only."""
  params = saved(tmp_path / 'run', dtype='bfloat16', **PLAIN, **kept)
  found = loading.load(str(tmp_path / 'run'), dtype='float32')
  jax.tree.map(np.testing.assert_array_equal, found.params, params)
  assert (found.shape.numerics, found.shape.attention) == ('fast', 'auto')


def test_models_padded_to_other_sizes_are_summed(tmp_path):
  """The smallest vocabulary still has every token of the tokenizer."""
  sizes, params = (272, 264, 280), []
  for i, vocab in enumerate(sizes):
    params.append(saved(tmp_path / str(i), **PLAIN | {'vocab': vocab}))
  name = '+'.join(str(tmp_path / str(i)) for i in range(3))
  found = loading.load(f'rast:{name}', dtype='float32')
  assert found.shape.vocab == 264
  assert found.version == loading.version_of(found.name)
  assert len(set(found.version.split('+'))) == 3  # those of three runs
  tokens = jnp.arange(5)[None]
  states = found.model.hidden(found.params, tokens, tokens >= 0)
  logits = found.model.unembed(found.params, states)
  want = 0
  for weight, vocab, own in zip((1, 1, -1), sizes, params):
    model = small_model(**PLAIN | {'vocab': vocab})[1]
    states = model.hidden(own, tokens, tokens >= 0)
    want = want + weight * model.unembed(own, states)[..., :264]
  np.testing.assert_allclose(logits, want, atol=1e-5)


def test_a_second_model_with_another_late_token_is_refused():
  alphabet = ''.join(map(chr, range(300, 1400)))
  ours, theirs = (
    loading.Loaded(name, None, None, None, tokenizer, None, None)
    for name, tokenizer in (
      ('ours', tokenizers.CharTokenizer(alphabet + chr(5000))),
      ('theirs', tokenizers.CharTokenizer(alphabet + chr(6000))),
    )
  )
  evaluation._refuse_other_tokens(ours, '--base', ours)
  with pytest.raises(ValueError, match='--base=theirs has other tokens than o'):
    evaluation._refuse_other_tokens(ours, '--base', theirs)


ROW = {'prompt': '1+1=', 'answer': '2', 'solution': '2', 'meta': {}}


def begun(out, model, reward='math', train=(), **flags) -> None:
  """Begins the file of answers of `evaluate`, or continues it."""
  o = cell_settings.Options([model], ['x'], epath.Path(out), **flags)
  suite = suites.Suite('sums', [ROW], reward, train)
  (asked,) = evaluation.cells_of(o, [suite])
  asked.cell.begin()


def check_noticed(out, change, key='version', **flags) -> None:
  """A file is continued with the same weights, and not after a change."""
  begun(out, **flags)
  begun(out, **flags)
  change()
  with pytest.raises(ValueError, match=f'was begun with {key}='):
    begun(out, **flags)


def test_answers_of_other_weights_at_the_same_path_are_noticed(tmp_path):
  folder, run, file = (tmp_path / name for name in ('model', 'run', 'v.npz'))
  folder.mkdir()
  config, weights = folder / 'tokenizer_config.json', folder / hf.SINGLE
  template = folder / 'chat_template.jinja'
  for path in (weights, template, file):
    path.write_text('a' * 5000)
  config.write_text('{}')
  of_folder, of_run = dict(model=str(folder)), dict(model=str(run))

  def other(path):
    return lambda: path.write_text('b' * 5000)

  def again():
    shutil.rmtree(run)
    saved(run, seed=1, **PLAIN)

  out = tmp_path / 'weights'
  check_noticed(out, other(weights), **of_folder)
  out = tmp_path / 'template'
  check_noticed(out, other(template), 'chat_template', **of_folder)
  out = tmp_path / 'vectors'
  check_noticed(out, other(file), model=f'steered:{folder}+{file}*2')
  saved(run, **PLAIN)
  check_noticed(tmp_path / 'run_again', again, **of_run)
  out = tmp_path / 'base'
  check_noticed(out, again, 'base_version', base=str(run), **of_folder)


def test_verdicts_of_other_code_or_of_another_limit_are_noticed(tmp_path):
  saved(tmp_path / 'run', **PLAIN)
  model, rewards = str(tmp_path / 'run'), tmp_path / 'mine.py'
  rewards.write_text('def one(*_): return 1.0')

  def edit():
    rewards.write_text('def one(*_): return 0.0')

  flags = dict(model=model, reward=f'{rewards}:one')
  check_noticed(tmp_path / 'code', edit, 'verifier', **flags)
  begun(tmp_path / 'limit', **flags, timeout_s=0.01)
  with pytest.raises(ValueError, match='begun with timeout_s=0.01, not 10.0'):
    begun(tmp_path / 'limit', **flags)


def test_other_solved_problems_of_prompts_are_noticed(tmp_path):
  saved(tmp_path / 'run', **PLAIN)
  train = [ROW | {'prompt': '2+2='}]

  def edit():
    train[0]['solution'] = '4'

  flags = dict(model=str(tmp_path / 'run'), train=train, prompts=['qa+shots=1'])
  check_noticed(tmp_path / 'out', edit, 'solved', **flags)


def test_files_of_earlier_versions_without_a_version_are_continued(tmp_path):
  saved(tmp_path / 'run', **PLAIN)
  flags = dict(model=str(tmp_path / 'run'))
  begun(tmp_path, **flags)
  (path,) = (tmp_path / 'answers').glob('*.json')
  settings = json.loads(path.read_text())
  for key in ('version', 'timeout_s'):
    assert settings.pop(key)
  path.write_text(json.dumps(settings))
  begun(tmp_path, **flags)
