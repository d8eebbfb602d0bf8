"""The policy as a verifier of its completions, in whole runs."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import check_a_killed_run, env

from jaxrl_reason import config as config_lib
from jaxrl_reason import evaluate, sharding
from jaxrl_reason.evals import answer_judges, loading
from jaxrl_reason.planning import abstract, phases
from jaxrl_reason.run import train

__all__ = ['env']
COIN = dict(reward='random', kwargs=dict(p=0.5))
ASKS = {
  'rl.loss.sft_on': 'verdict',
  'rl.loss.sft_coef': 0.5,
  'rl.verdict.ask': '==',
  'rl.verdict.yes': '+',
  'rl.verdict.no': '-',
}


def asking(**flat):
  c = recipe(**{'rl.samples': 4} | ASKS | flat)
  c.rl.rewards = dict(answer=COIN)  # right and wrong rows in every step
  return c


def test_both_paths_train_the_same_verdicts(tmp_path):
  seen = {}
  for path in ('fused', 'host'):
    c = asking(**{'rl.path': path, 'rl.micro_batches': 2})
    train.run(c, tmp_path / path)
    seen[path] = [
      [
        r[f'train/{k}']
        for k in ('verdict/accuracy', 'verdict/loss', 'sft_loss')
      ]
      for r in rows(tmp_path / path)
    ]
  assert np.shape(seen['fused']) == (6, 3)
  np.testing.assert_allclose(seen['host'], seen['fused'], rtol=2e-3, atol=2e-3)
  # One pass over the rows serves the policy and the verdicts.
  assert seen['fused'][0][1] == pytest.approx(seen['fused'][0][2], rel=1e-4)


@pytest.mark.parametrize(
  'flat, words',
  [
    ({'rl.verdict.yes': '++'}, "rl.verdict.yes='++' is 2 tokens"),
    ({'rl.verdict.ask': 'right?'}, "rl.verdict.ask='right?': "),
    ({'rl.padding': 'packed:22'}, 'is less than 23, the longest sequence with'),
  ],
)
def test_unusable_texts_of_question_and_verdicts_are_named(
  tmp_path, flat, words
):
  with pytest.raises(ValueError) as e:
    train.run(asking(**flat), tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)


def test_a_plan_counts_the_added_columns():
  def flops(**flat):
    c = recipe(**{'rl.algorithm': 'dr_grpo'} | flat)  # no reference
    c.rl.rewards = dict(answer=COIN)
    run = config_lib.read(c)
    parts = abstract.shapes(run, sharding.make_mesh(run.mesh))
    (step,) = [p for p in phases.phases(parts) if p.name == 'step']
    return step.flops, parts

  plain, parts = flops()
  asked, _ = flops(**ASKS)
  of, n = parts.model.flops_per_token, 16  # rows of 12 + 8 tokens
  head = 2 * parts.shape.vocab * parts.shape.width
  short, long = 20 * of(19 / 2), 23 * of(22 / 2)
  update = 3 * n * (long - short)  # three more logits in three more columns
  before = n * (long - 22 * head)
  assert asked - plain == pytest.approx(update + before, rel=1e-6)


def test_an_evaluation_weights_votes_by_the_verdicts_of_the_policy(tmp_path):
  """p(correct) is that of the question after a row without padding."""
  where = tmp_path / 'run'
  train.run(asking(**{'rl.steps': 2}), where)
  suite = 'task:arithmetic?min_ops=2&max_ops=3&modulus=3&ops=+-&n=6'
  flags = [f'--suite={suite}', '--k=3', '--top_logprobs=1']
  flags.append(f'--out={tmp_path / "out"}')
  evaluate.main([f'--model={where}', f'--judge={where}', *flags])
  (path,) = (tmp_path / 'out' / 'answers').glob('*.jsonl')
  found = [json.loads(line) for line in path.read_text().splitlines()]
  judge = loading.load(str(where))
  yes, no = (judge.tokenizer.encode(x)[0] for x in '+-')
  for row in found[:6]:
    ids = judge.tokenizer.encode(row['prompt']) + row['top']['tokens']
    tokens = jnp.array([[*ids, *judge.tokenizer.encode('==')]])
    hidden = judge.model.hidden(judge.params, tokens, tokens >= 0)[:, -1]
    logits = np.float64(judge.model.unembed(judge.params, hidden)[0])
    p = np.exp(logits[[yes, no]] - logits[[yes, no]].max())
    assert row['p_correct'] == pytest.approx(p[0] / p.sum(), abs=1e-4)
  assert len({row['p_correct'] for row in found}) > 3
  # A folder of weights has the default question, which needs its characters.
  folder = dataclasses.replace(judge, run=None)
  with pytest.raises(ValueError, match="rl.verdict.ask='.*' of .*run@"):
    answer_judges._verdict(folder)


@pytest.mark.slow
def test_a_killed_run_asks_the_same_questions(env, tmp_path):
  given = ASKS | {'stages': 'rl', 'rl.steps': 12, 'rl.epochs': 1}
  given |= {'rl.minibatches': 1, 'rl.steps_per_dispatch': 1}
  check_a_killed_run(env, tmp_path, given)
