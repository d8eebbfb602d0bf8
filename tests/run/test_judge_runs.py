"""A model answers for the reward 'verdict': the policy, or one of its own."""

import dataclasses
import json
import shutil
import types

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import content

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.rewards.kernels import asked
from jaxrl_reason.rollouts import judging, views
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device

TEXTS = {'rl.verdict.ask': '==', 'rl.verdict.yes': '+', 'rl.verdict.no': '-'}
JUDGED = {
  'answer': dict(reward='task', weight=0.0),
  'judge': dict(reward='verdict', weight=1.0),
}
NAME = 'train/reward/judge'
MORE = {
  'same': dict(reward='verdict', weight=0.5, kwargs=dict(ask='={answer}')),
  'better': dict(
    reward='verdict', weight=0.25, kwargs=dict(ask='={other}=', rivals=1)
  ),
  'thought': dict(
    reward='verdict', weight=0.5, kwargs=dict(ask='={thought}=', thought_len=3)
  ),
}


def judged(**flat):
  c = recipe(**{'rl.samples': 4} | TEXTS | flat)
  c.rl.rewards = dict(JUDGED)
  return c


def test_the_probability_is_that_of_whole_rows_without_padding():
  """Row 0 has the question and yes in its completion, and row 7 no more room.
  The last question has the verdict.
  """
  params = L.model_and_params()[1]
  prompts = L.prompts()
  rollout = L.sample(params, prompts)
  forged = rollout.tokens.at[0, :4].set(jnp.array([3, 4, 5, 0]))
  forged = forged.at[7, -3:].set(jnp.array([3, 4, 5]))
  turn = jnp.ones_like(rollout.turn[0])
  turn = rollout.turn.at[7].set(turn).at[0].set(jnp.arange(L.C) < 4)
  rollout = rollout.replace(tokens=forged, turn=turn)
  asks = Verdicts(L.MODEL, (3, 4), 5, 6)
  rows_of = batch_lib.rows_of(prompts, rollout)
  got = jax.jit(asks.probability)(params, rows_of)
  n = len(rollout.tokens)
  texts = np.tile([3, 4, 8], (n, 1)), np.arange(n) % 4
  own = dict(zip(('tokens', 'n_tokens'), map(jnp.int32, texts)))
  asks = dataclasses.replace(asks, question=(), room=3)
  varied = jax.jit(asks.probability)(params, rows_of, own)
  for i in (0, 7, 13):
    own = np.asarray(rows_of.tokens[i])[np.asarray(rows_of.valid[i])].tolist()
    for probability, question in ((got, [3, 4]), (varied, [3, 4, 8][: i % 4])):
      row = jnp.asarray([*own, *question])[None]
      x = L.MODEL.hidden(params, row, jnp.ones_like(row, bool))[:, -1]
      logits = L.MODEL.unembed(params, x)[0]
      odds = np.exp(np.asarray(logits[5] - logits[6]))
      np.testing.assert_allclose(probability[i], odds / (1 + odds), rtol=1e-4)


def test_every_row_has_the_question_of_its_problem():
  prompts = L.prompts()
  b = len(prompts.tokens)
  given = {'tokens': jnp.zeros((b, b), jnp.int32), 'n_tokens': jnp.arange(b)}
  prompts = prompts.replace(answer={'judge': {'0': given}})

  def asks(params, rows, own):
    return own['n_tokens'] + 100 * rows.tokens.sum(axis=1)

  question = asked.Question('{answer}')
  fake = types.SimpleNamespace(probability=asks)
  of = {question: judging.Judge(question, 'judge', fake, ())}
  seen = views.Views(L.MODEL, ('verdict',), L.P, parts=2, verdict=of)
  params = L.model_and_params()[1]
  rollout = L.sample(params, prompts)
  out = seen(params, prompts, rollout, None).views['verdict'][question]
  whole = batch_lib.rows_of(prompts, rollout).tokens.sum(axis=1)
  row = np.arange(len(out)) // (len(out) // b)
  np.testing.assert_array_equal(out, row + 100 * whole)


def test_a_question_has_the_answer_of_each_problem():
  tokenizer, ask = L.TOKENIZER, '={answer}+{answer}='
  encode = asked.encoder(asked.Question(ask), tokenizer, 4)
  for answer in ('7', '61'):
    row = encode({'answer': answer})['0']
    assert row['tokens'].shape == (3 + 4,)
    text = tokenizer.decode(row['tokens'][: row['n_tokens']].tolist())
    assert text == f'={answer}+{answer}='
  with pytest.raises(ValueError, match="9 tokens with the answer '123', and a"):
    encode({'answer': '123'})
  with pytest.raises(ValueError, match='answer=None: the question .* a text'):
    encode({'answer': None})
  encode = asked.encoder(asked.Question('='), tokenizer, 4)
  assert encode({'answer': 'x'}) == {}


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  where = tmp_path_factory.mktemp('teacher')
  train.run(recipe(stages=('sft',)), where)
  return str(where)


def test_a_run_is_rewarded_by_its_policy_or_by_a_teacher(tmp_path, teacher):
  """A policy that begins with the teacher's weights has its first rewards, also
  if filters and penalties change the distribution that is sampled.
  """
  start = {'init_from': teacher, 'rl.micro_batches': 2, 'rl.top_k': 8}
  start |= {'rl.presence_penalty': 0.1, 'rl.logprob_chunk': 8}
  train.run(judged(**start), tmp_path / 'own')
  by = {'rl.verdict.by': 'teacher', 'rl.teacher.weights': teacher}
  train.run(judged(**start | by), tmp_path / 'teacher')
  own, other = (
    [r[NAME] for r in rows(tmp_path / x)] for x in ('own', 'teacher')
  )
  np.testing.assert_allclose(own[0], other[0], rtol=1e-5)
  assert abs(own[-1] - other[-1]) > 1e-6
  assert all(0 < x < 1 for x in own + other)


def test_meshes_judge_alike_and_a_resumed_run_too(tmp_path, teacher):
  """One device and eight, with questions of every kind."""
  by = {'rl.verdict.by': 'teacher', 'rl.teacher.weights': teacher}
  start = {'init_from': teacher, 'rl.prompts': 8, 'rl.steps': 4} | by
  start |= {'checkpoint.every': 2, 'checkpoint.keep': 9}
  found = []
  for mesh in ((-1, 1, 1), (2, 2, 2)):
    where = tmp_path / str(mesh[1])
    c = judged(**start, mesh=mesh)
    c.rl.rewards = dict(JUDGED) | MORE
    want = train.run(c, where)
    names = [NAME, *(f'train/reward/{name}' for name in MORE)]
    found.append(np.array([[r[name] for name in names] for r in rows(where)]))
    total = [r['train/reward_mean'] for r in rows(where)]
    weights = [1, *(part['weight'] for part in MORE.values())]
    np.testing.assert_allclose(total, found[-1] @ weights, rtol=1e-5)
  assert abs(np.diff(found[0][:, :2])).min() > 1e-5
  np.testing.assert_allclose(found[1], found[0], rtol=2e-3)
  shutil.copytree(where, tmp_path / 'cut')
  shutil.rmtree(next((tmp_path / 'cut' / 'checkpoints').glob('4*')))
  got = train.run(c, tmp_path / 'cut')
  want = trees.flatten(want.params)
  for path, x in trees.flatten(got.params).items():
    np.testing.assert_array_equal(x, want[path])
  assert content(tmp_path / 'cut') == content(where)


def test_a_run_reads_the_rubrics_of_its_file(tmp_path):
  """Item 0 alone has a weight, so the rubric is the plain question with it. One
  device and eight.
  """
  path = tmp_path / 'rows.jsonl'
  items = [{'criterion': 'Ok'}, {'criterion': 'No', 'weight': 0}]
  lines = [
    {'question': f'{i}+1=', 'answer': f'{i + 1}', 'rubric': items}
    for i in range(40)
  ]
  path.write_text(''.join(json.dumps(x) + '\n' for x in lines))
  c = recipe(**{'rl.verdict.yes': 'y', 'rl.verdict.no': 'n', 'rl.steps': 2})
  c.data.update(name='files', dir=str(path), tokenizer='byte')
  c.data.knobs, c.data.harder = {}, {}
  c.data.files.update(heldout=0.3)
  items = dict(ask='{criterion}?', criteria=3, criterion_len=3)
  c.rl.rewards = dict(
    plain=dict(reward='verdict', kwargs=dict(ask='Ok?')),
    rubric=dict(reward='verdict', kwargs=items),
  )
  seen = []
  for mesh in ((-1, 1, 1), (2, 2, 2)):
    c.mesh, where = mesh, tmp_path / str(mesh[1])
    train.run(c, where)
    for row in rows(where):
      plain, found = (row[f'train/reward/{k}'] for k in ('plain', 'rubric'))
      assert found == pytest.approx(plain, rel=1e-5) and 0 < found < 1
      seen.append(found)
  assert seen[:2] == pytest.approx(seen[2:], rel=2e-3)
  c.rl.rewards['rubric']['kwargs']['criteria'] = 1
  with pytest.raises(
    ValueError, match="'rubric' has 2 items, and .*criteria=1"
  ):
    train.run(c, tmp_path / 'refused')


@pytest.mark.parametrize(
  'flat, words',
  [
    ({'rl.path': 'host'}, "'verdict' reads"),
    ({'rl.verdict.yes': '++'}, r"rl.verdict.yes='\+\+' is 2 tokens"),
  ],
)
def test_settings_without_a_verdict_are_refused(tmp_path, flat, words):
  with pytest.raises(ValueError, match=words):
    train.run(judged(**flat), tmp_path)
