"""Features of recipes in whole runs of the tiny recipe."""

import importlib.util
import json
import textwrap

import jax
import numpy as np
import pytest
import tiny_recipe
from etils import epath
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.checkpoints import other_run
from jaxrl_reason.data import problems, tokenizers
from jaxrl_reason.run import prepare, states, train
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.pool import VerifierPool

pytestmark = pytest.mark.one_device

PARITY = f'{ROOT}/tests/pod_worker.py:parity'


def recipe(**flat):
  c = tiny_recipe.get_config()
  c.stages, c.log_every = ('rl',), 1
  c.rl.update(epochs=1, minibatches=1, steps_per_dispatch=1, steps=6)
  c.sft.steps_per_dispatch = 1
  c.rl.update(prompts=8, samples=2, parts=1)
  c.eval.update(every=100, problems=4, samples=1, harder=False)
  c.checkpoint.every = 100
  c.compile_cache = ''
  c.update_from_flattened_dict(flat)
  return c


def rows(workdir, stage='rl', key='train/loss'):
  text = (workdir / 'metrics.jsonl').read_text()
  found = [json.loads(line) for line in text.splitlines()]
  return [r for r in found if r['stage'] == stage and key in r]


def learnt(workdir, key):
  """Returns a metric of every update of the rl stage."""
  return [row[f'train/{key}'] for row in rows(workdir, key='train/grad_norm')]


SCHEDULE = {'by': 'step', 'at': [1, 4], 'values': [0.5, 2.0]}
BY_LENGTH = {'by': 'mean_length', 'at': [0, 8], 'values': [3.0, 1.0]}
BY_RATE = {'by': 'solve_rate', 'at': [0, 1], 'values': [1.0, -1.0]}
WEIGHTS = {'coin': BY_RATE, 'by_step': SCHEDULE, 'by_length': BY_LENGTH}


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_scheduled_weights_follow_the_run(tmp_path, path):
  c = recipe()
  c.rl.path = path
  random = dict(reward='random', kwargs=dict(p=0.5))
  part = random if path == 'fused' else dict(reward=PARITY)
  parts = {k: part | dict(weight=w) for k, w in WEIGHTS.items()}
  c.rl.rewards = parts | dict(again=part)
  train.run(c, tmp_path)
  seen, length, rate = rows(tmp_path), None, None
  for i, row in enumerate(seen):
    assert row['train/control/step'] == i
    # The means are those of the batches before, the newest a tenth of them.
    if i:
      np.testing.assert_allclose(
        row['train/control/mean_length'], length, rtol=1e-5
      )
      np.testing.assert_allclose(
        row['train/control/solve_rate'], rate, atol=1e-6
      )
    new = row['train/length_mean'], row['train/reward/coin']
    length = new[0] if i == 0 else 0.9 * length + 0.1 * new[0]
    rate = new[1] if i == 0 else 0.9 * rate + 0.1 * new[1]
    want = row['train/reward/again']
    for k, weight in WEIGHTS.items():
      at = row[f'train/control/{weight["by"]}']
      now = np.interp(at, weight['at'], weight['values'])
      want += now * row[f'train/reward/{k}']
    np.testing.assert_allclose(row['train/reward_mean'], want, rtol=1e-5)
  assert len(seen) == 6
  assert len({r['train/reward/coin'] for r in seen}) > 1


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_weight_follows_only_known_numbers(tmp_path, path):
  c = recipe(**{'rl.path': path})
  weight = {'by': 'steps', 'at': [0, 1], 'values': [0.0, 1.0]}
  c.rl.rewards = dict(answer=dict(reward='task', weight=weight))
  with pytest.raises(ValueError, match="'steps': a run keeps step, solve_rate"):
    train.run(c, tmp_path)


def test_a_finished_stage_continues_with_more_steps(tmp_path):
  train.run(recipe(**{'rl.steps': 3}), tmp_path / 'more')
  train.run(recipe(), tmp_path / 'more')
  train.run(recipe(), tmp_path / 'whole')

  def losses(name):
    return [(r['step'], r['train/loss']) for r in rows(tmp_path / name)]

  assert losses('more') == losses('whole') and len(losses('whole')) == 6


def test_a_run_starts_from_the_weights_of_another(tmp_path):
  train.run(recipe(stages=('sft',)), tmp_path / 'warm')
  warm = other_run.read_params(epath.Path(tmp_path / 'warm'))
  step = max(r['step'] for r in rows(tmp_path / 'warm', 'sft'))
  changes = {'init_from': f'{tmp_path / "warm"}@{step}', 'rl.steps': 1}
  c = recipe(**changes)
  c.rl.optimizer.lr = 0.0
  state = train.run(c, tmp_path / 'rl')
  for path, x in trees.flatten(state.params).items():
    np.testing.assert_array_equal(x, trees.flatten(warm)[path], path)
  assert int(state.step) == 1  # steps are counted anew


def test_weights_of_another_model_are_refused(tmp_path):
  train.run(recipe(stages=('sft',)), tmp_path / 'warm')
  warm = str(tmp_path / 'warm')
  with pytest.raises(ValueError, match=r'attn/k is .* there and .* here'):
    changes = {'init_from': warm, 'model.heads': 4, 'model.kv_heads': 4}
    train.run(recipe(**changes), tmp_path / 'rl')
  with pytest.raises(ValueError, match='has no checkpoint of step 7'):
    train.run(recipe(init_from=f'{warm}@7'), tmp_path / 'other')
  with pytest.raises(ValueError, match='set init_from'):
    train.run(recipe(model_dir=warm), tmp_path / 'third')


def test_weights_of_other_tokens_are_refused(tmp_path):
  """Another alphabet of the same size would read them without an error."""
  train.run(recipe(stages=('sft',)), tmp_path / 'warm')
  parts = prepare.prepare(recipe(init_from=str(tmp_path / 'warm')), tmp_path)
  states.init_params(parts, tmp_path)
  characters = parts.tokenizer.alphabet
  other = tokenizers.CharTokenizer(characters.replace('+', '~'))
  with pytest.raises(ValueError, match='init_from=.* has another tokenizer'):
    states.init_params(parts._replace(tokenizer=other), tmp_path)


def test_a_trained_tokenizer_comes_with_the_weights(tmp_path):
  data = config_lib.Data().changed(
    {'name': 'word_problems', 'tokenizer': 'sentencepiece', 'vocab': 400}
  )
  made = []
  for seed, origin in ((0, ''), (1, tmp_path / '0'), (2, '')):
    workdir = epath.Path(tmp_path / str(seed))
    workdir.mkdir()
    found = problems.load(data, seed)
    made.append(
      problems.make_tokenizer(data, found, workdir, origin=str(origin))
    )
  first, same, other = (tokenizer.token_bytes() for tokenizer in made)
  assert first == same != other
  assert (tmp_path / '1' / problems.PIECES).exists()


OWN_TASK = """
  from jaxrl_reason.verifiers import tasks
  from jaxrl_reason.verifiers.tasks import problem


  def generate(rng, *, largest):
    a, b = problem.below(rng, largest + 1), problem.below(rng, largest + 1)
    answer = str(max(a, b))
    return problem.make_example('largest', f'{a},{b}=', [], answer)


  tasks.TASKS['largest'] = problem.Task(
    name='largest',
    generate=generate,
    check=problem.check_integer,
    knobs=dict(largest=9),
    harder=dict(largest=9),
    alphabet='0123456789,=#',
    answer_chars='0123456789',
    kernel='integer',
  )
"""


@pytest.fixture
def own_task(tmp_path):
  path = tmp_path / 'own_task.py'
  path.write_text(textwrap.dedent(OWN_TASK))
  spec = importlib.util.spec_from_file_location('own_task_of_a_test', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  yield path
  del tasks.TASKS['largest']


@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_task_of_a_recipe_runs_on_both_paths(tmp_path, own_task, path):
  c = recipe(**{'rl.steps': 2, 'rl.path': path, 'data.name': 'largest'})
  c.data.knobs, c.data.harder = {}, {}
  train.run(c, tmp_path / 'run')
  found = rows(tmp_path / 'run')
  assert [r['train/reward_invalid'] for r in found] == [0, 0]


def test_workers_know_the_tasks_of_a_recipe(own_task):
  example = tasks.example('largest', 0, 0, split='train')
  with VerifierPool('jaxrl_reason.verifiers.task:reward', workers=1) as pool:
    right, wrong = pool.map([(example['solution'], example), ('#10', example)])
  assert right.valid and right.score == 1 and wrong.score == 0


def broken(completion: str, example: dict) -> float:
  raise KeyError('no such field')


def endless(completion: str, example: dict) -> float:
  while True:
    pass


@pytest.mark.parametrize(
  'name, words',
  [
    ('broken', 'broken raised KeyError'),
    ('endless', '2 took longer than rl.timeout_s=0.2 s'),
  ],
)
def test_a_broken_reward_is_reported_before_compilation(tmp_path, name, words):
  c = recipe(**{'rl.path': 'host', 'rl.timeout_s': 0.2})
  c.rl.rewards = dict(answer=dict(reward=f'{__file__}:{name}'))
  with pytest.raises(ValueError, match=words) as e:
    train.run(c, tmp_path)
  assert 'before anything is compiled' in str(e.value)
  assert not (tmp_path / 'metrics.jsonl').exists()


@pytest.mark.parametrize(
  'flat, limit',
  [
    ({'rl.hints.room': 4}, 8),
    ({'rl.demos': 1, 'rl.algorithm': 'luffy'}, 8),
    ({'stages': ('short',), 'named': {'short': {'kind': 'sft'}}}, 8),
    # The stage with the shortest rows decides.
    (
      {
        'stages': ('short', 'rl'),
        'rl.hints.room': 4,
        'named': {'short': {'kind': 'sft', 'data': {'completion_len': 6}}},
      },
      6,
    ),
    ({}, None),
  ],
)
def test_a_solution_that_a_stage_reads_fits_before_anything_is_compiled(
  tmp_path, flat, limit
):
  rows = [{'question': f'{i} + 0', 'answer': f'{i}'} for i in range(99)]
  n = 9 if limit is None else limit
  rows.append({'question': 'one', 'answer': '1' * n})  # and the stop token
  path = tmp_path / 'a.jsonl'
  path.write_text('\n'.join(map(json.dumps, rows)))
  c = recipe(**{'rl.steps': 1, 'rl.path': 'host', 'rl.parts': 1})
  c.data.update(name='files', dir=str(path), tokenizer='byte')
  c.data.knobs, c.data.harder = {}, {}
  named = flat.pop('named', {})
  c.update_from_flattened_dict(flat)
  c.named = named
  if limit is None:
    assert prepare.prepare(c, tmp_path / 'w')
    return
  words = f'{path}, row 100: the solution has {n + 1} tokens .*_len is {limit}'
  with pytest.raises(ValueError, match=words):
    prepare.prepare(c, tmp_path / 'w')


def test_keys_are_not_shared_between_uses():
  from jaxrl_reason.rollouts import fused

  root = jax.random.key(0)
  keys = [trees.named_key(root, 'init'), trees.named_key(root, 'evaluation')]
  for step in range(3):
    uses = 'sampling', 'minibatches', 'views', 'greedy views'
    keys += [fused.key_of(root, step, use) for use in uses]
  bits = {tuple(np.asarray(jax.random.key_data(k))) for k in keys}
  assert len(bits) == len(keys) == 14
