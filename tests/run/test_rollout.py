"""The host path: the fused step's update on the fused step's samples."""

import concurrent.futures

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import tasks
from jaxrl_reason.base import Reward
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards.verdict import Verdict
from jaxrl_reason.run import fused_step, rollout
from jaxrl_reason.update import step as step_lib

SOURCE = pipeline.TaskSource('arithmetic', 0, 'train', L.KNOBS)
EXAMPLES = [SOURCE[i] for i in range(L.B)]


class Pool:
  """Verifies in this thread, and remembers what it was asked."""

  def __init__(self, judge):
    self.judge, self.sizes = judge, []

  def submit(self, cases):
    self.sizes.append(len(cases))
    future = concurrent.futures.Future()
    future.set_result([self.judge(text, ex) for text, ex in cases])
    return future


def verdict(text, example):
  answer, form = tasks.check(text, example), tasks.check_format(text, example)
  return Verdict(answer + 0.5 * form, parts={'answer': answer, 'format': form})


def host_step(learner, judge=verdict, parts=2):
  pool = Pool(judge)
  args = (parts, L.ROOT, Sampling.make(), L.STOP)
  step = rollout.HostStep(learner, L.GEN, pool, L.TOKENIZER, *args)
  return step, pool


@pytest.mark.parametrize('parts', [1, 4])
def test_host_and_fused_give_the_same_update(parts):
  learner = L.learner({'kl_coef': 0.05})
  fused = jax.jit(
    lambda s, p: fused_step.step(
      learner, L.GEN, L.REWARD, s, p, L.ROOT, Sampling.make(), L.STOP
    )
  )
  want, expected = fused(L.state(learner), L.prompts())
  step, pool = host_step(learner, parts=parts)
  state = jax.tree.map(jnp.copy, L.state(learner))  # it is donated
  got, metrics, timing, reward = step(state, L.prompts(), EXAMPLES)
  assert pool.sizes == [L.B * L.G // parts] * parts
  L.assert_close(got, want)
  L.assert_close(metrics, expected, rtol=1e-3, atol=1e-5)
  assert reward.parts.shape == (L.B * L.G, 2)
  assert {'rollout_s', 'verify_wait_s'} <= timing.keys()
  # The next step samples anew and can tell how long this update took.
  _, _, timing, _ = step(got, L.prompts(), EXAMPLES)
  assert 'update_s' in timing


def test_the_samplers_log_probs_serve_as_old_ones():
  """Two passes over a batch: the same update, without the pass before."""
  results = {}
  for old_logp in ('trainer', 'sampler'):
    learner = L.learner(epochs=2, minibatches=2, old_logp=old_logp)
    batch = L.rollout_batch(learner)
    update = lambda s, b, learner=learner: step_lib.update(
      learner, s, b, Sampling.make(), L.ROOT
    )
    state = L.state(learner)
    compiled = jax.jit(update).lower(state, batch).compile()
    flops = compiled.cost_analysis()['flops']
    results[old_logp] = compiled(state, batch)[0], flops
  (one, more), (two, less) = results['trainer'], results['sampler']
  L.assert_close(one, two)
  assert less < 0.95 * more


def judged(out, examples):
  """Verdicts of a rollout's rows."""
  rows = zip(np.asarray(out.tokens), np.asarray(out.length))
  texts = [L.TOKENIZER.decode(row[:n].tolist()) for row, n in rows]
  return [verdict(text, examples[i // L.G]) for i, text in enumerate(texts)]


def test_a_step_ahead_is_the_same_step_of_earlier_parameters():
  """Samples are those of the version before, weighed against that version."""
  learner = L.learner(old_logp='sampler')
  prompts = [L.prompts(i * L.B) for i in range(3)]
  examples = [
    [SOURCE[j] for j in range(i * L.B, (i + 1) * L.B)] for i in range(3)
  ]
  step, _ = host_step(learner)
  state = jax.tree.map(jnp.copy, L.state(learner))
  stale = []
  for i in range(3):
    ahead = prompts[i + 1] if i < 2 else None
    state, _, timing, _ = step(state, prompts[i], examples[i], ahead)
    stale.append(timing['stale_steps'])
  assert stale == [0, 1, 1]

  sample = jax.jit(
    lambda params, prompts, key: fused_step.rollout(
      learner, L.GEN, params, prompts, key, Sampling.make(), L.STOP
    )
  )
  learn = jax.jit(
    lambda s, b, key: step_lib.update(learner, s, b, Sampling.make(), key)[0]
  )
  versions = [L.state(learner)]
  for i in range(3):
    noise, order = fused_step.step_keys(L.ROOT, i)
    out = sample(versions[max(i - 1, 0)].params, prompts[i], noise)
    reward = rollout.to_reward(judged(out, examples[i]), L.GEN.part_names)
    batch = batch_lib.make_batch(prompts[i], out, reward)
    batch = batch.replace(old_logp=batch.sampler_logp)
    versions.append(learn(versions[-1], batch, order))
  L.assert_close(state, versions[-1])


def test_a_failed_verifier_is_not_a_zero():
  def judge(text, example):
    bad = example is EXAMPLES[0]
    return Verdict(0.0, 'timeout') if bad else verdict(text, example)

  step, _ = host_step(L.learner(), judge)
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  _, metrics, _, reward = step(state, L.prompts(), EXAMPLES)
  assert not reward.valid[: L.G].any() and reward.valid[L.G :].all()
  np.testing.assert_allclose(metrics['reward_invalid'], 1 / L.B, rtol=1e-6)


def test_a_reward_that_always_raises_stops_the_run_with_its_reason():
  judge = lambda text, example: Verdict(
    0.0, 'error', detail='mine: KeyError: 7'
  )
  step, _ = host_step(L.learner(), judge)
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  with pytest.raises(rollout.RewardFailed, match='mine: KeyError: 7'):
    step(state, L.prompts(), EXAMPLES)


def failing_on(*bad):
  def judge(text, example):
    if example['prompt'] in bad:
      return Verdict(0.0, 'error', detail='mine: KeyError: 7')
    return verdict(text, example)

  return judge


def test_one_bad_problem_does_not_stop_a_run():
  """Nor does one that is a part of its own, or all that a host has."""
  prompts, state = L.prompts(), jax.tree.map(jnp.copy, L.state(L.learner()))
  step, _ = host_step(L.learner(), failing_on(EXAMPLES[0]['prompt']), parts=L.B)
  state, _, _, reward = step(state, prompts, EXAMPLES)
  assert not reward.valid[: L.G].any() and reward.valid[L.G :].all()
  step, _ = host_step(L.learner(), failing_on(*(e['prompt'] for e in EXAMPLES)))
  own = []

  def another_host_has_one(tree):
    reward, failed = tree
    own.append(failed.copy())
    return reward, np.where(np.arange(len(failed)) == 0, False, failed)

  step.all_rows = another_host_has_one
  for _ in range(3):
    state, _, _, _ = step(state, prompts, EXAMPLES)
  assert all(failed.all() for failed in own)


def test_a_step_of_one_bad_problem_learns_nothing_and_two_are_the_reward():
  one = jax.tree.map(lambda x: x[:1], L.prompts())
  step, _ = host_step(L.learner(), failing_on(EXAMPLES[0]['prompt']), parts=1)
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  state, metrics, _, _ = step(state, one, EXAMPLES[:1])
  assert np.isfinite(metrics['loss'])
  L.assert_close(state.params, L.state(L.learner()).params)
  with pytest.raises(rollout.RewardFailed, match='mine: KeyError: 7'):
    step(state, one, EXAMPLES[:1])


def test_the_toy_problem_is_learnt():
  """Reward for a first token of 5: from one in 24 to nearly always."""
  learner = L.learner({'name': 'dapo'}, lr=1.0)
  gen = fused_step.Generation(L.G, 2, 'none', ('first',))

  def reward_fn(out, answers):
    hit = (out.tokens[:, 0] == 5).astype(jnp.float32)
    return Reward(hit, hit[:, None], hit >= 0)

  prompts = jax.tree.map(lambda x: np.stack([x] * 100), L.prompts())
  run = jax.jit(
    lambda s, p: fused_step.steps(
      learner, gen, reward_fn, s, p, L.ROOT, Sampling.make(), L.STOP
    )
  )
  _, metrics = run(L.state(learner), prompts)
  reward = np.asarray(metrics['reward_mean'])
  assert reward[:5].mean() < 0.4 and reward[-5:].mean() > 0.9, reward
