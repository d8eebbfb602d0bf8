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
]


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
