"""A run starts from a Hugging Face folder and is exported to one."""

import fnmatch
import json
import pathlib
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
import tiny_recipe
from data import hf_folders
from etils import epath
from models import hf_models
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.checkpoints import conversion, hf, pretrained
from jaxrl_reason.evals import generation as generate
from jaxrl_reason.models import families, transformer, zoo
from jaxrl_reason.models.adapters import frozen, lora
from jaxrl_reason.run import prepare, states, train
from jaxrl_reason.run.checks import model_memory as fits

pytestmark = pytest.mark.parity


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Returns a random Qwen2 of transformers, a tokenizer and its template."""
  path = tmp_path_factory.mktemp('qwen')
  hf_folders.byte_level(path)
  model = hf_models.make('qwen2', vocab_size=312)
  model.save_pretrained(path)
  return path


def recipe(folder, **changes) -> config_lib.ml_collections.ConfigDict:
  c = tiny_recipe.get_config()
  c.stages, c.model_dir = ('sft', 'rl'), str(folder)
  c.compile_cache = ''
  c.data.update(
    tokenizer='hf', template='chat', prompt_len=64, completion_len=24
  )
  for stage in (c.sft, c.rl):
    stage.update(steps=1, steps_per_dispatch=1)
  c.rl.update(prompts=8, samples=2, epochs=1, minibatches=1)
  c.eval.update(every=1, problems=4, harder=False)
  c.checkpoint.every = c.log_every = 1
  c.update_from_flattened_dict(changes)
  return c


@pytest.fixture(scope='module')
def ran(folder, tmp_path_factory):
  """Returns (workdir, last state) of an sft and an rl step."""
  workdir = tmp_path_factory.mktemp('run')
  return workdir, train.run(recipe(folder), workdir)


def prepared(c, workdir) -> prepare.Prepared:
  workdir.mkdir(exist_ok=True)
  return prepare.prepare(c, epath.Path(workdir))


def weights(made: prepare.Prepared, workdir):
  """Returns the initial weights of a run."""
  where = epath.Path(workdir)
  return states.init_params(made, where)


def test_a_run_begins_from_the_folder(folder, tmp_path):
  run = prepared(recipe(folder), tmp_path)
  found = weights(run, tmp_path)
  c = families.from_hf(hf.read_config(folder))
  jax.tree.map(np.testing.assert_array_equal, found, hf.load(folder, c))
  assert run.stop.tolist() == list(run.tokenizer.eos_ids)


def test_a_trained_model_opens_in_transformers(folder, ran, tmp_path):
  workdir, state = ran
  conversion.convert(workdir, tmp_path / 'out')
  out = tmp_path / 'out'
  model = hf_models.transformers.AutoModelForCausalLM.from_pretrained(out)
  tokens, valid = hf_models.prompts()
  with hf_models.torch.no_grad():
    theirs = hf_models.logits(model, tokens, valid).numpy()
  ours = transformer.build(families.from_hf(hf.read_config(folder)))
  hidden = ours.hidden(state.params, tokens.numpy(), valid.numpy())
  where = valid.numpy()
  np.testing.assert_allclose(
    np.asarray(ours.unembed(state.params, hidden))[where],
    theirs[where],
    atol=1e-4,
  )
  moved = np.abs(np.asarray(state.params['embed']) - hf.load(
    folder, families.from_hf(hf.read_config(folder)))['embed'])  # fmt: skip
  assert moved.max() > 1e-4
  load = hf_models.transformers.AutoTokenizer.from_pretrained
  assert load(out).chat_template == load(folder).chat_template
  assert load(out).encode('1+2') == load(folder).encode('1+2')


def generate_command(*arguments) -> bytes:
  command = [sys.executable, '-m', 'jaxrl_reason', 'generate', *arguments]
  done = subprocess.run(command, capture_output=True, cwd=ROOT)
  assert done.returncode == 0 and b'tokens/s' in done.stderr, done.stderr
  return done.stdout


def test_a_run_answers_as_the_folder_it_exports(ran, tmp_path):
  """The run uses its chat template, from a file and at the terminal."""
  workdir, _ = ran
  conversion.convert(workdir, tmp_path / 'out')
  said = [('system', 'Count.'), ('user', 'pears')]
  rows = [
    {'prompt': '2+3', 'id': 7},
    {'messages': [{'role': r, 'content': text} for r, text in said]},
    {'prompt': '\u00e9', 'extra': [1]},
  ]
  prompts, out = tmp_path / 'prompts.jsonl', tmp_path / 'answers.jsonl'
  prompts.write_text(''.join(json.dumps(r) + '\n' for r in rows))
  options = {'thinking': 'off', 'system': 'You add.'}
  g = generate.load(
    str(tmp_path / 'out'), None, True, n_samples=3, max_new=6,
    sampling={'top_k': 50}, seed=5,
  )  # fmt: skip
  n, _ = generate.to_file(g, prompts, out, batch=2, **options)
  texts = [g.tokenizer.decode(generate._ids(g, r, options)) for r in rows]
  assert 'You add.' in texts[0] and '2+3' in texts[0]
  assert 'Count.' in texts[1] and 'You add.' not in texts[1]
  assert all('<think>\n\n</think>' in text for text in texts)
  found = [json.loads(line) for line in out.read_text().splitlines()]
  mine = [row for row in rows for _ in range(3)]
  assert [{k: r[k] for k in row} for r, row in zip(found, mine)] == mine
  by_row = [[r['completion'] for r in found[i : i + 3]] for i in (0, 3, 6)]
  assert len(found) == 9 and all(len(set(texts)) == 3 for texts in by_row)
  assert n == sum(r['length'] for r in found)
  same = tmp_path / 'same.jsonl'
  settings = (
    *(f'--model={workdir}', '--chat', '--system=You add.', '--thinking=off'),
    *('--n=3', '--max_new=6', '--seed=5', '--top_k=50'),
  )
  files = f'--file={prompts}', f'--out={same}', '--batch=2'
  assert generate_command(*settings, *files) == b''
  again = [json.loads(line) for line in same.read_text().splitlines()]
  assert {r.pop('model') for r in again} == {f'{workdir}@2'}
  assert {r.pop('model') for r in found} == {str(tmp_path / 'out')}
  assert again == found
  first, second, third = by_row[0]
  shown = f'{first}\n--- 2 of 3\n{second}\n--- 3 of 3\n{third}\n'
  assert generate_command(*settings, '--prompt=2+3').decode() == shown


def test_adapters_are_trained_merged_and_saved_alone(folder, tmp_path):
  peft = pytest.importorskip('peft')
  auto = hf_models.transformers.AutoModelForCausalLM
  changes = {'stages': ('sft',), 'lora.rank': 2}
  state = train.run(recipe(folder, **changes), tmp_path / 'run')
  base = hf.load(folder, families.from_hf(hf.read_config(folder)))
  kept = {k: v for k, v in state.params.items() if k != 'lora'}
  jax.tree.map(np.testing.assert_array_equal, kept, base)
  b = [x for k, x in trees.flatten(state.params).items() if k.endswith('/b')]
  assert max(np.abs(x).max() for x in b) > 1e-4
  conversion.convert(tmp_path / 'run', tmp_path / 'whole')
  conversion.convert(tmp_path / 'run', tmp_path / 'alone', form='peft')
  tokens, valid = hf_models.prompts()
  with hf_models.torch.no_grad():
    whole, alone = (
      hf_models.logits(model, tokens, valid)[valid].numpy()
      for model in (
        auto.from_pretrained(tmp_path / 'whole'),
        peft.PeftModel.from_pretrained(
          auto.from_pretrained(folder), tmp_path / 'alone'
        ),
      )
    )
  np.testing.assert_allclose(whole, alone, atol=1e-4)


def test_a_quantized_base_is_kept_resumed_and_given_back(folder, tmp_path):
  """The base is int8 below adapters: in a folder, an RL step, a checkpoint and
  an export.
  """
  changes = {'stages': ('rl',), 'lora.rank': 2, 'frozen_dtype': 'int8'}
  c = recipe(folder, **changes)
  # A group has both rewards, so that adapters have a gradient.
  c.rl.rewards = dict(coin=dict(reward='random', kwargs=dict(p=0.5)))
  state = train.run(c, tmp_path / 'run')
  shape = families.from_hf(hf.read_config(folder))
  full = hf.load(folder, shape)
  specs = transformer.build(shape).specs
  q = state.params['layers']['attn']['q']
  want = frozen.quantize(full['layers']['attn']['q'], (1,))
  jax.tree.map(np.testing.assert_array_equal, q, want)
  # The state is restored, and no further step is made.
  again = train.run(c, tmp_path / 'run')
  jax.tree.map(np.testing.assert_array_equal, again.params, state.params)
  conversion.convert(tmp_path / 'run', tmp_path / 'out', dtype='float32')
  given = trees.flatten(hf.load(tmp_path / 'out', shape))
  base = trees.flatten(frozen.restored(lora.base_of(state.params), specs))
  for path, w in base.items():
    change = 0.0
    if f'lora/{path}/a' in (flat := trees.flatten(state.params)):
      a, b = (flat[f'lora/{path}/{x}'] for x in 'ab')
      change = 8.0 * (a @ b).reshape(w.shape)  # alpha 16 / rank 2
      assert np.any(change)
    np.testing.assert_allclose(given[path], w + change, rtol=1e-5, atol=1e-6)


def test_a_workdir_keeps_its_model(folder, ran, tmp_path):
  """A resumed run does not need the folder, and refuses another one."""
  workdir, _ = ran
  assert prepared(recipe(folder), workdir).shape.vocab == 312
  kept = {p.name for p in (workdir / 'hf').iterdir()}
  assert {'config.json', 'tokenizer.json', 'source.json'} <= kept
  assert not any('safetensors' in name for name in kept)
  with pytest.raises(ValueError, match='began from model_dir'):
    prepared(recipe(tmp_path), workdir)


@pytest.mark.parametrize(
  'file, content, said',
  [
    ('tokenizer.json', None, 'neither tokenizer.json'),
    ('tokenizer.json', b'', 'tokenizer.json cannot be read'),
    ('config.json', b'{"model_type": "mamba2"}', "'mamba2' is not supported"),
    ('config.json', b'{"model_ty', 'config.json cannot be read'),
  ],
)
def test_a_folder_that_is_mended_is_read_anew(
  folder, tmp_path, file, content, said
):
  """The error names the unreadable file, and nothing of the folder is kept."""
  broken = tmp_path / 'broken'
  shutil.copytree(folder, broken)
  (broken / file).unlink()
  if content is not None:
    (broken / file).write_bytes(content)
  with pytest.raises((ValueError, FileNotFoundError), match=said) as error:
    prepared(recipe(broken), tmp_path / 'run')
  assert 'mamba2' in said or str(broken) in str(error.value)
  shutil.copy(folder / file, broken)
  assert prepared(recipe(broken), tmp_path / 'run').shape.vocab == 312


def test_a_tokenizer_that_is_too_large_is_refused(folder, tmp_path):
  h = hf.read_config(folder) | {'vocab_size': 300}
  other = tmp_path / 'other'
  pretrained.copy_small(folder, other)
  (other / 'config.json').write_text(json.dumps(h))
  with pytest.raises(ValueError, match='305 tokens .* embeds 300'):
    prepared(recipe(other), tmp_path / 'run')


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """Returns an empty cache of the Hub, without a network."""
  constants = pytest.importorskip('huggingface_hub').constants
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  return tmp_path / 'hub'


def test_an_offline_error_names_the_model_and_the_cache(hub):
  with pytest.raises(ValueError) as error:
    pretrained.resolve('hf:owner/model@main')
  for word in (
    *('config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer.model'),
    str(hub / 'models--owner--model'),
    'owner/model@main',
  ):
    assert word in str(error.value)
  with pytest.raises(ValueError, match='no folder. .*config.json'):
    pretrained.resolve('nowhere/at-all')


def test_a_revision_is_pinned(hub, tmp_path):
  """A run resumes with its first commit after the branch has moved."""
  repo = hub / 'models--owner--model'
  for commit in ('a' * 40, 'b' * 40):
    (repo / 'snapshots' / commit).mkdir(parents=True)
    config = {'model_type': 'qwen2', 'commit': commit}
    (repo / 'snapshots' / commit / 'config.json').write_text(json.dumps(config))
  (repo / 'refs').mkdir()
  (repo / 'refs' / 'main').write_text('a' * 40)
  kept = pretrained.begin('hf:owner/model', tmp_path / 'run')
  (repo / 'refs' / 'main').write_text('b' * 40)
  assert pretrained.begin('hf:owner/model', tmp_path / 'run') == kept
  source = json.loads((kept / pretrained.SOURCE).read_text())
  assert source['revision'] == 'a' * 40
  again, _ = pretrained.resolve('hf:owner/model', source['revision'])
  assert again.name == 'a' * 40
  assert pretrained.resolve('hf:owner/model')[1] == 'b' * 40


class Hub:
  """Replaces `huggingface_hub`: branches of one model, a cache, a network.

  Attributes:
    asked: (model, revision) of every call.
    sent: names of downloaded files.
    looked: names of files that were requested one by one.
  """

  def __init__(self, cache: pathlib.Path):
    self.cache, self.commits, self.branches = cache, {}, {}
    self.online, self.asked, self.sent = True, [], []
    self.looked = []
    http_error = type('HfHubHTTPError', (OSError,), {})
    self.missing = type('LocalEntryNotFoundError', (FileNotFoundError,), {})
    self.modules = {
      'constants': types.SimpleNamespace(HF_HUB_CACHE=str(cache)),
      'errors': types.SimpleNamespace(HfHubHTTPError=http_error),
    }

  def publish(self, branch: str, commit: str, folder) -> None:
    self.commits[commit] = pathlib.Path(folder)
    self.branches[branch] = commit

  def hf_hub_download(self, repo, file, *, revision=None):
    commit = self.branches.get(revision or 'main', revision)
    if not self.online:
      raise self.missing('no network')
    self.looked.append(file)
    return str(self.commits[commit] / file)

  def snapshot_download(self, repo, *, revision=None, allow_patterns):
    self.asked.append((repo, revision))
    commit = self.branches.get(revision or 'main', revision)
    at = self.cache / f'models--{repo.replace("/", "--")}' / 'snapshots'
    if not self.online and not (at / commit).is_dir():
      raise self.missing('no network')
    for path in self.commits[commit].iterdir() if self.online else ():
      wanted = any(fnmatch.fnmatch(path.name, p) for p in allow_patterns)
      target = at / commit / path.name
      if wanted and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        self.sent.append(path.name)
    return str(at / commit)


@pytest.fixture
def stand_in(folder, tmp_path, monkeypatch):
  """Returns a Hub whose branch v1 is the folder, with a pickle beside its
  weights.
  """
  published = tmp_path / 'published'
  shutil.copytree(folder, published)
  (published / 'pytorch_model.bin').write_bytes(b'never fetched')
  hub = Hub(tmp_path / 'cache')
  hub.publish('v1', 'a' * 40, published)
  module = types.ModuleType('huggingface_hub')
  module.snapshot_download = hub.snapshot_download
  module.hf_hub_download = hub.hf_hub_download
  vars(module).update(hub.modules)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', module)
  for name, part in hub.modules.items():
    monkeypatch.setitem(sys.modules, f'huggingface_hub.{name}', part)
  return hub


def test_memory_is_checked_before_a_download(stand_in, tmp_path, capsys):
  name, published = 'hf:owner/tiny@v1', stand_in.commits['a' * 40]
  fits.tell(name, tmp_path)
  told = capsys.readouterr().err
  for word in name, 'qwen2', 'GiB (1 of v5e', "frozen_dtype='int8'":
    assert word in told
  path = published / 'config.json'
  path.write_text(json.dumps({'model_type': 'mamba2'}))
  with pytest.raises(ValueError, match="'mamba2' is not supported: its recurr"):
    prepared(recipe(name), tmp_path / 'run')
  assert stand_in.looked == ['config.json'] * 2 and not stand_in.sent
  stand_in.online = False  # the cache may have it, which `begin` checks
  fits.tell(name, tmp_path)
  assert not capsys.readouterr().err
  fits.tell('hf:openai/gpt-oss-20b', tmp_path)  # a size that is known here
  told = capsys.readouterr().err
  assert 'gpt_oss, 20.9 B' in told and 'the Hub cannot be reached' in told


def test_a_stretched_rotary_table_is_used_by_all_readers(folder, tmp_path):
  """Sampler and trainer have one shape, which checkpoint and export contain and
  a resumed run keeps.
  """
  c, workdir = recipe(folder, **{'model.rope_scale': 4.0}), tmp_path / 'run'
  (table,) = prepared(c, workdir).shape.ropes
  own = families.from_hf(hf.read_config(folder))
  assert (table.kind, table.factor, table.original) == ('yarn', 4.0, 256)
  assert table.theta == own.rope_theta and not own.ropes
  shape, h = conversion.config_of_run(workdir, 0)
  assert shape.ropes == (table,) and h['max_position_embeddings'] == 1024
  theirs = hf_models.transformers.AutoConfig.from_pretrained(workdir / 'hf')
  assert families.from_hf(theirs.to_dict()).ropes == (table,)
  assert prepared(c, workdir).shape.ropes == (table,)
  with pytest.raises(ValueError, match='rope_scale=4.0, not 1.0; use another'):
    prepared(recipe(folder), workdir)
  for wrong in (
    {'model.rope_scale': 0.5},
    {'model.rope_scale': 2.0, 'model_dir': '', 'data.tokenizer': 'byte'}
    | {'data.template': 'none'},
  ):
    with pytest.raises(ValueError, match='model.rope_scale'):
      prepared(recipe(folder, **wrong), tmp_path / 'other')


def test_where_a_published_model_fits_by_hand():
  """20.9 B parameters of 16, 2 and 1 bytes, in 0.7 of 15.75 GiB and more."""
  h = families.to_hf(zoo.ZOO['gpt-oss-20b'])
  told = fits.line('hf:openai/gpt-oss-20b', h)
  assert 'gpt_oss, 20.9 B parameters' in told
  assert 'trained 312 GiB (32 of v5e, 16 of v6e, 8 of v5p)' in told
  assert "'bfloat16') 39 GiB (4 of v5e, 2 of v6e, 1 of v5p)" in told


def test_a_run_from_the_hub_is_fetched_once_and_pinned(
  stand_in, folder, tmp_path
):
  name = 'hf:owner/tiny@v1'
  want = hf.load(folder, families.from_hf(hf.read_config(folder)))
  first = prepared(recipe(name), tmp_path / 'run')
  assert stand_in.asked == [('owner/tiny', 'v1')]
  source = json.loads((tmp_path / 'run' / 'hf' / 'source.json').read_text())
  assert source == {'name': name, 'revision': 'a' * 40}
  fetched = sorted(stand_in.sent)
  assert {'config.json', 'tokenizer.json', hf.SINGLE} <= set(fetched)
  assert not any(file.endswith('.bin') for file in fetched)
  # The branch moves to other weights before the run's own are read.
  other = tmp_path / 'other'
  hf_models.make('qwen2', vocab_size=300).save_pretrained(other)
  stand_in.publish('v1', 'b' * 40, other)
  found = weights(first, tmp_path / 'run')
  jax.tree.map(np.testing.assert_array_equal, found, want)
  # Without a network, all files come from the cache.
  stand_in.online = False
  again = prepared(recipe(name), tmp_path / 'run')
  found = weights(again, tmp_path / 'run')
  jax.tree.map(np.testing.assert_array_equal, found, want)
  assert set(stand_in.asked[1:]) == {('owner/tiny', 'a' * 40)}
  assert sorted(stand_in.sent) == fetched


def test_text_and_loss_of_network_of_a_model_on_the_hub(stand_in, tmp_path):
  def load(name):
    return generate.load(
      name, None, False, n_samples=1, max_new=3, sampling={'temperature': 0.0}
    )

  g = load('hf:owner/tiny@v1')
  local = load(str(tmp_path / 'published'))
  ids = g.ids('2+3')
  assert g([ids], [0])[0] == local([ids], [0])[0]
  stand_in.online = False
  assert load('hf:owner/tiny@v1')([ids], [0])[0] == g([ids], [0])[0]
  where = tmp_path / 'cache' / 'models--owner--another'
  with pytest.raises(ValueError) as error:
    load('hf:owner/another@v1')
  words = str(error.value)
  assert words.startswith('hf:owner/another@v1: looked for config.json, ')
  assert 'model.safetensors.index.json' in words and 'tokenizer.model' in words
  assert f' in {where} and on the Hub: no network' in words
  # After an interrupted download, the error names the missing file and its
  # folder.
  cached = next((tmp_path / 'cache').glob('models--owner--tiny/snapshots/*'))
  (cached / hf.SINGLE).unlink()
  with pytest.raises(ValueError, match=f'{cached}.*{hf.SINGLE}'):
    load('hf:owner/tiny@v1')
