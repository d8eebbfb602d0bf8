"""The form of a completion: tags, language consistency, repetition."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import SAMPLES

from jaxrl_reason.verifiers.text import consistency, language, scripts
from jaxrl_reason.verifiers.text import format as form

FEW = settings(max_examples=150, deadline=None, derandomize=True)


def score(completion, **knobs):
  return form.tags(completion, {}, **knobs).score


@pytest.mark.parametrize(
  ('completion', 'right'),
  [
    ('<think>a</think><answer>b</answer>', 1),
    (' <think>\na\n</think>\n\n<answer> b </answer>\n', 1),
    ('<think>a < b > c</think><answer><b>x</b></answer>', 1),
    ('<think>a</think><answer>b</answer>.', 0),
    ('So <think>a</think><answer>b</answer>', 0),
    ('<think>a</think> so <answer>b</answer>', 0),
    ('<answer>b</answer><think>a</think>', 0),
    ('<think>a<answer>b</answer></think>', 0),
    ('<think>a</think><think>a</think><answer>b</answer>', 0),
    ('<think>a</think><answer>b</answer><answer>b</answer>', 0),
    ('<think>a</think><answer>b', 0),
    ('a</think><answer>b</answer>', 0),
    ('<think>a<think>b</think><answer>b</answer>', 0),
    ('<think>a</think></answer><answer>b', 0),
    ('<THINK>a</THINK><ANSWER>b</ANSWER>', 0),
    ('<think></think><answer>b</answer>', 0),
    ('<think>a</think><answer> </answer>', 0),
    ('', 0),
  ],
)
def test_tags(completion, right):
  assert score(completion) == right


def test_tags_by_argument():
  assert score('a</think><answer>b</answer>', opened=True) == 1
  assert score('<think>a</think><answer>b</answer>', opened=True) == 0
  assert score('<think></think><answer></answer>', empty=True) == 1
  assert score('<plan>a</plan> <do>b</do>', names=('plan', 'do')) == 1
  assert score('<answer>b</answer>', names=('answer',)) == 1
  assert form.tags('<think>a</think><answer>b</answer>', {}).extracted == 'b'


TAGS = ('<think>', '</think>', '<answer>', '</answer>')


def test_exactly_one_sequence_of_tags_has_the_form():
  """Tries all sequences of up to six tags with text between them."""
  for n in range(7):
    for sequence in itertools.product(TAGS, repeat=n):
      completion = 'x'.join(sequence).replace('</think>x', '</think>')
      assert score(completion) == (sequence == TAGS), sequence


@FEW
@given(st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=3))))
def test_tags_contain_all_text(pieces):
  text = ''.join(pieces)
  contents = form.tagged(text)
  if contents is not None:
    a, b = contents
    rest = text.replace(f'<think>{a}</think>', '', 1)
    assert not rest.replace(f'<answer>{b}</answer>', '', 1).strip()


def share(completion, prompt='', **knobs):
  return consistency.reward(completion, {'prompt': prompt}, **knobs)


@pytest.mark.parametrize('code', SAMPLES)
def test_a_text_is_consistent_with_itself(code):
  text = SAMPLES[code]
  assert share(f'{text}\n{text}', text) == 1.0
  assert share('So $x = 1$: `code here` \\boxed{5}', '1 + 1') == 1.0


@pytest.mark.parametrize('code', SAMPLES)
def test_another_language_is_found(code):
  prompt = SAMPLES['de' if code == 'en' else 'en']
  if code != 'tl':  # half of its words are Spanish
    assert share(SAMPLES[code], prompt) < 0.2
  half = share(f'{prompt}\n{SAMPLES[code]}', prompt)
  n, m = (len(scripts.units(t)) for t in (prompt, SAMPLES[code]))
  assert half == pytest.approx(n / (n + m), abs=0.2)


def test_the_language_by_argument_or_field():
  assert share(SAMPLES['zh'], code='zh') == 1.0
  assert share(SAMPLES['zh'], code='zh-tw') == 1.0
  assert share(SAMPLES['ja'], code='zh') < 1.0
  example = {'prompt': '?', 'meta': {'language': 'th'}}
  assert consistency.reward(SAMPLES['th'], example) == 1.0
  assert consistency.reward(SAMPLES['ru'], example) == 0.0
  with pytest.raises(ValueError, match='xx'):
    share('text', code='xx')
  with pytest.raises(ValueError, match='prompt'):
    consistency.reward('text', {})


def test_formulas_and_code_have_no_language():
  text = (
    'Wir rechnen $\\text{the answer is here} x$ aus, und das ist nicht schwer.'
    '\n```python\nfor the in range(3): print("you are here and there")\n```'
  )
  assert share(text, SAMPLES['de']) == 1.0
  assert share('```only = code```', SAMPLES['de']) == 1.0


@FEW
@given(st.text(max_size=100), st.sampled_from(sorted(language.codes())))
def test_shares_are_between_zero_and_one(text, code):
  assert 0.0 <= share(text, code=code) <= 1.0


@pytest.mark.parametrize(
  ('items', 'n', 'covered'),
  [
    ('', 2, 0),
    ('abcd', 2, 0),
    ('abab', 2, 2),
    ('ababab', 2, 4),
    ('aaaa', 2, 3),
    ('aaaa', 4, 0),
    ('abcXabc', 3, 3),
    ('abcXabcYbc', 3, 3),
    ('abcXabcYbc', 2, 5),
    ('aaaa', 1, 3),
  ],
)
def test_repeated_share(items, n, covered):
  share_ = form.repeated_share(items, n)
  assert share_ == (covered / len(items) if items else 0.0)


@FEW
@given(st.text('ab', max_size=30), st.integers(1, 5))
def test_repetition_by_brute_force(items, n):
  marked = set()
  grams = [items[i : i + n] for i in range(len(items) - n + 1)]
  for i, gram in enumerate(grams):
    if gram in grams[:i]:
      marked |= set(range(i, i + n))
  assert form.repeated_share(items, n) * len(items) == pytest.approx(
    len(marked)
  )


def test_repetition():
  loop = 'the answer is then clearly one more ' * 20
  assert form.repetition(loop, {}, n=5) < -0.8
  assert form.repetition(SAMPLES['en'], {}, n=3) == 0.0
  assert form.repetition('我在想这个问题。' * 20, {}, n=5) < -0.8
  assert form.repetition('| 1 | 2 |\n' * 20, {}, n=2) == 0.0
  for n in (0, 101):
    with pytest.raises(ValueError, match='n-gram'):
      form.repetition('a', {}, n=n)


@pytest.mark.parametrize(
  'piece', ['a ', '<think>', '$', '`', '```', '是', '. ']
)
def test_long_completions_are_verified_quickly(piece):
  text = piece * (100_000 // len(piece))
  start = time.process_time()
  form.tags(text, {})
  share(text, code='de')
  form.repetition(text, {}, n=20)
  assert time.process_time() - start < 5.0
