"""Stages that learn from the stored distributions of a teacher."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from test_recipe_features import recipe, rows

from jaxrl_reason import config as config_lib
from jaxrl_reason import evaluate, trees
from jaxrl_reason.checkpoints import other_run
from jaxrl_reason.data import teacher_answers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import spec
from jaxrl_reason.run import prepare, supervised_data, train
from jaxrl_reason.run.rl import learners, programs
from jaxrl_reason.update import step as step_lib

pytestmark = pytest.mark.one_device


def student(path, **flat):
  c = recipe(stages=('sft',), **{'sft.loss': 'topk', 'sft.teacher': str(path)})
  c.sft.optimizer.warmup_steps = 0
  c.update_from_flattened_dict(flat)
  return c


def answered(teacher, out, k):
  """Evaluates 24 problems; returns the file of answers."""
  suite = 'task:arithmetic?split=train&min_ops=2&max_ops=3&modulus=3&ops=+-'
  evaluate.main(
    [
      f'--model={teacher}',
      f'--suite={suite}&n=24',
      '--k=1',
      f'--top_logprobs={k}',
      f'--out={out}',
    ]
  )
  (found,) = (out / 'answers').glob('*.jsonl')
  return found


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  where = tmp_path_factory.mktemp('teacher')
  train.run(recipe(stages=('sft',), **{'sft.steps': 16, 'seed': 3}), where)
  return where


@pytest.fixture(scope='module')
def vocab(teacher):
  return len(trees.flatten(other_run.read_params(epath.Path(teacher)))['embed'])


@pytest.fixture(scope='module')
def whole(teacher, vocab, tmp_path_factory):
  """Returns answers with all tokens of the vocabulary."""
  return answered(teacher, tmp_path_factory.mktemp('whole'), vocab)


@pytest.fixture(scope='module')
def top(teacher, tmp_path_factory):
  """Returns answers with four tokens of the vocabulary."""
  return answered(teacher, tmp_path_factory.mktemp('top'), 4)


def batch_and_learner(path, workdir, **flat):
  """Returns the first rows of a stage as a batch, its learner and model."""
  c = student(path, **flat)
  parts = prepare.prepare(c, epath.Path(workdir))
  run = config_lib.read(c)
  ((answers, encode),) = supervised_data.examples(run.sft, run.data, parts)
  found = trees.stacked([encode(i, answers[i]) for i in range(8)])
  batch = programs.supervised_batch(jax.tree.map(jnp.asarray, found))
  return batch, learners.learner(run, parts.model, 'sft'), parts


@pytest.mark.parametrize('chunk', [0, 3])
def test_all_stored_tokens_are_the_divergence_of_both_models(
  chunk, whole, teacher, tmp_path
):
  """The gradient is that of the plain formula from whole logits of both."""
  batch, learner, parts = batch_and_learner(
    whole, tmp_path, **{'sft.logprob_chunk': chunk}
  )
  model, own = parts.model, other_run.read_params(epath.Path(teacher))
  params = spec.init(model.specs, jax.random.key(7))
  adv = step_lib.advantages(learner, batch)
  got, metrics = step_lib.gradients(
    learner, params, batch, adv, Sampling.fixed()
  )

  def logp(params):
    hidden = model.hidden(params, batch.tokens, batch.valid)
    return jax.nn.log_softmax(model.unembed(params, hidden)[:, :-1])

  taught = jax.jit(logp)(own)

  def plain(params):
    kl = (jnp.exp(taught) * (taught - logp(params))).sum(-1)
    mask = batch.mask[:, 1:]
    return jnp.where(mask, kl, 0).sum() / mask.sum()

  want, grad = jax.jit(jax.value_and_grad(plain))(params)
  np.testing.assert_allclose(metrics['loss'], want, rtol=1e-4)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(grad), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def scored(top, path, scores):
  """Copies the answers, with these scores in turn; None: without a verdict."""
  lines = [json.loads(line) for line in top.read_text().splitlines()]
  for i, row in enumerate(lines):
    score = scores[i % len(scores)]
    row['verdict'] = None if score is None else {'score': score}
  path.write_text(''.join(json.dumps(row) + '\n' for row in lines))
  return lines


def test_a_stage_learns_from_answers_of_the_least_score(top, tmp_path):
  path = tmp_path / 'scored.jsonl'
  lines = scored(top, path, (0.0, 1.0, 0.4))
  for least in 1.0, 0.4:
    c = student(path, **{'sft.loss': 'sft', 'sft.least_score': least})
    parts = prepare.prepare(c, tmp_path / f'{least}')
    run = config_lib.read(c)
    ((found, encode),) = supervised_data.examples(run.sft, run.data, parts)
    want = [row for row in lines if row['verdict']['score'] >= least]
    assert 0 < len(found) == len(want) < len(lines)
    for i, row in enumerate(want):
      tokens, mask = (encode(i, found[i])[k] for k in ('tokens', 'mask'))
      assert tokens[mask].tolist() == row['top']['tokens']


@pytest.mark.parametrize(
  'scores, message',
  [
    ((1.0, None), 'scored.jsonl.*has no verdict: write it with `jaxrl grade`'),
    ((0.0, 0.5), 'none of the 48 answers .* the highest has 0.5'),
  ],
)
def test_answers_without_the_score_are_refused(scores, message, top, tmp_path):
  scored(top, tmp_path / 'scored.jsonl', scores)
  c = student(tmp_path / 'scored.jsonl', **{'sft.least_score': 1.0})
  with pytest.raises(ValueError, match=f'sft.least_score=1: .*{message}'):
    prepare.prepare(c, tmp_path / 'run')


@pytest.fixture(scope='module')
def plain(top, tmp_path_factory):
  where = tmp_path_factory.mktemp('plain')
  train.run(student(top, **{'checkpoint.every': 4}), where)
  return where


def test_a_student_comes_nearer_to_stored_distributions(plain):
  found = rows(plain, 'sft')
  assert found[-1]['train/loss'] < 0.8 * found[0]['train/loss']
  assert 'train/nll' in found[0]


@pytest.mark.parametrize(
  'other',
  [
    {'sft.padding': 'packed:40', 'sft.micro_batches': 2},
    {'sft.padding': 'buckets:3', 'sft.logprob_chunk': 3},
    {'mesh': (2, 2, 2)},
  ],
)
def test_padding_and_devices_change_nothing(other, top, plain, tmp_path):
  train.run(student(top, **other), tmp_path)
  for got, want in zip(rows(tmp_path, 'sft'), rows(plain, 'sft'), strict=True):
    for key in ('train/loss', 'train/grad_norm'):
      np.testing.assert_allclose(got[key], want[key], rtol=2e-3)


def test_a_resumed_stage_is_the_uninterrupted_one(top, plain, tmp_path):
  cut = tmp_path / 'cut'
  shutil.copytree(plain, cut)
  shutil.rmtree(cut / 'checkpoints' / '8')
  train.run(student(top, **{'checkpoint.every': 4}), cut)
  found = [[r['train/loss'] for r in rows(x, 'sft')] for x in (cut, plain)]
  assert found[0] == found[1]


def test_hard_labels_are_the_tokens_of_the_same_answers(top, tmp_path):
  """The rows have the sampled tokens, with no second stop token."""
  batch, _, parts = batch_and_learner(top, tmp_path, **{'sft.loss': 'sft'})
  assert batch.teacher_top is None
  lines = [json.loads(line) for line in top.read_text().splitlines()]
  for i, line in enumerate(lines[:8]):
    ids = np.asarray(batch.tokens[i])[np.asarray(batch.mask[i])].tolist()
    assert ids == line['top']['tokens'] and len(ids) == line['length']
    assert parts.tokenizer.decode(ids) == line['completion']


def test_an_interrupted_evaluation_writes_the_same_file(top, teacher, tmp_path):
  out = tmp_path / 'out'
  shutil.copytree(top.parent.parent, out)
  again = out / 'answers' / top.name
  again.write_bytes(top.read_bytes()[: top.stat().st_size // 2])
  answered(teacher, out, 4)
  assert again.read_bytes() == top.read_bytes()


def test_another_tokenizer_is_refused_with_its_model(top, teacher, tmp_path):
  c = student(top)
  c.data.tokenizer = 'byte'
  message = rf'has another tokenizer, that of its model .*{teacher.name}'
  with pytest.raises(ValueError, match=message):
    train.run(c, tmp_path / 'run')


def damaged(line, **changes):
  return line | {'top': line['top'] | changes}


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda x: {k: v for k, v in x.items() if k != 'top'}, "no field 'top'"),
    (lambda x: damaged(x, logp='AAA'), "damaged 'logp'"),
    (lambda x: damaged(x, ids='AAAA'), "0 numbers in 'ids'|damaged 'ids'"),
    (lambda x: damaged(x, k=3), "numbers in 'ids', and"),
    (lambda x: damaged(x, tokens=[]), 'no list of token ids'),
    (lambda x: damaged(x, tokenizer=3), "no 'tokenizer'"),
  ],
)
def test_a_damaged_row_is_refused_by_its_number(change, message, top, tmp_path):
  lines = [json.loads(line) for line in top.read_text().splitlines()]
  lines[2] = change(lines[2])
  path = tmp_path / 'rows.jsonl'
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  with pytest.raises(ValueError, match=f'rows.jsonl, row 3: .*({message})'):
    train.run(student(path), tmp_path / 'run')


def test_answers_that_are_too_long_are_refused_or_left_out(top, tmp_path):
  c = student(top, **{'data.completion_len': 4})
  with pytest.raises(ValueError, match='data.completion_len is 4'):
    prepare.prepare(c, epath.Path(tmp_path))
  c.data.too_long = 'drop'
  parts = prepare.prepare(c, epath.Path(tmp_path))
  (kept,) = parts.problems.pairs.values()
  sizes = [len(kept[i]['top']['tokens']) for i in range(len(kept))]
  lines = [json.loads(line) for line in top.read_text().splitlines()]
  short = [x['length'] for x in lines if x['length'] <= 4]
  assert sizes == short and 0 < len(short) < len(lines)


def test_a_folder_of_an_evaluation_names_its_file(top, tmp_path):
  folder = top.parent.parent
  assert teacher_answers._file(str(folder)) == epath.Path(top)
  shutil.copytree(folder, tmp_path / 'two')
  shutil.copy(top, tmp_path / 'two' / 'answers' / 'other.jsonl')
  with pytest.raises(ValueError, match='several files'):
    teacher_answers._file(str(tmp_path / 'two'))
  with pytest.raises(FileNotFoundError, match='sft.teacher=.*there is no'):
    teacher_answers._file(str(tmp_path / 'none'))


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--top_logprobs=5000'], 'choose at most'),
    (['--top_logprobs=2', '--chunk=6', '--carry=2'], '--chunk cannot be comb'),
    (['--top_logprobs=2', '--most=3', '--final=#'], '--most cannot be combin'),
  ],
)
def test_distributions_that_cannot_be_stored_are_refused(
  flags, message, teacher, tmp_path, capsys
):
  with pytest.raises(SystemExit):
    evaluate.main(
      [
        f'--model={teacher}',
        '--suite=run:heldout',
        f'--out={tmp_path}',
        '--k=1',
        *flags,
      ]
    )
  assert message in capsys.readouterr().err
