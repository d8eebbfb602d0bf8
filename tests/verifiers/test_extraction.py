"""Extracts the answer of a completion, with or without marks."""

import pytest

from jaxrl_reason.verifiers.math.extraction import extract

MARKED = [
  ('so \\boxed{5}', '5'),
  ('\\boxed{5} and $\\boxed{7}$.', '5, 7'),
  ('\\boxed{5}. After checking, \\boxed{7}.', '7'),
  ('$\\boxed{-2} \\quad \\text{and} \\quad \\boxed{1}$', '-2, 1'),
  ('\\boxed{\\frac{1}{\\sqrt{2}}}', '\\frac{1}{\\sqrt{2}}'),
  ('\\boxed{x = \\boxed{5}}', '5'),
  ('\\boxed{\\left\\{1,2\\right\\}}', '\\left\\{1,2\\right\\}'),
  ('\\boxed 7', '7'),
  ('\\fbox{3}', '3'),
  ('\\boxed{4} but cut off: \\boxed{5', '4'),
  ('\\boxed{4} and empty \\boxed{}', '4'),
  ('<think>\\boxed{1}</think>\\boxed{2}', '2'),
  ('<think>\\boxed{1}</think><answer>2</answer>', '2'),
  ('<answer>1</answer> no, <answer>2</answer>', '2'),
  ('<answer>The result is $x=3$.</answer>', 'x=3'),
  ('<answer> \\boxed{3} </answer>', '3'),
  ('steps\n#### 1,234', '1,234'),
  ('#### 1\n#### 2\nmore', '2'),
  ('#### Step 1: Eggs\n7\n#### Step 2: Money\n\nThe answer is 18.', '18'),
  ('#### Final Answer:\n18', '18'),
  ('#### x = 5\nBye 7', 'x = 5'),
  ('#### 18\n#### Explanation\nAn egg costs 2 dollars.', '18'),
  ('#### 18\n####', '18'),
  *(
    (f'#### {answer}\nThis is the final answer.', answer)
    for answer in (
      'sqrt(2)',
      '-sqrt(3)',
      'pi/2',
      'sin(x)',
      'log 2',
      'ab',
      'x>5',
      'infinity',
      'None',
      'Tuesday',
      'No solution',
      'all real numbers',
      'New York',
    )
  ),
  ('#### 5\n#### pi\nDone', 'pi'),
  ('#### 5\n#### Conclusion: six\nIt is 7', 'Conclusion: six'),
  ('#### 2\n#### sqrt(2)\nDone', 'sqrt(2)'),
  ('#### None\nWe tried 3 cases.', 'None'),
  ('####\n18\nok 3', '18'),
  ('####\nsqrt(2)\nok 3', 'sqrt(2)'),
  ('#### 18\n#### Checking the work\nAn egg costs 2 dollars.', '18'),
  ('#### Answer\nThe answer is 18.', '18'),
  ('#### 5\n#### or 6\nbye', 'or 6'),
  ('The answer is 42.', '42'),
  ('The answer is $5$ instead of $6$.', '$5$'),
  ('The answer is $3.14$. I hope it is correct.', '$3.14$'),
  (
    'Final Answer: The final answer is $(0, 1)$. I hope it is correct.',
    '$(0, 1)$',
  ),
  ('**Answer:** B', 'B'),
  ('Answer: $x=1$ or $x=2$', '$x=1$ or $x=2$'),
  ('the answer is 5. Then the answer is 6.', '6'),
  ('The final answer is:\n\n$$\\frac{1}{2}$$', '$$\\frac{1}{2}$$'),
  ('因此答案是12。', '12'),
  ('故选：C', 'C'),
]
GUESSED = [
  ('The value of $f(3)$ is 9.', '9'),
  ('The probability $P(A)$ is 1/6.', '1/6'),
  ('The minimum of $x^2+1$ is 1.', '1'),
  ('The value is $x^2$, where x is 5.', 'x^2'),
  ('The meeting is on June 5.', 'June 5'),
  ('It takes 3 hours and 20 minutes.', '3 hours and 20 minutes'),
  ('#### Conclusion\nJanet makes 18 dollars.', '18'),
  ('#### 2. Money\nJanet makes 18 dollars.', '18'),
  ('#### 5\n#### The total: 6\nIt is 7', '7'),
  ('#### 5\n#### Final answer\nIt is 7', '7'),
  ('#### 5\n#### Money earned\nIt is 7', '7'),
  ('#### 5\n#### The other one is pi\nIt is 7', '7'),
  ('#### Revenue\nIt is 7', '7'),
  ('#### 5\n#### Details: it is six\nIt is 7', '7'),
  ('#### Step 2\nIt is 7', '7'),
  ('####\nStep 2\nIt is 7', '7'),
  ('5', '5'),
  ('\\frac{1}{2}', '\\frac{1}{2}'),
  ('$x = 1$ or $x = 2$', '$x = 1$ or $x = 2$'),
  ('We get $2+3=5$ so that $y=5$ holds.', 'y=5'),
  ('It is therefore **17** apples, as we have seen', '17'),
  ('We have 3 and then 4, so the total must be 7', '7'),
  ('We have to halve it.\nx = 3/4', 'x = 3/4'),
  ('So it costs $1,234.50 in all, that is it', '$1,234.50'),
  ('That makes 3/4 of the cake', '3/4'),
  ('the change is -3', '-3'),
]
MISSING = ['', '   \n ', '\\boxed{}', '<answer></answer>', 'answer is']


@pytest.mark.parametrize(('text', 'answer'), MARKED)
def test_marked_answers(text, answer):
  for strict in (True, False):
    found = extract(text, strict=strict)
    assert found.text == answer and found.explicit


@pytest.mark.parametrize(('text', 'answer'), GUESSED)
def test_answers_that_are_not_marked(text, answer):
  assert extract(text, strict=True) is None
  assert extract(text).text == answer


@pytest.mark.parametrize('text', MISSING)
def test_no_answer(text):
  assert extract(text, strict=True) is None


@pytest.mark.parametrize('text', ['<think>\\boxed{5}</think> ', '<think>so 5'])
def test_thoughts_without_a_response_have_no_answer(text):
  assert extract(text, strict=True) is None and extract(text) is None


NAMES_BEFORE_NUMBERS = [
  'Final Answer: The largest $n$ is 34. I hope it is correct.',
  'The volume of $ABCD$ is 34.',
  'So the area of $\\triangle ABC$ is 34.',
  'The minimum value of $f(x)$ is 34.',
  'The answer for $p_1$ is 34',
]


@pytest.mark.parametrize('text', NAMES_BEFORE_NUMBERS)
def test_a_number_after_a_bare_name_is_the_answer(text):
  assert extract(text).text == '34'


def test_a_bare_name_without_a_number_is_the_answer():
  assert extract('The answer is that it must be $n$, I think').text == 'n'


@pytest.mark.parametrize(
  'text',
  [
    'The answer is not 7.',
    "The answer isn't $7$.",
    'The answer is never **7**',
  ],
)
def test_an_answer_that_is_denied_is_not_guessed(text):
  assert '7' not in extract(text).text
  assert extract(f'{text} So I get 8.').text == '8'


def test_equal_boxes_are_one_answer():
  assert extract('\\boxed{34}. \\boxed{34}').text == '34'
  assert extract('$\\boxed{\\frac12}$ or \\boxed{0.5}').text == '0.5'


def test_a_very_long_completion_is_read_from_its_end():
  filler = 'and so on ' * 100_000
  assert extract(f'{filler} \\boxed{{5}}').text == '5'
