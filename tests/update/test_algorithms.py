"""Every preset in the trainer: its arrays are computed, and micro-batches
change nothing.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Reward, Trajectories
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, logprobs
from jaxrl_reason.models.adapters import frozen, lora
from jaxrl_reason.run import stage_list
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.rl import learners, programs
from jaxrl_reason.update import critics, optim, scoring, trained_rows
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import step as step_lib

NEUTRAL = Sampling.make()
# Recipes whose loss reads more than rewards and log-probs.
SETTINGS = {
  'clip_cov': {'cov_share': 0.1, 'cov_low': -5.0, 'cov_high': 5.0},
  'kl_cov': {'cov_share': 0.1},
  'top_entropy': {},
  'm2po': {},
  'tvpo': {'max_prompt_tv': 1e-4},
  'otb': {'correction': 'truncate'},
  'flash_rl': {'correction_normalise': True},
  'pf_ppo': {'resample': 'max_random'},
  'entropy_advantage': {},
  'vapo': {'entropy_coef': 0.01, 'entropy_bonus_share': 0.3},
  'prime': {},
  'tbrm': {'tbrm_beta': 1.0},
  'rover': {},
  'grpo': {
    'kl_coef': 0.1,
    'kl_target': 0.1,
    'entropy_target': 2.0,
    'entropy_step': 0.1,
  },
}


def learner(name, **changes):
  made = L.learner({'name': name} | SETTINGS.get(name, {}), **changes)
  output = critics.kind_of(made.needs)
  if output is None:
    return made
  tx = optim.make(config_lib.Optimizer(lr=0.3, name='sgd', warmup_steps=0), 10)
  critic = critics.Critic(output, made.model, made.objective, tx, L.P)
  return dataclasses.replace(made, critic=critic)


@pytest.fixture(scope='module')
def batch():
  return L.rollout_batch(L.learner())


def update(learn):
  return jax.jit(lambda s, b: step_lib.update(learn, s, b, NEUTRAL, L.ROOT))


@pytest.mark.parametrize('name', sorted(SETTINGS))
def test_micro_batches_change_no_recipe(batch, name):
  """Makes two updates. Before the second one, the policy differs from its
  critic or reference.
  """
  one, four = learner(name), learner(name, micro_batches=4)
  a, b = L.state(one), L.state(four)
  at_once, in_parts = update(one), update(four)
  for _ in range(2):
    a, whole = at_once(a, batch)
    b, pieces = in_parts(b, batch)
  L.assert_close(a, b, rtol=1e-3, atol=1e-5)
  L.assert_close(whole, pieces, rtol=1e-3, atol=1e-5)
  assert np.isfinite(whole['loss']) and whole['grad_norm'] > 0
  if one.critic:
    moved = jax.tree.map(
      lambda x, y: float(jnp.abs(x - y).max()),
      a.critic.params,
      L.state(one).critic.params,
    )
    assert max(jax.tree.leaves(moved)) > 0


TEACHER = {'rl.teacher.weights': 'reference', 'rl.logprob_chunk': 64}
TURNS = {'rl.turns.env': 'calculator'}
# Settings that a run needs besides the name of an algorithm.
BESIDE = {
  'luffy': {'rl.demos': 1},
  'rl_plus': {'rl.demos': 1},
  'dppo_top_k': {'rl.epochs': 2, 'rl.logprob_chunk': 64},
  'mt_grpo': TURNS,
  'echo': TURNS,
} | dict.fromkeys('opd iw_opd ref_kl gkd sdpo kdrl'.split(), TEACHER)


@pytest.mark.parametrize('name', losses.PRESETS)
def test_every_preset_is_accepted_or_names_the_missing_array(name):
  run = config_lib.Run().changed({'rl.algorithm': name})
  if name in BESIDE:
    with pytest.raises(ValueError, match=name):
      config_checks.check(run, 1)
  config_checks.check(run.changed(BESIDE.get(name, {})), 1)


def test_rows_are_drawn_by_their_rewards_with_their_advantages(batch):
  right = np.arange(len(batch.reward)) % 4 == 1
  reward = jnp.where(right, 1.0, 0.0)
  reward = reward.at[5].set(9.0)  # its verifier failed
  batch = batch.replace(reward=reward, reward_valid=jnp.arange(len(right)) != 5)
  rows = batch, jnp.arange(len(right)), None
  learn = L.learner({'resample': 'power'})
  drawn, adv, _ = trained_rows.resampled(learn, rows, L.ROOT)
  assert set(np.asarray(adv)) <= set(np.flatnonzero(right)) - {5}
  np.testing.assert_array_equal(drawn.tokens, batch.tokens[adv])
  assert len(adv) == len(right) and (drawn.reward == 1).all()


def test_a_tree_of_separate_samples_has_the_root_for_every_parent(batch):
  """The advantage of every sampled token is twice the reward minus the mean of
  its group.
  """
  reward = np.arange(len(batch.reward)) ** 2.0
  batch = batch.replace(reward=jnp.asarray(reward, jnp.float32))
  got = np.asarray(step_lib.advantages(L.learner({'name': 'tree_rl'}), batch))
  mean = np.repeat(reward.reshape(-1, L.G).mean(1), L.G)
  want = np.where(batch.mask, 2 * (reward - mean)[:, None], 0)
  np.testing.assert_allclose(got * np.asarray(batch.mask), want, rtol=1e-5)


def test_a_critic_learns_the_mean_reward(batch):
  """With a constant reward of 2, values approach 2, and advantages 0."""
  learn = learner('vc_ppo')
  batch = batch.replace(reward=jnp.full_like(batch.reward, 2.0))
  state, losses_seen, step = L.state(learn), [], update(learn)
  for _ in range(30):
    state, metrics = step(state, batch)
    losses_seen.append(float(metrics['value_loss']))
  assert losses_seen[0] == pytest.approx(2.0, rel=1e-4)  # (0 - 2)^2 / 2
  assert losses_seen[-1] < 0.2 * losses_seen[0]
  values = critics.evaluate(
    learn.critic, state.critic.params, state.params, batch
  )
  np.testing.assert_allclose(values[batch.mask].mean(), 2.0, atol=0.5)


def test_values_depend_only_on_earlier_tokens(batch):
  """V before token t must not depend on token t."""
  learn = learner('ppo')
  params = {
    'body': L.model_and_params()[1],
    'value_head': jnp.linspace(-1, 1, 16),
  }
  column = L.P + 3
  other = batch.tokens.at[:, column].add(1)

  def f(b):
    return critics.evaluate(learn.critic, params, params['body'], b)

  before, after = f(batch), f(batch.replace(tokens=other))
  np.testing.assert_array_equal(before[:, : column + 1], after[:, : column + 1])
  assert np.abs(before - after)[:, column + 1].max() > 1e-4
  # TPUs would multiply in bfloat16, unlike `critics.state_values`.
  assert 'HIGHEST' in str(jax.make_jaxpr(f)(batch))


@pytest.mark.parametrize('name', ['ppo', 'prime'])
def test_a_critic_of_adapters_shares_the_frozen_base(batch, name):
  """It has only adapters and a head, and equals a full copy."""
  base, params = L.model_and_params()
  model = adapters.attach(
    base,
    lora=lora.Lora(2, 4.0, targets='.*attn/(q|v)'),
    frozen_dtype='int8',
    trainable='lora/.*',
  )
  params = jax.jit(lambda k: frozen.init(model.specs, k))(jax.random.key(3))
  made = learner(name)
  critic = dataclasses.replace(made.critic, model=model, trainable='lora/.*')
  shared = dataclasses.replace(
    made, model=model, critic=critic, trainable='lora/.*'
  )
  state = learner_lib.init_state(shared, params)
  n = trees.n_params(params['lora']) + 16 * (name == 'ppo')
  assert trees.n_params(state.critic.params) == n
  new, metrics = update(shared)(state, batch)
  own = new.critic.params
  body = own['body'] if name == 'ppo' else own
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), body['lora'],
                       params['lora'])  # fmt: skip
  # A zero head has no gradient for lower layers; a reward model has one.
  assert (max(jax.tree.leaves(moved)) > 0) == (name == 'prime')
  assert np.isfinite(metrics['loss'])
  whole = dataclasses.replace(critic, trainable='.*')
  full = trees.join(body, params)
  full = own | {'body': full} if name == 'ppo' else full
  rows = batch.replace(ref_logp=batch.sampler_logp)
  got = critics.evaluate(critic, own, new.params, rows)
  want = critics.evaluate(whole, full, new.params, rows)
  np.testing.assert_array_equal(got, want)
  assert np.any(got)


def test_a_process_reward_model_is_trained_on_correctness(batch):
  """Terms that are added to the reward change no label."""
  critic, params = learner('prime').critic, L.model_and_params()[1]
  ones = jnp.ones(len(batch.reward))
  batch = batch.replace(ref_logp=batch.sampler_logp - 1)

  def loss(total, right):
    rows = batch.replace(
      reward=total * ones, reward_parts=jnp.stack([right * ones, ones], axis=1)
    )
    given = rows, None, {'rows': len(ones)}
    return critics.loss_fn(params, critic, params, *given)[0]

  # beta = 0.05 times log pi / ref, which is about 1 nat per token.
  logit = 0.05 * np.asarray(batch.mask.sum(axis=1))
  want = np.mean(np.log1p(np.exp([logit, -logit])), axis=1)
  got = [loss(0.3, 0.0), loss(-0.3, 1.0)]
  np.testing.assert_allclose(got, want, rtol=1e-3)


def test_a_process_reward_is_relative_to_the_reference_as_it_samples(batch):
  """At the start the two models are equal, so every reward is 0."""
  learn = learner('prime')
  state, how = L.state(learn), Sampling.make(top_k=6, min_p=0.05)
  batch = batch.replace(temperature=jnp.full_like(batch.temperature, 0.6))

  @jax.jit
  def read(state, b):
    b = scoring.add_arrays(learn, state, b, how)
    _, metrics = step_lib._critic_gradients(learn, state, b, None, how)
    return b.process_reward, metrics['prm_loss']

  reward, loss = read(state, batch)
  np.testing.assert_allclose(reward, 0, atol=1e-6)
  np.testing.assert_allclose(loss, np.log(2), rtol=1e-5)


def test_a_critic_starts_where_its_policy_starts():
  hints = {'rl.hints.room': 4, 'rl.hints.learn': True}
  for name in ('ppo', 'prime'):
    some = {'rl.algorithm': name, 'rl.loss.offpolicy': 'sft'}
    for changes in (hints, {'rl.hints.room': 4}):
      run = config_lib.Run().changed(some | changes)
      made = learners.learner(run, L.MODEL, 'rl')
      assert made.critic.start == made.start
      learns = run.rl.hints.learn
      assert made.start == run.data.prompt_len + (0 if learns else 4)


def test_the_policy_does_not_change_while_its_critic_warms_up(batch):
  adaptive = {'entropy_coef': 0.01, 'entropy_target': 9.0}
  critic = dataclasses.replace(learner('ppo').critic, warmup_updates=1)
  learn = L.learner({'name': 'ppo'} | adaptive, critic=critic)
  start, step = L.state(learn), update(learn)
  first, _ = step(start, batch)
  held = 'params', 'opt_state', 'coefs'
  jax.tree.map(
    np.testing.assert_array_equal,
    *([getattr(s, name) for name in held] for s in (first, start)),
  )
  second, _ = step(first, batch)

  def up(s):
    return s.params['layers']['mlp']['up']

  assert np.abs(up(second) - up(first)).max() > 0
  assert second.coefs['entropy_coef'] != first.coefs['entropy_coef']


def test_a_schedule_ends_with_the_updates_of_the_policy():
  """The policy rests while its critic warms up."""
  keep = {'kind': 'rl', 'keep': ('critic',)}
  changes = {
    'rl.algorithm': 'ppo',
    'rl.steps': 10,
    'rl.critic.warmup_updates': 4,
    'stages': ('rl', 'more'),
    'named': {'more': keep},
  }
  run = config_lib.Run().changed(changes)
  found = [p.config.rl.policy_updates for p in stage_list.each(run)]
  assert found == [6, 10]
  longer = run.changed({'rl.critic.warmup_updates': 10})
  found = [p.config.rl.policy_updates for p in stage_list.each(longer)]
  assert found == [10, 10]
  own = {'rl.optimizer.schedule': 'linear', 'rl.optimizer.warmup_steps': 0}
  own['rl.optimizer.name'] = 'sgd'
  learn = learners.learner(run.changed(own), L.MODEL, 'rl')
  one = {'w': jnp.ones(1)}
  state, sizes = learn.tx.init(one), []
  for _ in range(7):
    step, state = learn.tx.update(one, state, one)
    sizes.append(float(jnp.abs(step['w'][0])))
  assert sizes[5] > 0 and sizes[6] == 0


def likeliest(prompts):
  """Returns greedy completions, each token from a forward pass of whole rows:
  later columns, which are not yet filled, have no effect on earlier ones.
  """
  model, params = L.model_and_params()
  tokens = jnp.pad(prompts.tokens, ((0, 0), (0, L.C)))
  valid = jnp.pad(prompts.valid, ((0, 0), (0, L.C)), constant_values=True)

  @jax.jit
  def after(tokens, column):
    hidden = model.hidden(params, tokens, valid)[:, column]
    return jnp.argmax(model.unembed(params, hidden), -1)

  for column in range(L.P, L.P + L.C):
    tokens = tokens.at[:, column].set(after(tokens, column - 1))
  return tokens[:, L.P :]


def by_tokens(rollout, *_) -> Reward:
  """Returns a reward that differs between completions, right or wrong."""
  total = jnp.sum(rollout.tokens * rollout.sampled, axis=1) % 7 / 7
  return Reward(total, jnp.stack([total, total], axis=1), total >= 0)


def test_remax_compares_with_the_greedy_completion():
  learn = learner('remax')
  state, prompts = L.state(learn), L.prompts()
  given = dict(greedy=True, reward_fn=by_tokens)
  source = dataclasses.replace(L.SOURCE, **given)
  got, _ = jax.jit(lambda s, p: L.fused(learn, s, p, source))(state, prompts)

  out = L.sample(state.params, prompts)
  b = L.batch_of(prompts, out, by_tokens(out).total)
  best = likeliest(prompts)
  stopped = jnp.isin(best, L.STOP)
  length = jnp.where(stopped.any(1), jnp.argmax(stopped, 1) + 1, L.C)
  one = jax.tree.map(lambda x: x[:: L.G], out).replace(
    tokens=best, length=length, sampled=jnp.arange(L.C) < length[:, None]
  )
  b = b.replace(greedy_reward=jnp.repeat(by_tokens(one).total, L.G))
  want, _ = jax.jit(programs.learn, static_argnums=0)(
    learn, state, b, L.ROOT, NEUTRAL
  )
  L.assert_close(got.params, want.params)


KL = {'kl_in': 'reward', 'kl_coef': 0.5}
TAUGHT = {'distill': 'advantage', 'distill_coef': 1.0}


@pytest.mark.parametrize(
  'name, settings',
  [('rloo', KL), ('ppo', KL), ('grpo', TAUGHT)],
)
@pytest.mark.parametrize('how', [{'offpolicy': 'luffy'}, {'reprompted': True}])
def test_advantages_read_the_policys_log_probs(batch, name, settings, how):
  """The sampler has none of demonstrations, and others under a hint."""
  lost = np.arange(len(batch.reward)) % L.G == L.G - 1
  batch = batch.replace(is_offpolicy=batch.mask & lost[:, None])
  wrong = jnp.where(lost[:, None], 0.0, batch.sampler_logp)
  same = learner_lib.Teacher(L.MODEL, learner_lib.REFERENCE)
  given = {'teacher': same if settings is TAUGHT else None}
  if 'offpolicy' in how:
    made = L.learner({'name': name} | settings | how, **given)
  else:
    made = L.learner({'name': name} | settings, **given, **how)
  if name == 'ppo':
    head = critics.Critic('values', L.MODEL, made.objective, made.tx, L.P)
    made = dataclasses.replace(made, critic=head)
  state = L.state(made)
  moved = jax.tree.map(lambda x: 0.9 * x, state.params)

  @jax.jit
  def read(sampler_logp):
    b = batch.replace(sampler_logp=sampler_logp)
    b = scoring.add_arrays(made, state.replace(params=moved), b, NEUTRAL)
    adv = step_lib.advantages(made, b)
    return adv, made.critic and critics.targets(made.critic, b)

  logp = scoring.scores(made, moved, batch, NEUTRAL, 1)[0]
  L.assert_close(read(wrong), read(logp))
  adv, targets = read(logp)
  assert np.ptp(adv[lost]) > 0.1
  assert targets is None or np.ptp(targets[lost]) > 0.1


def demo_prompts():
  source = pipeline.TaskSource('arithmetic', 0, 'train', L.KNOBS)
  rows = [
    pipeline.prompt_row(i, source[i], L.TOKENIZER, L.P, L.ENCODE, 24)
    for i in range(L.B)
  ]
  stacked = jax.tree.map(lambda *x: np.stack(x), *rows)
  return L.Prompts(**stacked), [source[i] for i in range(L.B)]


def test_demonstrations_are_right_and_off_policy():
  learn = L.learner({'name': 'luffy', 'fixed_length': 24})
  gen = dataclasses.replace(L.GEN, max_new=24, demos=1)
  prompts, examples = demo_prompts()
  params = L.state(learn).params
  out = L.sample(params, prompts, gen)
  last = np.arange(L.B * L.G) % L.G == L.G - 1
  np.testing.assert_array_equal(out.is_demo, last)
  for i, example in enumerate(examples):
    row = i * L.G + L.G - 1
    ids = np.asarray(out.tokens[row, : out.length[row]]).tolist()
    assert L.TOKENIZER.decode(ids) == example['solution']
  answers = jax.tree.map(lambda x: np.repeat(x, L.G, 0), prompts.answer)
  found = Trajectories(prompts, out, L.reward(24)(out, answers))
  b = batch_lib.make_batch(found)
  np.testing.assert_array_equal(b.is_offpolicy, b.mask & last[:, None])
  assert b.reward_parts[last, 0].all()
  # Learning from them makes them likelier; from a dead group it would not.
  state, metrics = update(learn)(L.state(learn), b)
  rows = jax.tree.map(lambda x: x[last], b)

  def logp(p):
    return logprobs.score(L.MODEL, p, rows, NEUTRAL, start=L.P)[0][
      rows.mask
    ].sum()

  assert logp(state.params) > logp(params)
  assert np.isfinite(metrics['loss'])
