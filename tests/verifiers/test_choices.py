"""Multiple choice: all forms of the same letter, and no others."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_reason.verifiers.text import choices

FEW = settings(max_examples=200, deadline=None, derandomize=True)
CITIES = {'choices': ['Paris', 'London', 'Berlin', 'Vitamin C'], 'answer': 'B'}
BARE = {'answer': '(b)'}

RIGHT = [
  'B',
  'b',
  '(B)',
  '(b)',
  '[B]',
  'B.',
  'B)',
  'B:',
  '**B**',
  '`B`',
  '$B$',
  '"B"',
  '\\boxed{B}',
  '\\boxed{(B)}',
  '$\\boxed{\\text{B}}$',
  '\\boxed{\\textbf{(B)}}',
  'B. London',
  '(B) London',
  'B: London.',
  '**B. London**',
  'Option B',
  'Answer: B',
  '**Answer:** B',
  'Answer: **B. London**',
  'The answer is B',
  'The answer is **B**.',
  'the answer is (B) London.',
  'The correct answer is: B) London',
  'The answer is option B.',
  'The answer is B because A is wrong.',
  'The correct option is B since (A) is not.',
  'I would pick B, as C is in Germany.',
  'So the final answer is: B\n\nI hope it is correct.',
  'The answer is A? No. The answer is B.',
  'A. Paris\nB. London\nC. Berlin\nSo B',
  'A and C are in other countries.\n\nB',
  '<think>A? No. C?</think><answer>B</answer>',
  '<think>A? No. C?</think>B',
  '(B) because (A) is wrong',
  '答案是B',
  '故选：B',
]
TEXTS = ['London', 'london.', 'The answer is London', '\\boxed{London}']
WRONG = [
  'A',
  '(C)',
  '\\boxed{A}',
  'A or B',
  'B or C',
  'B, C',
  'Both A and B',
  '(A)(B)',
  'A B C D',
  '\\boxed{A, B}',
  '\\boxed{B} \\boxed{C}',
  'The answer is A or B',
  'B. Paris',
  'London and Paris',
  'Paris',
  'The answer is a London bus',
  'a boy',
  '',
  'B is not in France. The answer is C.',
  'A. Paris\nB. London\nC. Berlin\nD. Vitamin C',
  '<think>B',
  '<answer>A</answer> B',
]


@pytest.mark.parametrize('completion', RIGHT)
def test_forms_of_the_right_letter(completion):
  for example in (CITIES, {**CITIES, 'answer': 'London'}):
    verdict = choices.reward(completion, example)
    assert (verdict.score, verdict.extracted) == (1.0, 'B')
  assert choices.reward(completion, {**CITIES, 'answer': 'C'}).score == 0.0
  assert choices.reward(completion, BARE).score == 1.0


@pytest.mark.parametrize('completion', TEXTS)
def test_the_text_of_the_option(completion):
  assert choices.reward(completion, CITIES).score == 1.0
  assert choices.reward(completion, {**CITIES, 'answer': 'A'}).score == 0.0
  lettered = dict(zip('ABCD', CITIES['choices']))
  example = {'answer': 'B', 'meta': {'choices': lettered}}
  assert choices.reward(completion, example).score == 1.0


@pytest.mark.parametrize('completion', WRONG)
def test_wrong_and_ambiguous(completion):
  assert choices.reward(completion, CITIES).score == 0.0


DENIALS = [
  "The answer isn't A.",
  'The answer is neither A nor B.',
  'It is neither A nor B',
  'The answer is not B',
  "The answer can't be B.",
  "B isn't right.",
  '(B) is wrong',
  'The answer cannot be B',
]


@pytest.mark.parametrize('completion', DENIALS)
def test_a_negated_letter_is_not_chosen(completion):
  for letter in 'ABCD':
    example = {**CITIES, 'answer': letter}
    assert choices.reward(completion, example).score == 0.0


@pytest.mark.parametrize('label', ['A: blue', 'A. blue', '(A) blue', 'A) Blue'])
def test_a_letter_with_the_text_of_another_option_is_wrong(label):
  for answer in 'AB':
    example = {'choices': ['red', 'blue'], 'answer': answer}
    for text in (label, f'The answer is {label}', f'\\boxed{{{label}}}'):
      assert choices.reward(text, example).score == 0.0


def test_options_that_are_numbers():
  example = {'choices': ['5', '-5', '1.5', '15', '1/5'], 'answer': '-5'}
  for i, text in enumerate(example['choices']):
    assert choices.reward(text, example).score == float(text == '-5')
    assert choices.reward(text, example).extracted == 'ABCDE'[i]
  assert choices.reward('\\boxed{-5}', example).score == 1.0
  assert choices.reward('The answer is $15$.', example).extracted == 'D'


def test_an_option_with_a_letter_in_its_text():
  example = {**CITIES, 'answer': 'D'}
  for completion in ('D. Vitamin C', 'Vitamin C', 'The answer is Vitamin C.'):
    assert choices.reward(completion, example).score == 1.0


def test_a_letter_has_priority_over_an_equal_text():
  example = {'choices': ['C', 'x', 'A'], 'answer': 'A'}
  assert choices.reward('A', example).score == 1.0
  assert choices.reward('C', example).extracted == 'C'
  assert choices.reward('x', example).extracted == 'B'


@pytest.mark.parametrize(
  'prose', ['I think so.', 'A city, and a large one.', "I'd say it is warm."]
)
def test_words_of_one_letter_are_not_choices(prose):
  example = {'choices': [f'number {i}' for i in range(9)], 'answer': 'I'}
  for letter in 'AI':
    verdict = choices.reward(prose, example | {'answer': letter})
    assert (verdict.score, verdict.status) == (0.0, 'no_answer')


@pytest.mark.parametrize(
  'example',
  [
    {},
    {'answer': 'Rome', 'choices': ['Paris']},
    {'answer': 'B', 'choices': ['Paris']},
    {'answer': 'A', 'choices': {'AB': 'x'}},
    {'answer': 'both'},
  ],
)
def test_an_invalid_example_is_an_error(example):
  with pytest.raises(ValueError, match='answer|choices'):
    choices.reward('A', example)


PIECES = st.sampled_from(
  [
    'A',
    'B',
    ' ',
    '(',
    ')',
    '.',
    '\n',
    '**',
    '\\boxed{',
    '}',
    'answer is ',
    'or',
  ]
)


@FEW
@given(st.one_of(st.text(max_size=50), st.lists(PIECES).map(''.join)))
def test_total_and_one_letter_at_most(completion):
  scores = [
    choices.reward(completion, {**CITIES, 'answer': letter}).score
    for letter in 'ABCD'
  ]
  assert sum(scores) <= 1.0


@FEW
@given(st.sampled_from('ABCD'), st.sampled_from('ABCD'), st.text(max_size=20))
def test_a_boxed_letter_has_priority(boxed, other, text):
  text = text.replace('\\', '').replace('<', '')
  completion = f'{text} maybe ({other}) {text} \\boxed{{{boxed}}}'
  assert choices.reward(completion, CITIES).extracted == boxed


@pytest.mark.parametrize(
  'piece', ['B\n', '(A) ', 'answer is ', '**', 'B. ', ' ']
)
def test_long_completions_are_verified_quickly(piece):
  start = time.process_time()
  choices.reward(piece * (100_000 // len(piece)), CITIES)
  assert time.process_time() - start < 3.0


@pytest.mark.parametrize('dress', ['%s', '\\boxed{%s}', 'The answer is %s'])
@pytest.mark.parametrize(
  'text',
  [
    'neither A nor B',
    'rule out A',
    'anything but A',
    'anything other than A',
    'not (A)',
    'never A, B or C',
    'A? No.',
    'I would eliminate A',
    'The answer is A. No, B.',
    'The answer is A. Wait, it is B.',
    'A but B is possible',
    '(A) red vs. (B) blue',
    '(A) red. (B) is possible',
    '(A) red, unlike (C), or (B)',
    '(A) red, instead (B)',
    'not A. It is B.',
    '(B) blue, unlike (A)',
  ],
)
def test_a_denied_or_corrected_letter_is_not_chosen(dress, text):
  example = {'answer': 'A', 'choices': ['red', 'blue', 'green']}
  assert choices.reward(dress.replace('%s', text), example).score == 0.0


def test_the_letter_that_is_left_is_chosen():
  example = {'answer': 'B', 'choices': ['red', 'blue', 'green']}
  for text in (
    'B, not A',
    'not A, it is B',
    'B. A is wrong',
    'B rather than A',
    '(B) blue, rather than (A) red.',
    '(B) blue, unlike (A)',
    'B, blue, instead of A.',
    '(B) blue. (A) is wrong.',
    'B. blue. A is wrong.',
    '(B) blue (not (A) red)',
    'not A. It is B.',
    'B, not A, C or D',
    'B, neither A, C, nor D',
    'B, not A/C',
    'instead of A, B',
    'not A, B',
  ):
    assert choices.reward(f'The answer is {text}', example).score == 1.0, text
  assert choices.reward('Unlike A, B is correct.', example).score == 1.0
