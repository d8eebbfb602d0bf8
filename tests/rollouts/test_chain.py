"""Chains: a link is rewarded by its own text, and by earlier links."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.rollouts import chain
from jaxrl_reason.verifiers import tasks

SPEC = {
  'draft': {'reward': 'task', 'weight': 0.5},
  'verify': {'ask': '?', 'reward': 'agrees', 'of': 'draft', 'yes': 'ok'},
  'critique': {'ask': ':'},
  'refine': {'ask': '!', 'reward': 'gains', 'of': 'draft', 'weight': 2.0},
  'last': {'ask': '!!', 'reward': 'integer'},
}
WIDTH = 12


def play(said, spec=None, stop=';', answer='7'):
  """Returns [(observation, reward, done, malformed)] and the scores."""
  links = chain.parse(spec or SPEC, 'integer')
  env = chain.make(links, stop, WIDTH)
  state = env.reset(env.encode({'answer': answer}), jax.random.key(0))
  step, out = jax.jit(env.step), []
  for text in said:
    data = np.frombuffer(text.encode()[:WIDTH].ljust(WIDTH, b'#'), np.uint8)
    found = step(state, jnp.asarray(data), jnp.int32(len(text)))
    state = found.state
    reply = bytes(np.asarray(found.observation)[: int(found.length)]).decode()
    told = float(found.reward), bool(found.done), bool(found.malformed)
    out.append((reply, *told))
  return out, np.asarray(env.told(state)[chain.VIEW]).tolist()


def test_a_right_draft():
  out, scores = play(['1#7;', 'ok;', 'fine', '#7;', '#7'])
  assert out == [
    ('?', 0.5, False, False),
    (':', 1.0, False, False),
    ('!', 0.0, False, False),
    ('!!', 0.0, False, False),  # no gain
    ('', 1.0, True, False),
  ]
  assert scores == [1, 1, 0, 0, 1]


def test_a_wrong_draft_and_verdicts():
  out, scores = play(['1#8;', ' n ;', '#7', '#7;', '#7;#7'])
  assert [x[1] for x in out] == [0, 1, 0, 2, 0]  # 2: what refine has gained
  assert scores == [0, 1, 0, 1, 0]  # two answers in a link are invalid
  for verdict, score, malformed in (
    ('ok;', 0, False), ('nn;', 0, True), ('', 0, True), ('n', 1, False),
    ('okn;', 0, True), ('#7;', 0, True), ('n' + ' ' * 20, 0, True),
  ):  # fmt: skip
    out, _ = play(['1#8', verdict])
    assert out[1][1:] == (score, False, malformed), verdict


def test_truncated_links_are_incorrect():
  out, _ = play(['#7' + ' ' * 20])
  assert out[0][1] == 0


def test_evaluations_count_one_link():
  links = chain.parse(SPEC, 'integer')
  assert [x.weight for x in chain.graded(links)] == [0, 0, 0, 0, 1]
  two = dict(list(SPEC.items())[:2])
  assert [x.weight for x in chain.graded(chain.parse(two, 'text'))] == [1, 0]


A, V = {'reward': 'task'}, {'ask': '?', 'reward': 'agrees'}


@pytest.mark.parametrize(
  'spec, kernel, words',
  [
    ({'a': A}, 'integer', 'a chain has two links or more'),
    ({'a': A, 'b': {'reward': 'task'}}, 'integer', "links.b.ask=''"),
    ({'a': V, 'b': V}, 'integer', "links.a.ask='?'"),
    ({'a': 5, 'b': V}, 'integer', 'links.a=5: must be a section'),
    ({'a': A, 'b': V | {'of': 'c'}}, 'integer', "links.b.of='c': choose an"),
    ({'a': A, 'b': V | {'of': 'b'}}, 'integer', "links.b.of='b': choose an"),
    ({'a': A, 'b': V | {'off': 1}}, 'integer', 'links.b.off: the keys are'),
    ({'a': A, 'b': V | {'yes': 'n'}}, 'integer', 'two verdicts that differ'),
    ({'a': A, 'b': V | {'weight': '1'}}, 'integer', "links.b.weight='1'"),
    ({'a': {'reward': 'agrees'}, 'b': V}, 'integer', 'there is no link before'),
    ({'a': {}, 'b': V}, 'integer', "links.b.of='a': that link has no reward"),
    ({'a': A, 'b': V}, None, "links.a.reward='task': choose task (of data"),
    ({'a': {'reward': 'majority'}, 'b': V}, 'text', "reward='majority': cho"),
  ],
)
def test_invalid_chains_are_refused(spec, kernel, words):
  with pytest.raises(ValueError) as e:
    chain.parse(spec, kernel)
  assert words in str(e.value)


@pytest.mark.parametrize('second', ['verify', 'recheck', 'refine'])
def test_worked_chains_do_not_train_on_incorrect_text(second):
  """Observations may be incorrect, but trained text is correct."""
  knobs = dict(second=second, modulus=5)
  seen = set()
  for i in range(40):
    ex = tasks.example('checked', 0, i, split='train', knobs=knobs)
    (first, read), (last, rest) = ex['turns']
    assert rest == '' and read.endswith('?')
    whole = (first + read).removesuffix(';?')
    right = tasks.check(whole, ex) == 1.0
    assert right == bool(first)
    seen.add(right)
    if second != 'refine':
      assert last[-1] == 'ny'[right]
      last = last[:-1]
    if second == 'verify':
      assert not last
    else:
      assert tasks.check(last, ex) == 1.0
  assert seen == {True, False}
