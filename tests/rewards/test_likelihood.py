"""Label-free rewards: values by NumPy in float64, order of rows, padding,
vmap.
"""

import collections
import itertools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason.base import Rollout, Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rewards.kernels import device, final, likelihood, token_bytes
from jaxrl_reason.rollouts import fused
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run.rl import programs
from jaxrl_reason.verifiers.tasks import problem

RNG = np.random.default_rng(0)
N, C, V = 6, 5, 16
LOGITS = RNG.normal(size=(N, C, V)) * 2
LENGTH = np.array([5, 3, 1, 0, 4, 2])
MASK = np.arange(C) < LENGTH[:, None]
LOGP = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))  # [N,C,V]
TAKEN = LOGP[..., 3]
ENTROPY = -(np.exp(LOGP) * LOGP).sum(-1)


def rows(f):
  """Computes f over the tokens of each row, 0 for a row without tokens."""
  return np.array([f(i, n) if n else 0.0 for i, n in enumerate(LENGTH)])


CASES = {
  'self_certainty': (
    lambda x, m: likelihood.self_certainty(likelihood.uniform_kl(x), m),
    LOGITS,
    # KL(U || p) by its definition, token by token.
    rows(lambda i, n: (np.log(1 / V) - LOGP[i, :n]).mean(-1).mean()),
  ),
  'neg_entropy': (
    likelihood.neg_entropy, ENTROPY, rows(lambda i, n: -ENTROPY[i, :n].mean()),
  ),
  'seq_logp': (
    likelihood.seq_logp, TAKEN, rows(lambda i, n: TAKEN[i, :n].sum()),
  ),
  'mean_logp': (
    likelihood.mean_logp, TAKEN, rows(lambda i, n: TAKEN[i, :n].mean()),
  ),
  'seq_prob': (
    likelihood.seq_prob, TAKEN, rows(lambda i, n: np.exp(TAKEN[i, :n]).prod()),
  ),
  'mean_prob': (
    likelihood.mean_prob, TAKEN, rows(lambda i, n: np.exp(TAKEN[i, :n]).mean()),
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', CASES)
def test_rewards_of_tokens(name):
  f, x, want = CASES[name]
  x = jnp.asarray(x, jnp.float32)
  got = jax.jit(f)(x, MASK)
  assert got.dtype == jnp.float32 and got[3] == 0
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
  order = np.array([3, 0, 5, 1, 2, 4])
  np.testing.assert_array_equal(jax.jit(f)(x[order], MASK[order]), got[order])
  # Tokens outside the mask are ignored, and more padding changes nothing.
  hole = MASK.reshape(MASK.shape + (1,) * (x.ndim - 2))
  wide = ((0, 0), (0, 2)) + ((0, 0),) * (x.ndim - 2)
  spoilt = jnp.pad(jnp.where(hole, x, jnp.nan), wide, constant_values=np.nan)
  more = jax.jit(f)(spoilt, np.pad(MASK, ((0, 0), (0, 2))))
  np.testing.assert_allclose(more, got, rtol=1e-6)

  def fold(y):
    return y.reshape(2, 3, *y.shape[1:])

  both = jax.vmap(f)(fold(x), fold(jnp.asarray(MASK)))
  np.testing.assert_allclose(both.reshape(-1), got, rtol=1e-6)


def test_uniform_kl_of_a_padded_vocabulary():
  padded = np.concatenate([LOGITS, RNG.normal(size=(N, C, 3)) + 9], -1)
  want = likelihood.uniform_kl(jnp.asarray(LOGITS))
  got = likelihood.uniform_kl(jnp.asarray(padded), vocab=V)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
  assert np.abs(likelihood.uniform_kl(jnp.full((2, 7), 3.0))).max() < 1e-6


def test_debiased_is_clipped():
  got = likelihood.debiased(
    jnp.array([0.9, 0.2, 2.0]), jnp.array([0.4, 0.5, 0])
  )
  np.testing.assert_allclose(got, [0.5, 0.0, 1.0], rtol=1e-6)


# --- the reference answer -----------------------------------------------------


def test_a_reference_is_spliced_in():
  tokens = np.array([[7, 8, 9, 1], [7, 8, 9, 1], [7, 8, 9, 1], [7, 8, 9, 1]])
  reference = np.array([[5, 1, 4], [5, 6, 1], [5, 1, 4], [5, 1, 4]])
  start = np.array([2, 4, -1, 0])
  f = jax.jit(likelihood.splice_reference)
  spliced, valid, answer = f(tokens, start, reference, np.array([2, 3, 2, 2]))
  assert spliced.tolist() == [
    [7, 8, 5, 1, 0, 0, 0],
    [7, 8, 9, 1, 5, 6, 1],
    [0, 0, 0, 0, 0, 0, 0],
    [5, 1, 0, 0, 0, 0, 0],
  ]
  assert valid.sum(1).tolist() == [4, 7, 0, 2]
  assert answer.astype(int).tolist() == [
    [0, 0, 1, 1, 0, 0, 0],
    [0, 0, 0, 0, 1, 1, 1],
    [0, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0],
  ]


def test_a_reference_is_scored_as_if_it_had_been_written():
  """Compares spliced rows with rows without padding, one by one."""
  model, params = L.model_and_params()
  prompts = jnp.asarray(RNG.integers(2, 20, (3, 4)))
  tokens = RNG.integers(2, 20, (3, 5))
  start, n = np.array([3, 5, 1]), np.array([2, 3, 1])
  reference = RNG.integers(2, 20, (3, 3))
  spliced, valid, answer = likelihood.splice_reference(
    tokens, start, reference, n
  )
  whole = jnp.concatenate([prompts, spliced], 1)

  def beside(x, fill):
    return jnp.pad(x, ((0, 0), (4, 0)), constant_values=fill)

  score = jax.jit(
    lambda t, v: logprobs.score(
      model, params, Rows(t, v), Sampling.make(), start=4
    )[0]
  )
  logp = score(whole, beside(valid, True))
  got = likelihood.seq_logp(logp, beside(answer, False))
  alone_of = jax.jit(
    lambda t: logprobs.score(
      model, params, Rows(t, jnp.ones(t.shape, bool)), Sampling.make()
    )[0]
  )
  for i in range(3):
    row = [*prompts[i], *tokens[i, : start[i]], *reference[i, : n[i]]]
    alone = alone_of(jnp.array([row]))
    np.testing.assert_allclose(got[i], alone[0, -n[i] :].sum(), rtol=1e-4)


class Pieces:
  def token_bytes(self):
    return [b'', b'', b'a', b'#', b'b#', b'#1', b'##', b'22', b'\xc3']


def test_the_answer_begins_after_the_marker():
  table, _ = token_bytes.token_bytes_table(Pieces())
  tokens = np.array(
    [[2, 3, 7, 1], [4, 7, 1, 3], [2, 5, 1, 0], [6, 7, 0, 0],
     [3, 7, 3, 1], [2, 7, 1, 0], [2, 7, 3, 8], [99, -1, 3, 1]]
  )  # fmt: skip
  n = np.array([4, 3, 3, 4, 4, 4, 3, 4])
  f = jax.jit(lambda t, n: token_bytes.after_marker(t, n, table, ord('#')))
  # '#1' cannot be cut, '##' and a second '#' are two markers.
  assert f(tokens, n).tolist() == [2, 1, -1, -1, -1, -1, 3, 3]


# --- confidence ---------------------------------------------------------------


def test_brier():
  correct = jnp.array([1, 1, 0, 0, 1, 0, 1])
  stated = jnp.array([0.9, 0.0, 0.9, 0.25, jnp.nan, 1.5, -0.1])
  want = np.array([-0.01, -1, -0.81, -0.0625, -1, -1, -1])
  got = jax.jit(likelihood.brier)(correct, stated)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  got = jax.jit(likelihood.calibrated)(correct, stated)
  np.testing.assert_allclose(got, want + np.asarray(correct), rtol=1e-5)


def test_honest_confidence_is_best():
  q = jnp.linspace(0, 1, 101)
  for p in (0.0, 0.3, 0.85):
    right = p * likelihood.calibrated(jnp.ones(101), q)
    wrong = (1 - p) * likelihood.calibrated(jnp.zeros(101), q)
    assert abs(float(q[jnp.argmax(right + wrong)]) - p) < 0.011


# --- votes --------------------------------------------------------------------

#          a group with a winner | a tie      | none   | alone | alone, none
IDS = np.array([4, 4, 9, -1, 4] + [1, 2, 1, 2] + [-1, -1] + [3] + [-1])
GROUP = np.array([70] * 5 + [-5] * 4 + [12] * 2 + [0] + [8])
MAJORITY = [1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 0]
SHARE = [0.6, 0.6, 0.2, 0, 0.6, 0.5, 0.5, 0.5, 0.5, 0, 0, 1, 0]


@pytest.mark.parametrize(
  ('f', 'want'),
  [(likelihood.majority, MAJORITY), (likelihood.cluster_share, SHARE)],
)
def test_votes_do_not_depend_on_the_order_of_rows(f, want):
  run = jax.jit(f)
  np.testing.assert_allclose(run(IDS, GROUP), want, rtol=1e-6)
  for seed in range(3):
    order = np.random.default_rng(seed).permutation(len(IDS))
    got = run(IDS[order], GROUP[order])
    np.testing.assert_allclose(got, np.array(want)[order], rtol=1e-6)

  def pair(x):
    return np.stack([x, x[::-1]])

  np.testing.assert_allclose(
    jax.vmap(f)(pair(IDS), pair(GROUP))[1], want[::-1], rtol=1e-6
  )


def test_invalid_rows_do_not_vote():
  valid = np.array([1, 0, 1, 1, 0] + [1, 1, 0, 1] + [1, 1, 0, 1])
  got = likelihood.majority(IDS, GROUP, valid)
  assert got.tolist() == [1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]
  got = likelihood.cluster_share(IDS, GROUP, valid)
  third = 1 / 3
  want = [third, 0, third, 0, 0, third, 2 / 3, 0, 2 / 3, 0, 0, 0, 0]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_wrong_labels():
  gold = np.array([4] * 5 + [1] * 4 + [7] * 2 + [3] + [1])
  got = likelihood.wrong_label(IDS, gold, GROUP)
  assert got.tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]


def test_random_has_its_probability_and_its_rows():
  noise = likelihood.uniforms(jax.random.key(0), 4000)
  for p in (0.0, 0.3, 1.0):
    share = float(likelihood.random(noise, p).mean())
    assert abs(share - p) < 0.04 and (share == p or 0 < p < 1)
  few = likelihood.uniforms(jax.random.key(0), 10)
  np.testing.assert_array_equal(few, noise[:10])


# --- answers as ids -----------------------------------------------------------


def test_equal_answers_share_an_id_and_only_they():
  texts = ['#7', '12 9#7', '#07', '#77', '# 7', '#', '7', '#7#', '#ab', '#ba']
  texts += ['#7 ', 'x' * 30 + '#7', *(f'{i}#{i}' for i in range(3000))]
  text = np.zeros((len(texts), 40), np.uint8)
  for row, t in zip(text, texts):
    row[: len(t)] = np.frombuffer(t.encode(), np.uint8)
    row[len(t) :] = 65  # what follows the end is not read
  length = np.array([len(t) for t in texts])
  ids = np.asarray(jax.jit(final.answer_ids)(text, length)).tolist()
  by_answer = collections.defaultdict(set)
  for t, i in zip(texts, ids):
    by_answer[problem.final_answer(t) or None].add(i)
  assert by_answer.pop(None) == {-1}
  found = [i for group in by_answer.values() for i in group]
  assert len(found) == len(set(found)) == len(by_answer) and min(found) >= 0
  # The gold answer's id is that of the completion that gives it.
  encoded = [final.encode_text({'answer': a}) for a in ('7', '2999')]
  stacked = [np.stack([e[k] for e in encoded]) for k in ('bytes', 'n_bytes')]
  assert final.bytes_ids(*stacked).tolist() == [ids[0], ids[-1]]
  cut = jax.jit(final.answer_ids)(text[:2, :1], length[:2])
  assert cut.tolist() == [-1, -1]


# --- in the step --------------------------------------------------------------

FREE = ('self_certainty', 'neg_entropy', 'seq_logp', 'mean_logp', 'majority')
SPEC = {name: {'reward': name} for name in FREE} | {
  'share': {'reward': 'cluster_share'},
  'wrong': {'reward': 'wrong_label'},
  'noise': {'reward': 'random', 'kwargs': {'p': 0.3}},
  'answer': {'reward': 'task', 'weight': 0.5},
}


def source(spec, reward_fn, learner):
  """Returns the source of a stage with these rewards and this learner."""
  views = Views(
    L.MODEL,
    device.reads(spec, L.TASK.kernel),
    L.P,
    learner.logprob_chunk,
    learner.minibatches * learner.micro_batches,
  )
  greedy = 'greedy_reward' in learner.needs
  return FusedSource(L.GEN, reward_fn, views, greedy)


def prompts(encode):
  import dataclasses

  answers = [
    encode({'answer': a, 'task': 'arithmetic'}) for a in map(str, range(L.B))
  ]
  p = L.prompts()
  return dataclasses.replace(
    p, answer=jax.tree.map(lambda *x: np.stack(x), *answers)
  )


def test_label_free_parts_in_the_fused_step():
  """Compares with whole logits and Python, for every row."""
  encode, reward_fn = device.make(SPEC, L.TASK.kernel, L.TOKENIZER, L.C)
  seen = {}

  def keep(out, answers, control):
    return seen.setdefault('r', (out, reward_fn(out, answers, control)))[1]

  p = prompts(encode)
  learner = L.learner(micro_batches=4, logprob_chunk=3, part_names=tuple(SPEC))

  @jax.jit
  def run(state, p):
    # At a temperature other than 1, views of the sampler would differ.
    warm, asked = Sampling.make(temperature=1.5), source(SPEC, keep, learner)
    new, metrics = L.fused(learner, state, p, asked, warm)
    return new, metrics, seen['r']

  _, metrics, (out, reward) = run(L.state(learner), p)
  tokens = np.concatenate([np.repeat(p.tokens, L.G, 0), out.tokens], 1)
  mask = np.arange(L.C) < np.asarray(out.length)[:, None]
  valid = np.concatenate([np.repeat(p.valid, L.G, 0), mask], 1)
  model, params = L.model_and_params()
  logits = model.unembed(params, model.hidden(params, tokens, valid))
  logits = np.asarray(logits, np.float64)[:, L.P - 1 : -1]
  logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  taken = np.take_along_axis(logp, np.asarray(out.tokens)[..., None], -1)[
    ..., 0
  ]

  def mean(x):
    return (x * mask).sum(1) / mask.sum(1)

  parts = dict(zip(SPEC, np.asarray(reward.parts).T))

  def close(x, y):
    return np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)

  close(parts['self_certainty'], mean((-np.log(24) - logp).mean(-1)))
  close(parts['neg_entropy'], mean((np.exp(logp) * logp).sum(-1)))
  close(parts['seq_logp'], (taken * mask).sum(1))
  close(parts['mean_logp'], mean(taken))
  for i in range(0, L.B * L.G, L.G):
    texts = [
      L.TOKENIZER.decode(np.asarray(t)[:n].tolist())
      for t, n in zip(out.tokens[i : i + L.G], out.length[i : i + L.G])
    ]
    answers = [problem.final_answer(t) or None for t in texts]
    votes = collections.Counter(a for a in answers if a)
    most = max(votes.values(), default=0)
    close(parts['share'][i : i + L.G], [votes.get(a, 0) / L.G for a in answers])
    want = [float(a is not None and votes[a] == most) for a in answers]
    close(parts['majority'][i : i + L.G], want)
  noise = fused.key_of(L.ROOT, 0, 'views')
  uniform = likelihood.uniforms(noise, L.B * L.G)
  close(parts['noise'], np.asarray(uniform) < 0.3)
  close(metrics['reward/majority'], parts['majority'].mean())
  total = sum(SPEC[k].get('weight', 1.0) * parts[k] for k in SPEC)
  close(reward.total, total)


def test_votes_over_the_answers_that_completions_give():
  spec = {
    k: {'reward': k} for k in ('majority', 'cluster_share', 'wrong_label')
  }
  encode, reward_fn = device.make(spec, None, L.TOKENIZER, L.C)
  # In the first group, the answer 2 is correct, and three answers are 1.
  texts = ['2 1#1', '#1', '1#1', '#2', '#2', '2#2', '#1', '#']
  tokens = [L.TOKENIZER.encode(t) + list(L.STOP) for t in texts]

  def room(ids):
    return np.pad(ids, (0, L.C - len(ids)))

  out = Rollout(
    tokens=jnp.array([room(ids) for ids in tokens]),
    sampled=jnp.arange(L.C) < jnp.array([[len(ids)] for ids in tokens]),
    length=jnp.array([len(ids) for ids in tokens]),
    logp=jnp.zeros((8, L.C)),
    truncated=jnp.zeros(8, bool),
    temperature=jnp.ones(8),
    version=jnp.zeros((8, L.C), int),
    turn=jnp.zeros((8, L.C), int),
    node=jnp.zeros((8, L.C), int),
    views={'group': jnp.array([0] * 4 + [1] * 4)},
  )
  answers = [encode({'answer': '2'})] * 8
  answers = jax.tree.map(lambda *x: np.stack(x), *answers)
  parts = jax.jit(reward_fn)(out, answers).parts
  assert parts[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 0, 0]
  assert parts[:, 1].tolist() == [0.75] * 3 + [0.25, 0.5, 0.5, 0.25, 0]
  assert parts[:, 2].tolist() == [1, 1, 1, 0, 0, 0, 1, 0]


def test_micro_batches_and_chunks_leave_the_views_alone():
  out = L.sample(L.model_and_params()[1], L.prompts())
  names = ('logp', 'uniform_kl', 'group', 'uniform')

  def views(**changes):
    views_of = Views(L.MODEL, names, L.P, **changes)

    def see(params, out):
      return views_of(params, L.prompts(), out, L.ROOT)

    return jax.jit(see)(L.model_and_params()[1], out).views

  whole = views()
  assert set(whole) == {*names, 'mask'}
  L.assert_close(views(parts=4 * 2, chunk=3), whole)


def test_a_greedy_baseline_sees_its_own_views():
  spec = {'s': {'reward': 'self_certainty'}, 'm': {'reward': 'majority'}}
  encode, reward_fn = device.make(spec, None, L.TOKENIZER, L.C)
  learner = L.learner({'name': 'remax'}, micro_batches=16)  # B does not divide
  assert 'greedy_reward' in learner.needs
  asked = source(spec, reward_fn, learner)
  run = jax.jit(lambda s, p: L.fused(learner, s, p, asked))
  _, metrics = run(L.state(learner), prompts(encode))
  assert np.isfinite(metrics['loss'])


def test_self_certainty_rises_when_it_is_rewarded():
  spec = {'s': {'reward': 'self_certainty'}}
  encode, reward_fn = device.make(spec, None, L.TOKENIZER, L.C)
  learner = L.learner({'name': 'grpo'}, lr=1.0)
  p = jax.tree.map(lambda x: np.stack([x] * 30), prompts(encode))
  asked = source(spec, reward_fn, learner)
  run = jax.jit(
    lambda s, p: programs.rl_steps(
      learner,
      asked,
      s,
      p,
      L.ROOT,
      Sampling.make(),
      L.STOP,
    )
  )
  reward = np.asarray(run(L.state(learner), p)[1]['reward_mean'])
  assert reward[-5:].mean() > 1.2 * reward[:5].mean() > 0


def test_names_and_knobs_are_checked():
  def make(spec):
    return device.make({'x': spec}, 'integer', L.TOKENIZER, L.C)

  for spec, says in (
    ({'reward': 'random', 'kwargs': {'q': 1}}, r"\['q'\] for a kernel with p"),
    ({'reward': 'majority', 'kwargs': {'p': 1}}, 'kernel with none'),
    ({'reward': 'majority', 'needs': 'y'}, "'needs' is for rewards in Python"),
    ({'reward': 'certainty'}, 'no device kernel .*self_certainty'),
  ):
    with pytest.raises(ValueError, match=f'rl.rewards.x: .*{says}'):
      make(spec)
  assert device.reads({'x': {'reward': 'task'}}, 'integer') == ()
  with pytest.raises(ValueError, match='rl.rewards.m: .majority. reads group'):
    device.refuse_on_host({'m': {'reward': 'majority'}})
  device.refuse_on_host({'m': {'reward': 'task'}})


def test_gains_of_samples_have_the_gradient_of_the_bound():
  """Enumerates all groups of a policy over 4 reasonings: the expected score
  times the gradient of log pi is the gradient of E[log 1/n sum_j p_j].
  """
  logits, n = jnp.array([0.3, -0.5, 1.0, 0.1]), 3
  p = np.array([0.02, 0.9, 0.4, 1e-6])
  groups = list(itertools.product(range(4), repeat=n))

  def bound(logits):
    pi = jax.nn.softmax(logits)
    return sum(pi[jnp.array(g)].prod() * np.log(p[[*g]].mean()) for g in groups)

  def surrogate(logits):
    pi, total = jax.nn.softmax(logits), 0.0
    for g in groups:
      logp = jnp.log(jnp.array(p[[*g]]))
      score = likelihood.gain_of_sample(logp, jnp.zeros(n, int))
      chance = jax.lax.stop_gradient(pi[jnp.array(g)].prod())
      total += chance * (score * jnp.log(pi[jnp.array(g)])).sum()
    return total

  want, got = jax.grad(bound)(logits), jax.grad(surrogate)(logits)
  assert np.abs(want).max() > 0.1
  np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_gains_of_samples_are_of_their_group_alone():
  p, group = np.array([0.5, 0.1, 0.2, 0.8]), jnp.array([0, 1, 0, 7])
  got = likelihood.gain_of_sample(jnp.log(jnp.array(p)), group)
  want = np.log([0.35 / 0.2, 0.1, 0.35 / 0.5, 0.8])
  np.testing.assert_allclose(got, want, rtol=1e-5)
