"""Stages of kind `preference`: losses of pairs, in runs of the tiny recipe."""

import json

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import content

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import pipeline, preference_pairs
from jaxrl_reason.run import (
  loop,
  prepare,
  stage_list,
  supervised_data,
  train,
)
from jaxrl_reason.run.rl import learners, programs
from jaxrl_reason.verifiers import records
from jaxrl_reason.verifiers.verdict import Verdict

pytestmark = pytest.mark.one_device


@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
  """Writes sums as problems; the chosen answer is 1 and the rejected one is
  22.
  """
  path = tmp_path_factory.mktemp('pairs') / 'pairs.jsonl'
  with path.open('w') as f:
    for i in range(24):
      row = {'prompt': f'{i % 9}+{i // 9}=', 'chosen': '1', 'rejected': '22'}
      f.write(json.dumps(row) + '\n')
  return path


def preferring(pairs, **flat):
  c = recipe(stages=('preference',))
  c.preference.update(pairs=str(pairs), rows=8, steps=6)
  c.preference.optimizer.update(warmup_steps=0, lr=3e-3)
  c.update_from_flattened_dict(flat)
  return c


@pytest.mark.parametrize(
  'loss, beta',
  [('dpo', 0.5), ('ipo', 0.5), ('kto', 0.5), ('orpo', 1.0), ('simpo', 2.0)],
)
def test_a_stage_learns_to_prefer_chosen_answers(loss, beta, pairs, tmp_path):
  c = preferring(pairs, **{'preference.loss': loss, 'preference.beta': beta})
  train.run(c, tmp_path)
  found = rows(tmp_path, 'preference')
  assert found[-1]['train/preferred'] == 1
  margins = [row['train/preference_margin'] for row in found]
  assert margins[-1] > max(0, margins[0])
  assert found[-1]['train/loss'] < found[0]['train/loss']
  if loss in ('dpo', 'ipo', 'kto'):  # the policy begins as the reference
    assert margins[0] == pytest.approx(0, abs=1e-6)
  if loss == 'dpo':
    assert found[0]['train/loss'] == pytest.approx(np.log(2))


@pytest.mark.parametrize('adapted', [{'lora.rank': 2}, {'steering': True}])
def test_the_reference_has_the_adapters_of_the_start(adapted, pairs, tmp_path):
  """Otherwise the loss begins with what earlier stages have learnt."""
  c = preferring(pairs, **{'preference.steps': 2} | adapted)
  c.stages, c.sft.steps = ('sft', 'preference'), 4
  c.sft.optimizer.update(warmup_steps=0, lr=3e-2)
  train.run(c, tmp_path)
  first = rows(tmp_path, 'preference')[0]
  assert first['train/preference_margin'] == pytest.approx(0, abs=1e-6)
  assert first['train/loss'] == pytest.approx(np.log(2))


@pytest.mark.parametrize('kind', ['preference', 'reward_model'])
def test_held_out_pairs_are_evaluated_and_not_trained_on(kind, pairs, tmp_path):
  c = recipe(**{'stages': (kind,), f'{kind}.pairs': str(pairs)})
  c[kind].update(rows=8, steps=6, heldout=16)
  c[kind].optimizer.update(warmup_steps=0, lr=3e-3)
  train.run(c, tmp_path)
  before, after = rows(tmp_path, kind, 'eval/pairs/preferred')
  trained = rows(tmp_path, kind)
  assert before['eval/pairs/preferred'] < 0.8
  assert after['eval/pairs/preferred'] > 0.9
  assert after['eval/pairs/margin'] > max(0, before['eval/pairs/margin'])
  # All steps train on the same 8 pairs, so the margins do not become equal.
  margins = [row['train/preference_margin'] for row in trained]
  assert after['eval/pairs/margin'] != margins[-1]


def test_problems_of_held_out_pairs_have_no_other_pair():
  found = [{'prompt': f'{i % 5}', 'chosen': f'{i}'} for i in range(20)]
  kept, held = preference_pairs.split(found, 6)
  prompts = [{pair['prompt'] for pair in part} for part in (kept, held)]
  assert (len(kept), len(held)) == (12, 6) and not set.intersection(*prompts)
  again = preference_pairs.split(found[::-1], 6)[1]
  assert {pair['prompt'] for pair in again} == prompts[1]
  for n in (17, 20, 30):
    with pytest.raises(ValueError, match=f'heldout={n}: of 20 pairs, none'):
      preference_pairs.split(found, n)


def test_kto_compares_with_an_answer_of_another_prompt_of_its_part(
  pairs, monkeypatch
):
  """Held-out answers are not read by training, and the reverse."""
  found = [
    {'prompt': f'{i // 2}', 'chosen': f'{i}', 'rejected': '-1'}
    for i in range(12)
  ]
  monkeypatch.setattr(
    pipeline,
    'solution_row',
    lambda i, e, *_: np.array([int(e['prompt']), int(e['solution'])]),
  )
  c = config_lib.read(preferring(pairs, **{'preference.loss': 'kto'}))
  for part in preference_pairs.split(found, 5):
    encode = preference_pairs.encoder(c.preference, c.data, part, None)
    answers = {pair['chosen'] for pair in part}
    for i in range(len(part)):
      (prompt, _), _, (_, other) = encode(i, part[i])
      assert f'{other}' in answers and other // 2 != prompt
  encode = preference_pairs.encoder(c.preference, c.data, found[:2], None)
  with pytest.raises(ValueError, match='2 pairs .* name more pairs'):
    encode(0, found[0])


@pytest.mark.parametrize('loss', ['dpo', 'simpo'])
def test_micro_batches_have_whole_pairs(loss, pairs, tmp_path):
  one, two = (
    preferring(
      pairs, **{'preference.loss': loss, 'preference.micro_batches': m}
    )
    for m in (1, 4)
  )
  train.run(one, tmp_path / 'one')
  train.run(two, tmp_path / 'two')
  both = [rows(tmp_path / name, 'preference') for name in ('one', 'two')]
  for got, want in zip(*both, strict=True):
    for key in ('loss', 'preferred', 'preference_margin', 'grad_norm'):
      np.testing.assert_allclose(
        got[f'train/{key}'], want[f'train/{key}'], rtol=2e-4, atol=1e-6
      )


def test_pairs_of_a_run_are_its_best_and_worst_completions(tmp_path):
  c = recipe(**{'rollouts.every': 1, 'rl.samples': 8, 'rl.steps': 6})
  c.rl.rewards = dict(coin=dict(reward='random', kwargs=dict(p=0.5)))
  train.run(c, tmp_path / 'rl')
  made = preferring(tmp_path / 'rl')
  found = prepare.prepare(made, tmp_path / 'run').problems.pairs
  (pairs,) = found.values()
  rewards = {}
  for file in (tmp_path / 'rl' / 'rollouts').glob('*.jsonl'):
    for line in file.read_text().splitlines():
      row = json.loads(line)
      if not row['truncated']:
        key = row['prompt'], row['completion']
        rewards.setdefault(key, set()).add(row['reward'])
  assert len(pairs)
  for pair in pairs:
    prompt = pair['prompt']
    assert 1 in rewards[prompt, pair['chosen']]
    assert 0 in rewards[prompt, pair['rejected']]


def rollouts(folder, *completions):
  """Writes rollouts of one step of one problem: (prompt, completion, reward,
  other fields).
  """
  (folder / 'rollouts').mkdir(parents=True)
  rows = [
    records.judged(
      records.record(
        {'prompt': prompt, 'answer': ''}, number=0, sample=i,
        completion=completion, length=1, truncated=False, step=1,
        reward=reward, **more,
      ),
      Verdict(reward),
    )
    for i, (prompt, completion, reward, more) in enumerate(completions)
  ]  # fmt: skip
  lines = ''.join(map(records.line_of, rows))
  (folder / 'rollouts' / '00000001.jsonl').write_text(lines)
  return folder


def test_pairs_have_the_prompt_of_both_completions(tmp_path):
  """A problem has several prompts if the policy proposes them."""
  run = rollouts(
    tmp_path / 'rl',
    *[('1+1=', '2', 1.0, {}), ('2+2=', '5', 0.0, {}), ('2+2=', '4', 0.5, {})],
  )
  problems = prepare.prepare(preferring(run), tmp_path / 'run').problems
  ((pair,),) = problems.pairs.values()
  assert [pair[k] for k in preference_pairs.FIELDS] == ['2+2=', '4', '5']


def test_completions_with_other_turns_make_no_pairs(tmp_path):
  turns = [{'role': 'policy', 'content': '2'}]
  rows = [('1+1=', '2', 1.0, {'conversation': turns}), ('1+1=', '3', 0.0, {})]
  run = rollouts(tmp_path / 'rl', *rows)
  with pytest.raises(ValueError, match='00000001.jsonl, row 1 has a conversa'):
    prepare.prepare(preferring(run), tmp_path / 'run')


def from_own_rollouts(**flat):
  """Returns a run whose pairs are the rollouts of its second rl stage."""
  c = recipe(**{'stages': ('rl', 'rl', 'preference', 'rl'), 'rl.samples': 8})
  c.rollouts.every, c.rl.steps, c.checkpoint.every = 1, 4, 2
  c.rl.rewards = dict(coin=dict(reward='random', kwargs=dict(p=0.5)))
  c.preference.update(pairs='rl', rows=8, steps=4)
  c.update_from_flattened_dict(flat)
  return c


def test_a_stage_learns_from_pairs_of_an_earlier_stage(tmp_path, monkeypatch):
  """A run that was killed in the stage reads the same pairs."""
  seen, encoder = [], preference_pairs.encoder

  def noted(c, d, pairs, tokenizer):
    seen.append([(p['prompt'], p['chosen'], p['rejected']) for p in pairs])
    return encoder(c, d, pairs, tokenizer)

  monkeypatch.setattr(preference_pairs, 'encoder', noted)
  train.run(from_own_rollouts(), tmp_path / 'whole')
  (pairs,) = seen
  files = sorted((tmp_path / 'whole' / 'rollouts').glob('*.jsonl'))
  made = [json.loads(x) for f in files for x in f.read_text().splitlines()]
  second = {
    (r['prompt'], r['completion']) for r in made if r['stage'] == 'rl#2'
  }
  assert pairs and all({(p, a), (p, b)} <= second for p, a, b in pairs)
  # Ended in the middle of the stage of pairs, then resumed.
  save, steps = loop.Loop.save, []

  def dies(self, state, keep, **facts):
    save(self, state, keep, **facts)
    steps.append(self.total)
    if self.total == 10:
      self.checkpoints.wait()
      raise KeyboardInterrupt

  monkeypatch.setattr(loop.Loop, 'save', dies)
  with pytest.raises(KeyboardInterrupt):
    train.run(from_own_rollouts(), tmp_path / 'cut')
  monkeypatch.setattr(loop.Loop, 'save', save)
  train.run(from_own_rollouts(), tmp_path / 'cut')
  assert seen == [pairs] * 3
  assert content(tmp_path / 'cut') == content(tmp_path / 'whole')


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'rollouts.every': 0}, "preference.pairs='rl#2'.*rollouts.every=0"),
    ({'stages': ('preference', 'rl')}, "pairs='rl' does not exist.*rl stage"),
  ],
)
def test_a_stage_without_rollouts_is_refused(changes, message, tmp_path):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    prepare.prepare(from_own_rollouts(**changes), tmp_path)


@pytest.mark.parametrize('kind', ['preference', 'reward_model'])
def test_a_missing_file_of_pairs_is_named(kind, tmp_path):
  path = str(tmp_path / 'none')
  c = recipe(**{'stages': (kind,), f'{kind}.pairs': path})
  wanted = f'{kind}.pairs=.*/none.* workdir'
  with pytest.raises(FileNotFoundError, match=wanted):
    prepare.prepare(c, tmp_path / 'run')


def test_a_run_without_rollouts_has_no_pairs(tmp_path):
  (tmp_path / 'rl').mkdir()
  with pytest.raises(ValueError, match='preference.pairs=.* no problem with'):
    prepare.prepare(preferring(tmp_path / 'rl'), tmp_path / 'run')


def by_hand(c, params, ref, batch):
  """Computes the loss of pairs [P,blocks,T], one answer at a time, by numpy."""

  def logps(params, answer):
    tokens, valid = batch['tokens'][:, answer], batch['valid'][:, answer]
    hidden = L.MODEL.hidden(params, tokens, valid)
    logp = jax.nn.log_softmax(L.MODEL.unembed(params, hidden)[:, :-1])
    at = np.asarray(tokens)[:, 1:, None]
    logp = np.take_along_axis(np.asarray(logp), at, -1)[..., 0]
    mask = np.asarray(batch['mask'])[:, answer, 1:]
    return np.where(mask, logp, 0).sum(1), mask.sum(1)

  (chosen, n), (rejected, m) = logps(params, 0), logps(params, 1)
  if c.loss == 'simpo':
    x = c.beta * (chosen / n - rejected / m) - c.margin
    return np.log1p(np.exp(-x)).mean()
  gains = chosen - logps(ref, 0)[0], rejected - logps(ref, 1)[0]
  if c.loss == 'dpo':
    return np.log1p(np.exp(-c.beta * (gains[0] - gains[1]))).mean()
  z = max(0, (logps(params, 2)[0] - logps(ref, 2)[0]).mean())
  good = 1 - 1 / (1 + np.exp(-c.beta * (gains[0] - z)))
  bad = 1 - 1 / (1 + np.exp(-c.beta * (z - gains[1])))
  return (good + bad).mean() / 2


@pytest.mark.parametrize('loss', ['dpo', 'kto', 'simpo'])
def test_the_loss_is_that_of_the_formula(loss, pairs):
  c = preferring(pairs, **{'preference.loss': loss})
  c.preference.margin = 0.3 if loss == 'simpo' else 0.0
  c.data.update(prompt_len=L.P, completion_len=L.C)
  run = config_lib.read(c)
  learn = learners.learner(run, L.MODEL, 'preference')
  rng, blocks = np.random.default_rng(0), learn.objective.policy.blocks
  shape = 4, blocks, L.P + L.C
  mask = rng.random(shape) < 0.7
  mask[..., : L.P] = False
  mask[..., -1] = True
  batch = {
    'tokens': rng.integers(1, L.SHAPE['vocab'], shape).astype(np.int32),
    'valid': np.ones(shape, bool),
    'mask': mask,
  }
  params = L.model_and_params()[1]
  ref = jax.tree.map(
    lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), params
  )
  state = L.state(learn).replace(params=params, ref_params=ref)
  stacked = jax.tree.map(lambda x: x[None], batch)
  _, metrics = programs.preference_steps(
    learn, state, stacked, jax.random.key(0)
  )
  want = by_hand(run.preference, params, ref, batch)
  np.testing.assert_allclose(metrics['loss'][0], want, rtol=2e-4)


@pytest.mark.parametrize(
  'text, message',
  [
    ('{"prompt": "1+1=", "chosen": "2"}', "row 2: its 'rejected' is None"),
    ('{"prompt": "1+1=", "chosen": "2", "rejected": "2"}', 'are equal'),
    (
      '{"prompt": "1+1=", "chosen": "2", "rejected": "%s"}' % ('9' * 99),
      'row 2: the solution has 100 tokens',
    ),
    ('[]', 'row 2: it is not a JSON object'),
  ],
)  # fmt: skip
def test_a_bad_pair_is_named_before_the_first_step(text, message, tmp_path):
  good = '{"prompt": "1+1=", "chosen": "2", "rejected": "3"}'
  path = tmp_path / 'pairs.jsonl'
  path.write_text(f'{good}\n{text}\n')
  with pytest.raises(ValueError, match=message):
    prepare.prepare(preferring(path), tmp_path / 'run')


def test_pairs_that_are_too_long_are_dropped(tmp_path):
  rows = [
    {'prompt': '1+1=', 'chosen': '2', 'rejected': '3'},
    {'prompt': '1+1=', 'chosen': '2', 'rejected': '9' * 99},
    {'prompt': [{'role': 'user', 'content': '1+2='}],
     'chosen': [{'role': 'assistant', 'content': '3'}], 'rejected': '4'},
  ]  # fmt: skip
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  c = preferring(path, **{'data.too_long': 'drop'})
  (found,) = prepare.prepare(c, tmp_path / 'run').problems.pairs.values()
  assert [pair['rejected'] for pair in found] == ['3', '4']
  assert found[1]['prompt'] == '1+2='


def test_each_stage_keeps_the_pairs_that_fit_it(tmp_path):
  path = tmp_path / 'pairs.jsonl'
  rows = [('2', '3'), ('12345', '3')]
  rows = [{'prompt': '1+1=', 'chosen': a, 'rejected': b} for a, b in rows]
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  c = preferring(path, **{'data.too_long': 'drop'})
  c.stages = ('long', 'short')
  c.named = {
    'long': {'kind': 'preference'},
    'short': {'kind': 'preference', 'data': {'completion_len': 4}},
  }
  parts = prepare.prepare(c, tmp_path / 'run')
  long, short = [
    supervised_data.examples(p.config.preference, p.config.data, parts)[0][0]
    for p in stage_list.each(parts.config)
  ]
  assert [len(long), len(short)] == [2, 1]


def test_changed_pairs_are_refused(pairs, tmp_path):
  """A run does not resume with other pairs, in a row or in the whole file."""
  path, moved = tmp_path / 'pairs.jsonl', tmp_path / 'moved.jsonl'
  path.write_text(pairs.read_text())
  c = preferring(path, **{'preference.steps': 1})
  train.run(c, tmp_path / 'run')
  path.rename(moved)
  c.preference.update(pairs=str(moved), steps=2)
  train.run(c, tmp_path / 'run')
  (found,) = prepare.prepare(c, tmp_path / 'run').problems.pairs.values()
  moved.write_text(moved.read_text().replace('"1"', '"3"'))
  with pytest.raises(ValueError, match='row 1 was changed since the run began'):
    found[0]
  c.preference.steps = 3
  with pytest.raises(ValueError, match=r'other data \(pairs\)'):
    train.run(c, tmp_path / 'run')


@pytest.mark.parametrize(
  'flat, message',
  [
    ({'pairs': ''}, 'preference.pairs'),
    ({'loss': 'sft'}, 'preference.loss'),
    ({'loss': 'ipo', 'label_smoothing': 0.1}, 'preference.label_smoothing'),
    ({'margin': 0.5}, 'preference.margin'),
    ({'loss': 'kto', 'micro_batches': 2}, 'preference.micro_batches=2'),
  ],
)
def test_settings_without_effect_are_refused(flat, message, pairs, tmp_path):
  flat = {f'preference.{key}': value for key, value in flat.items()}
  with pytest.raises(ValueError, match=message):
    prepare.prepare(preferring(pairs, **flat), tmp_path)
