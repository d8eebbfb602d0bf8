"""Episodes with environments in Python equal those inside the program, for any
times of the tools.
"""

import concurrent.futures
import dataclasses
import itertools
import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model
from test_turns import gaps

from jaxrl_reason import envs, sharding
from jaxrl_reason.base import Prompts
from jaxrl_reason.data import tokenizers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import episode, turns, verdict_arrays
from jaxrl_reason.rollouts import host_episodes as hosted
from jaxrl_reason.verifiers.tools import Answer, calculator, serve
from jaxrl_reason.verifiers.verdict import Verdict, judge

B, G, P, C, MOST = 4, 6, 4, 44, 4
TOKENIZER = tokenizers.CharTokenizer('0123456789*=<>-r erostyngadixz')
LIMITS = dict(most=MOST, tokens=12, observation=9, chunk=0, weight=0.5)
STOP = jnp.array([1, -1])
KEY = jax.random.key(3)
HOT = 2.0  # samples tokens of all kinds, including calls


class Threads:
  """A pool of threads, each with its own delay."""

  def __init__(self, env, delays=None):
    self.server, self.delays = serve.Server(env, 1000), delays
    self.pool = concurrent.futures.ThreadPoolExecutor(64)

  def submit(self, cases):
    def run():
      if self.delays:
        time.sleep(self.delays())
      return [judge(self.server, *case) for case in cases]

    return self.pool.submit(run)


def prompts():
  tokens = jax.random.randint(jax.random.key(0), (B, P), 2, 14)
  valid = np.arange(P) >= P - np.array([[3], [2], [1], [4]])
  return Prompts(tokens, jnp.asarray(valid), jnp.arange(B), {})


def model_of(**shape):
  return small_model(vocab=32, **shape)


def in_the_graph(model, params, **static):
  how = turns.make(envs.ENVS['calculator'], TOKENIZER, **LIMITS)
  asked = prompts()
  f = jax.jit(
    lambda params: turns.generate(
      how, model, params, asked.tokens, asked.valid, {}, KEY,
      Sampling.make(HOT), STOP, n_samples=G, max_new=C, **static,
    )
  )  # fmt: skip
  return f(params)


def on_the_host(model, params, pool=None, **static):
  write = verdict_arrays.Writer(
    TOKENIZER.encode_data, room=LIMITS['observation']
  )
  player = hosted.Player(
    hosted_limits(), model, n_samples=G, max_new=C, write=write,
    pool=pool or Threads(calculator.step), decode=TOKENIZER.decode, burst=3,
    **static,
  )  # fmt: skip
  asked, ids = prompts(), np.arange(B * G, dtype=np.int32)
  examples = [{'id': i} for i in range(B)]
  given = params, asked.tokens, asked.valid, examples
  return player(*given, KEY, Sampling.make(HOT), STOP, ids), player


def hosted_limits():
  stops = turns.automaton([b'='], TOKENIZER.token_bytes())
  return episode.Limits(**LIMITS, stops=stops)


def assert_same(got, want, exact, flips=False):
  for name in ('tokens', 'sampled', 'turn', 'length', 'truncated'):
    np.testing.assert_array_equal(
      getattr(got, name), getattr(want, name), err_msg=name
    )
  for name in ('malformed', 'cut', 'long', 'too_many', 'no_room'):
    np.testing.assert_array_equal(
      got.episode.events[name], want.episode.events[name], err_msg=name
    )
  np.testing.assert_array_equal(got.episode.done, want.episode.done)
  np.testing.assert_allclose(got.episode.reward, want.episode.reward, atol=1e-7)
  if exact:
    np.testing.assert_array_equal(got.logp, want.logp)
  elif flips:
    # If a key is almost halfway between two int8 values, its last bit decides
    # the rounding, which then affects all later tokens of the row. Multiplying
    # the weights by 1 + 1e-7 changes as many log-probs by as much (6 to 8 of
    # 1056, by 2e-4 to 1e-3).
    np.testing.assert_allclose(got.logp, want.logp, rtol=0, atol=2e-3)
    assert (np.abs(got.logp - want.logp) > 1e-5).mean() < 0.02
  else:
    np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


SHAPES = {
  'plain': {},
  'experts': dict(
    experts=4,
    experts_per_token=2,
    bias=False,
    windows=(3, 0, 5),
    attention_cap=2.0,
  ),
  'int8': dict(cache_dtype='int8'),
}


@pytest.mark.parametrize(
  'name', ['plain', 'experts', pytest.param('int8', marks=pytest.mark.slow)]
)
def test_host_episodes_equal_those_in_the_graph(name):
  """Trajectories with the same seeds are equal, log-probs equal the trainer's,
  and times of tools change no bit.
  """
  _, model, params = model_of(**SHAPES[name])
  static = dict(routes=True) if name == 'experts' else {}
  want = in_the_graph(model, params, **static)
  assert len(set(np.isfinite(want.episode.reward).sum(1).tolist())) > 1
  assert int(want.episode.events['malformed'].sum()) > 3
  calm, _ = on_the_host(model, params, **static)
  assert_same(calm, want, exact=False, flips=name == 'int8')
  noise = random.Random(0)
  pool = Threads(calculator.step, lambda: noise.random() * 0.05)
  hasty, player = on_the_host(model, params, pool, **static)
  assert_same(hasty, calm, exact=True)
  spent = player.take_spent()
  assert spent['tools_wait_s'] > 0 and spent['turns_decode_s'] > 0
  if name == 'experts':
    np.testing.assert_array_equal(calm.routes, want.routes)
  if name != 'int8':
    rows = dataclasses.replace(calm, policy_logp=None)
    assert gaps_of(model, params, rows).max() < 1e-5


def gaps_of(model, params, out):
  import test_turns

  kept = test_turns.prompts, test_turns.P
  test_turns.prompts, test_turns.P = prompts, P
  try:
    return gaps(model, params, out, dict(temperature=HOT))
  finally:
    test_turns.prompts, test_turns.P = kept


def test_eight_devices_play_as_one_does():
  _, model, params = model_of(kv_heads=4, tied=False)
  want, _ = on_the_host(model, params)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got, _ = on_the_host(model, params)
  assert_same(got, want, exact=False)


def test_a_row_waits_only_for_its_own_tool():
  """While one tool runs, the other rows finish."""
  _, model, params = model_of()
  free, done = threading.Event(), []

  def env(text, example, state):
    turn = state or 0
    if example['id'] == 0 and not turn:
      assert free.wait(20)
    elif example['id'] > 0:
      done.append(turn)
      if len(done) >= 3 * (B - 1) * G:  # three turns of each other row
        free.set()
    return Answer('1', turn + 1)

  out, _ = on_the_host(model, params, Threads(env))
  assert free.is_set() and not np.asarray(out.episode.events['failed']).any()


def test_failures_are_text_and_counted():
  """Tools raise errors, are late or return too much text. Their output is
  data.
  """
  _, model, params = model_of()

  class Failing(Threads):
    def submit(self, cases):
      (_, case), future = cases[0], concurrent.futures.Future()
      kind = case['example']['id']
      replies = [
        Verdict(0.0, 'timeout'),
        Verdict(0.0, 'error', detail='the worker died (signal 9)'),
        serve.Reply(0.0, observation='12=<<' * 1000, event='unknown'),
        serve.Reply(0.25, observation='=\x00\ufffd<<1=', event=''),
      ]
      future.set_result([replies[kind]])
      return future

  out, _ = on_the_host(model, params, Failing(None))
  by_kind = {
    k: np.asarray(x).reshape(B, G).sum(1) for k, x in out.episode.events.items()
  }
  for i, kind in enumerate(('timeout', 'failed', 'unknown')):
    others = [by_kind[kind][j] for j in range(B) if j != i]
    assert by_kind[kind][i] >= G and not any(others), kind
  assert by_kind['cut'][2] > 0 and not by_kind['cut'][3]
  tokens, own = np.asarray(out.tokens), np.asarray(out.sampled)
  turn = np.asarray(out.turn)
  for row in range(B * G):
    for i in range(1, turn[row].max() + 1):
      there = (turn[row] == i) & ~own[row]
      said = TOKENIZER.decode(tokens[row][there].tolist())
      told = ['error: timeout', 'error: the tool failed', '12=<<12=<', '=<<1=']
      kept = [
        c for c in told[row // G] if c in TOKENIZER.alphabet
      ]  # turns without tokens are excluded
      assert said in ('', ''.join(kept)[:9]), (row, i, said)
  reward = np.asarray(out.episode.reward).reshape(B, -1)
  assert np.nanmax(reward[3]) == 0.125 and not np.nansum(reward[:3])


def test_the_twin_is_the_calculator():
  """Replies are equal byte for byte, for all kinds of calls."""
  env, rng = envs.ENVS['calculator'], np.random.default_rng(0)
  alphabet = list('0123456789-+*/<<=')
  numbers = itertools.product((-17, 5, 10**17), '+-*/', (3, 0, -4))
  texts = [f'<<{a}{op}{b}=' for a, op, b in numbers]
  sizes = rng.integers(1, 12, 300)
  texts += [''.join(rng.choice(alphabet, n)) for n in sizes]
  texts += [
    '<<' + '9' * 19 + '*1=',
    'x' * 60,
    'x' * 60 + '=',
    '#12',
    '=',
    '<<=',
  ]
  width = env.width
  rows = np.zeros((len(texts), width), np.uint8)
  for i, text in enumerate(texts):
    data = text.encode()[:width]
    rows[i, : len(data)] = np.frombuffer(data, np.uint8)
  lengths = np.array([len(t) for t in texts])
  said = jax.jit(jax.vmap(env.step, (None, 0, 0)))((), rows, lengths)
  for i, text in enumerate(texts):
    answer = calculator.step(text, {}, None)
    assert (answer.observation is None) == bool(said.done[i]), text
    assert np.float32(answer.reward) == said.reward[i], text
    assert (answer.event == 'malformed') == bool(said.malformed[i]), text
    if answer.observation is not None:
      n = int(said.length[i])
      want = bytes(np.asarray(said.observation[i])[:n]).decode()
      assert answer.observation == want, text
