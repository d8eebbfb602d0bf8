"""The host path makes the fused step's update on the fused step's samples."""

import concurrent.futures
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Reward, TrainState, Trajectories
from jaxrl_reason.data import pipeline
from jaxrl_reason.logits import Sampling
from jaxrl_reason.parts import Chain, Part
from jaxrl_reason.rollouts import host, verdict_arrays
from jaxrl_reason.rollouts.fused import FusedSource, Generation, key_of
from jaxrl_reason.run.rl import host_step as host_step_lib
from jaxrl_reason.run.rl import programs
from jaxrl_reason.run.rl.host_step import HostStep
from jaxrl_reason.update import step as step_lib
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.verdict import Verdict

SOURCE = pipeline.TaskSource('arithmetic', 0, 'train', L.KNOBS)
EXAMPLES = [SOURCE[i] for i in range(L.B)]


class Pool:
  """Verifies in this thread, and records its cases."""

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


def constant_problems():
  """Returns the same problems at every step."""
  return itertools.repeat(problems_of(L.prompts(), EXAMPLES))


def problems_of(prompts, examples):
  """Returns the problems of a step by the ids of their prompts."""
  known = dict(zip(np.asarray(prompts.prompt_id).tolist(), examples))
  return host.Asked(prompts, known.__getitem__)


def host_step(
  learner, judge=verdict, parts=2, gen=L.GEN, questions=None, ahead=False
):
  """Returns (HostStep, its pool). `questions` are the problems of its steps, by
  default `constant_problems`.
  """
  pool, generate = Pool(judge), jax.jit(programs.rl_rollout, static_argnums=0)
  source = host.HostSource(
    generate=functools.partial(generate, gen),
    greedy=None,
    n_samples=L.G,
    part_names=L.PARTS,
    pool=pool,
    tokenizer=L.TOKENIZER,
    pieces=parts,
    root=L.ROOT,
    sampling=Sampling.make(),
    stop=L.STOP,
  )
  queue = iter(questions or constant_problems())

  def following(control, step):
    return next(queue)

  return HostStep(source, learner, following, ahead=ahead), pool


@pytest.mark.parametrize('parts', [1, 4])
def test_host_and_fused_give_the_same_update(parts):
  learner = L.learner({'kl_coef': 0.05})
  fused = jax.jit(lambda s, p: L.fused(learner, s, p))
  want, expected = fused(L.state(learner), L.prompts())
  step, pool = host_step(learner, parts=parts)
  state = jax.tree.map(jnp.copy, L.state(learner))  # it is donated
  got, metrics, timing, (answered,) = step(state)
  assert pool.sizes == [L.B * L.G // parts] * parts
  L.assert_close(got, want)
  # The rewards of this pool extract no answer.
  assert metrics.pop('answer_entropy') == 0 < expected.pop('answer_entropy')
  L.assert_close(metrics, expected, rtol=1e-3, atol=1e-5)
  assert answered.reward.parts.shape == (L.B * L.G, 2)
  np.testing.assert_array_equal(answered.ids, L.prompts().prompt_id)
  assert {'rollout_s', 'verify_wait_s'} <= timing.keys()
  # The next step samples again, and its timing contains this update.
  _, _, timing, _ = step(got)
  assert 'update_s' in timing


def test_every_verdict_of_a_round_is_waited_for_by_name():
  source, seen = host_step(L.learner())[0].source, []
  source.pool.progress = lambda: 'waiting'

  def future(n):
    answers = [Verdict(1.0, parts=dict.fromkeys(L.PARTS, 1.0))] * n

    def result():
      seen.append(source.wait.text())
      return answers

    return types.SimpleNamespace(result=result)

  length = np.ones(L.B * L.G)
  out = types.SimpleNamespace(episode=None, length=length, is_demo=None)
  asked = problems_of(L.prompts(), EXAMPLES)
  futures = [future(L.B * L.G)], future(L.B), future(L.B)
  source._under_way.append(
    host._UnderWay(asked, [out], out, (), None, 1, None, None, None, *futures)
  )
  source.take()
  assert seen == ['waiting'] * 3 and source.wait.text() == ''


def test_rows_with_a_demonstration_or_a_hint_are_marked():
  """Pieces have every second problem, and all rows are in the order of the
  problems.
  """
  step, _ = host_step(L.learner())
  outs = [
    types.SimpleNamespace(
      episode=None, is_demo=np.arange(L.B // 2 * L.G) % L.G == L.G - 1
    )
  ] * 2
  prompts = L.prompts().replace(is_hinted=np.arange(L.B) == 2)
  answers = [Verdict(1.0)] * (L.B // 2 * L.G)
  futures = [types.SimpleNamespace(result=lambda: answers)] * 2
  given = problems_of(prompts, EXAMPLES), outs, None, (), None, 2
  step.source._under_way.append(host._UnderWay(*given, futures=futures))
  helped = step.source.take().helped.reshape(L.B, L.G)
  want = np.tile(np.arange(L.G) == L.G - 1, (L.B, 1))
  want[2] = True
  np.testing.assert_array_equal(helped, want)


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
def test_a_piece_is_verified_while_the_next_is_sampled(monkeypatch, platform):
  """On a GPU, the call that queues sampling returns when it is almost done."""
  here = types.SimpleNamespace(platform=lambda: platform)
  monkeypatch.setattr(host_step_lib, 'sharding', here)
  learner, order = L.learner(), []
  step, pool = host_step(learner)

  def recorded(name, f):
    return lambda *args: order.append(name) or f(*args)

  greedy = jax.jit(programs.rl_greedy, static_argnums=0)
  step.source.greedy = recorded('greedy', functools.partial(greedy, L.GEN))
  step.source.generate = recorded('sample', step.source.generate)
  pool.submit = recorded('verify', pool.submit)
  got, _, timing, _ = step(jax.tree.map(jnp.copy, L.state(learner)))
  assert (
    order
    == {
      'gpu': ['sample', 'verify', 'sample', 'verify', 'greedy', 'verify'],
      'tpu': ['sample', 'sample', 'greedy', 'verify', 'verify', 'verify'],
    }[platform]
  )
  fused = jax.jit(lambda s, p: L.fused(learner, s, p))
  L.assert_close(got, fused(L.state(learner), L.prompts())[0])
  assert 'update_s' not in timing
  _, _, timing, _ = step(got)
  assert timing['update_s'] > 0 and timing['rollout_s'] > 0


def test_the_samplers_log_probs_serve_as_old_ones():
  """Two passes over a batch make the same update without the scoring pass."""
  results = {}
  for old_logp in ('trainer', 'sampler'):
    learner = L.learner(epochs=2, minibatches=2, old_logp=old_logp)
    batch = L.rollout_batch(learner)

    def update(s, b, learner=learner):
      return step_lib.update(learner, s, b, Sampling.make(), L.ROOT)

    state = L.state(learner)
    compiled = jax.jit(update).lower(state, batch).compile()
    flops = compiled.cost_analysis()['flops']
    results[old_logp] = compiled(state, batch)[0], flops
  (one, more), (two, less) = results['trainer'], results['sampler']
  L.assert_close(one, two)
  assert less < 0.95 * more


def judged(out, examples):
  """Returns verdicts of a rollout's rows."""
  assert np.array_equal(out.sampled.sum(1), out.length)
  rows = zip(np.asarray(out.tokens), np.asarray(out.length))
  texts = [L.TOKENIZER.decode(row[:n].tolist()) for row, n in rows]
  return [verdict(text, examples[i // L.G]) for i, text in enumerate(texts)]


class Growing(Part):
  """Samples with the temperature in its memory."""

  name = 'growing'

  def sampling(self, memory, sampling):
    return sampling.replace(temperature=memory)


def test_a_batch_is_trained_on_with_the_settings_of_its_samples():
  """Also if it was started before the update that changed them."""
  learner = L.learner(chain=Chain((Growing(),)))
  right = Verdict(1.0, parts=dict.fromkeys(L.PARTS, 1.0))
  step, _ = host_step(learner, lambda *_: right, parts=1, ahead=True)
  source, drawn, used = step.source, [], []

  def generate(params, prompts, root, step, sampling, *rest):
    drawn.append(sampling.temperature)
    rows = np.zeros(L.B * L.G, bool)
    return types.SimpleNamespace(episode=None, is_demo=rows)

  def learn(learner, state, *given):
    used.append(given[-1].temperature)
    return state.replace(control={'growing': used[-1] + len(used)}), {}

  source.generate = generate
  source._cases = lambda *_: [('', {})] * (L.B * L.G)
  step._score = lambda *given: used.append(given[-1].temperature)
  step._learn = learn
  state = TrainState(jnp.int32(0), None, None, control={'growing': 2.0})
  for more in (True, True, False):
    state, *_ = step(state, more)
  assert used == [x for x in drawn for _ in range(2)]
  assert drawn == [2.0, 2.0, 4.0]


def test_a_step_ahead_is_the_same_step_of_earlier_parameters():
  """Samples and ratios are those of the previous parameters."""
  learner = L.learner(old_logp='sampler')
  prompts = [L.prompts(i * L.B) for i in range(3)]
  examples = [
    [SOURCE[j] for j in range(i * L.B, (i + 1) * L.B)] for i in range(3)
  ]
  problems = [problems_of(p, e) for p, e in zip(prompts, examples)]
  step, _ = host_step(learner, questions=problems, ahead=True)
  state = jax.tree.map(jnp.copy, L.state(learner))
  stale, lag = [], []
  for i in range(3):
    state, metrics, timing, _ = step(state, more=i < 2)
    stale.append(timing['stale_steps'])
    lag.append(float(metrics['policy_lag']))
  assert stale == lag == [0, 1, 1]

  sample = jax.jit(lambda params, prompts, i: L.sample(params, prompts, step=i))
  learn = jax.jit(
    lambda s, b, key: step_lib.update(learner, s, b, Sampling.make(), key)[0]
  )
  versions = [L.state(learner)]
  for i in range(3):
    order = key_of(L.ROOT, i, 'minibatches')
    out = sample(versions[max(i - 1, 0)].params, prompts[i], i)
    reward = verdict_arrays.to_reward(judged(out, examples[i]), L.PARTS)
    batch = batch_lib.make_batch(Trajectories(prompts[i], out, reward))
    batch = batch.replace(old_logp=batch.sampler_logp)
    versions.append(learn(versions[-1], batch, order))
  L.assert_close(state, versions[-1])


def test_a_failed_verifier_is_not_a_zero():
  def judge(text, example):
    bad = example is EXAMPLES[0]
    return Verdict(0.0, 'timeout') if bad else verdict(text, example)

  step, _ = host_step(L.learner(), judge)
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  _, metrics, _, (answered,) = step(state)
  reward = answered.reward
  assert not reward.valid[: L.G].any() and reward.valid[L.G :].all()
  np.testing.assert_allclose(metrics['reward_invalid'], 1 / L.B, rtol=1e-6)


def test_a_reward_that_always_raises_stops_the_run_with_its_reason():
  def judge(text, example):
    return Verdict(0.0, 'error', detail='mine: KeyError: 7')

  step, _ = host_step(L.learner(), judge)
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  with pytest.raises(host.RewardFailed, match='mine: KeyError: 7'):
    step(state)


def failing_on(*bad):
  def judge(text, example):
    if example['prompt'] in bad:
      return Verdict(0.0, 'error', detail='mine: KeyError: 7')
    return verdict(text, example)

  return judge


def test_one_bad_problem_does_not_stop_a_run():
  """The problem may be a piece of its own, or all problems of a host."""
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  step, _ = host_step(L.learner(), failing_on(EXAMPLES[0]['prompt']), parts=L.B)
  state, _, _, (answered,) = step(state)
  reward = answered.reward
  assert not reward.valid[: L.G].any() and reward.valid[L.G :].all()
  step, _ = host_step(L.learner(), failing_on(*(e['prompt'] for e in EXAMPLES)))
  own = []

  def another_host_has_one(tree):
    reward, failed, helped = tree
    own.append(failed.copy())
    return reward, np.where(np.arange(len(failed)) == 0, False, failed), helped

  step.source.all_rows = another_host_has_one
  for _ in range(3):
    state, _, _, _ = step(state)
  assert all(failed.all() for failed in own)


def test_one_bad_problem_is_skipped_and_two_blame_the_reward():
  prompts = jax.tree.map(lambda x: x[:1], L.prompts())
  one = itertools.repeat(problems_of(prompts, EXAMPLES[:1]))
  judge = failing_on(EXAMPLES[0]['prompt'])
  step, _ = host_step(L.learner(), judge, parts=1, questions=one)
  state = jax.tree.map(jnp.copy, L.state(L.learner()))
  state, metrics, _, _ = step(state)
  assert np.isfinite(metrics['loss'])
  L.assert_close(state.params, L.state(L.learner()).params)
  with pytest.raises(host.RewardFailed, match='mine: KeyError: 7'):
    step(state)


def test_the_toy_problem_is_learnt():
  """The reward for a first token of 5 rises from 1/24 to nearly 1."""
  learner = L.learner({'name': 'dapo'}, lr=1.0, part_names=('first',))

  def reward_fn(out, answers, control):
    hit = (out.tokens[:, 0] == 5).astype(jnp.float32)
    return Reward(hit, hit[:, None], hit >= 0)

  source = FusedSource(Generation(L.MODEL, L.G, 2), reward_fn)
  prompts = jax.tree.map(lambda x: np.stack([x] * 100), L.prompts())
  run = jax.jit(
    lambda s, p: programs.rl_steps(
      learner, source, s, p, L.ROOT, Sampling.make(), L.STOP
    )
  )
  _, metrics = run(L.state(learner), prompts)
  reward = np.asarray(metrics['reward_mean'])
  assert reward[:5].mean() < 0.4 and reward[-5:].mean() > 0.9, reward
