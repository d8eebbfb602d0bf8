"""The verifier of GSM8K and arithmetic: exact digits, any length."""

import json
import pathlib
import re
import time

import pytest

from jaxrl_reason.verifiers import math
from jaxrl_reason.verifiers.math import numbers

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared/data/gsm8k'

EXTRACTED = [
  ('#### 18', '18'),
  ('#### 1,234', '1234'),
  ('#### -7', '-7'),
  ('#### $1,234.50', '1234.5'),
  ('#### -$5', '-5'),
  ('#### $-5', '-5'),
  ('#### 50%', '50'),
  ('#### 18 dollars', '18'),
  ('#### 18.', '18'),
  ('#### 18.00', '18'),
  ('#### 007', '7'),
  ('#### -0.0', '0'),
  ('#### .5', '0.5'),
  ('#### 12,34,567', '1234567'),
  ('#### 3, 4', '3'),
  ('#### 5\n#### 6', '6'),
  ('5 and then 6', '6'),
  ('5 - 3', '3'),
  ('5-3', '3'),
  ('x = -3', '-3'),
  ('(-3)', '-3'),
  ('pages 10–15', '15'),
  ('\u22127', '-7'),
  ('it costs \\$20.', '20'),
  ('1,2', '2'),
  ('2 + 2 = <<2+2=4>>4', '4'),
  ('', None),
  ('none', None),
  ('#### none, 5 before', '5'),
  ('7 #### none', None),
  ('#### Step 1: Eggs\n16-7=9\n#### Step 2: Money\n9*2=18\n\nIt is 18.', '18'),
  ('#### Final Answer:\n18', '18'),
  ('The answer is 18.\n####', '18'),
  ('#### 2. Money\nIt is 18 dollars', '18'),
  ('#### 18\n#### Explanation\nAn egg costs 2 dollars.', '18'),
  ('#### **Answer:** $18\nAn egg costs 2 dollars.', '18'),
  ('#### 5\n#### wait, 6\nBye 7', '6'),
  ('#### 5\n#### The total: 6\nBye 7', '7'),
  ('#### 5\n####\n6', '6'),
  ('#### 5\n#### pi\nDone', None),
  ('####\n18\nok 3', '18'),
  ('#### Eggs\n9 * 2 = 18', '18'),
  ('#### 9 * 2 = 18', '18'),
  ('#### 20 - $2 = $18', '18'),
  ('#### $9 \\times 2 = 18$', '18'),
  ('#### 18 = 9*2', '18'),
  ('#### 9*2', None),
  ('#### 36 / 2 = 18', '18'),
  ('#### $36/2 = $18', '18'),
  ('#### 3/4 of 24 = 18', '18'),
  ('#### 10^3 = 1000', '1000'),
  ('#### x = 9*2 = 18', '18'),
  ('#### 36/2', None),
  ('#### 36/2 = 9*2', None),
  ('#### 10 -5', None),
  ('The area is 18 m^2.', '18'),
  ('= 15.0 m^2', '15'),
  ('It is 18 \\text{ cm}^{3}.', '18'),
  ('#### 18 ft^2', '18'),
  ('It falls at 9.8 m/s^2', '9.8'),
  ('It is 1/2 m^2', None),
  ('It is 5 x^2', None),
  ('5 000', '5000'),
  ('of 12 050 and 2 100 000.', '2100000'),
  ('#### 1 234 567.5', '1234567.5'),
  ('The answer is **1 234**.', '1234'),
  ('It costs $1 234 in all', '1234'),
  ('total = 1 234', '1234'),
  ('100 200 300', '300'),
  ('2 100 dollar bills', '100'),
  ('the answer is between 5 and 2 100 dollar bills', '100'),
  ('1\xa0234\xa0567', '1234567'),
  ('1\u202f234', '1234'),
  ('in 2020 300', '300'),
  ('4 3000', '3000'),
  ('90^\\circ', '90'),
  ('_18_', '18'),
  ('**18**', '18'),
  ('$18/hour', '18'),
]
# The digits are a part of another notation.
PARTS = [
  '1/2', '1 / 2', '3 1/2', '\\frac{1}{2}', '\\frac12', '1e3', '1E-3', '10²',
  '3½', '10^3', '10^{3}', '10^-3', '10**3', '1.5 x 10^3', '12:30', '101_2',
  '5_000', '1{,}234', '1\\,234', '\\sqrt{2}',
]  # fmt: skip


@pytest.mark.parametrize('text', PARTS)
def test_a_part_of_another_notation_is_no_number(text):
  for dress in ('%s', 'So it is 5, or %s.', '#### %s', '#### %s eggs', '$%s$'):
    assert numbers.extract(dress.replace('%s', text)) is None


@pytest.mark.parametrize(('text', 'digits'), EXTRACTED)
def test_extract(text, digits):
  assert numbers.extract(text) == digits


@pytest.mark.parametrize(
  ('completion', 'gold', 'score', 'status'),
  [
    ('so 5', '5', 1.0, 'parsed'),
    ('so 5.0', '5', 1.0, 'parsed'),
    ('so 5.01', '5', 0.0, 'parsed'),
    ('so', '5', 0.0, 'no_answer'),
    ('#### 72', 'steps <<1=1>>\n#### 72', 1.0, 'parsed'),
    ('9' * 9999, '9' * 9999, 1.0, 'parsed'),
    ('9' * 9999, '9' * 9998 + '8', 0.0, 'parsed'),
  ],
)
def test_reward(completion, gold, score, status):
  verdict = numbers.reward(completion, {'answer': gold})
  assert (verdict.score, verdict.status) == (score, status)


@pytest.mark.parametrize(
  'completion',
  ['Let me try 48+24 = 72', 'so 72 </think> I do not know.', '<think>72'],
)
def test_a_number_in_a_thought_is_not_an_answer(completion):
  example = {'answer': '72', 'prompt': 'What is it?\n<think>'}
  verdict = numbers.reward(completion, example)
  assert (verdict.score, verdict.status) == (0.0, 'no_answer')
  assert math.reward(completion, example).score == 0.0
  assert numbers.reward(f'{completion}</think> 72', example).score == 1.0


def test_a_gold_answer_without_a_number_is_an_error():
  with pytest.raises(ValueError, match='has no number'):
    numbers.reward('5', {'answer': 'five'})


def gsm8k_rows() -> list[tuple[str, str]]:
  """Returns (solution, gold) of the test split."""
  if not DATA.exists():
    pytest.skip(f'{DATA} is not here')
  with open(DATA / 'test.jsonl', encoding='utf-8') as f:
    solutions = [json.loads(line)['answer'] for line in f]
  return [(s, s.split('####')[1].strip()) for s in solutions]


WRAPS = [
  '{steps}\n#### {gold}',
  '{steps}\n#### {gold}\n\n',
  '{steps}\n#### ${gold}.00',
  '{steps} So the final answer is {gold}.',
  '{steps}\nThe answer is: **{gold}**',
  '{steps} Therefore $\\boxed{{{gold}}}$.',
  '<think>{steps}</think><answer>{gold}</answer>',
  '{steps}\nAnswer: ${gold}$',
]


@pytest.mark.parametrize('wrap', WRAPS)
def test_real_solutions(wrap):
  """Both verifiers accept correct answers and reject incorrect ones."""
  for solution, gold in gsm8k_rows()[::3]:
    steps = solution.split('####')[0].strip()
    other = str(int(gold.replace(',', '')) + 1)
    for answer, same in ((gold, True), (other, False)):
      completion = wrap.format(steps=steps, gold=answer)
      assert math.verify(completion, gold) == same, completion
      if 'boxed' not in wrap:
        score = numbers.reward(completion, {'answer': gold}).score
        assert (score == 1.0) == same, completion


def test_solutions_without_their_last_line_are_found_by_the_last_number():
  rows = gsm8k_rows()
  right = sum(
    numbers.reward(s.split('####')[0], {'answer': gold}).score
    for s, gold in rows
  )
  assert right / len(rows) > 0.9


def test_ten_thousand_completions_a_second():
  rows = gsm8k_rows()
  start = time.process_time()
  for solution, gold in rows:
    math.verify(solution, gold)
  assert len(rows) / (time.process_time() - start) > 10_000


def test_the_pattern_does_not_match_the_empty_string():
  assert re.fullmatch(numbers.NUMBER, '') is None
