"""`math.reward` requires an evaluated answer that does not repeat the
problem.
"""

import pytest

from jaxrl_reason.verifiers import math
from jaxrl_reason.verifiers.math import numbers, symbolic

# (answer, gold answer, question)
PROBLEMS = [
  ('x = \\sqrt{50}', '5\\sqrt2', 'Simplify \\sqrt{50}.'),
  ('(\\sqrt{50})', '5\\sqrt2', 'Work out \\sqrt{50} and simplify.'),
  ('1\\cdot(\\sqrt{50})', '5\\sqrt2', 'Simplify $\\sqrt{50}$.'),
  ('(x^3+0)\\cdot x^4', 'x^7', 'Simplify $x^3\\cdot x^4$.'),
  ('f(x)=x^2-5x+6', '(x-2)(x-3)', 'Factor x^2-5x+6.'),
  ('x^2-5x+6\\text{ units}', '(x-2)(x-3)', 'Factor $x^2-5x+6$.'),
  ('(|x-3|<5)', '(-2,8)', 'Solve |x-3|<5.'),
  ('0.\\overline{3}', '\\frac13', 'What is 0.\\overline{3}?'),
  ('x=0.\\overline{3}', '\\frac13', 'Write 0.\\overline{3} as a fraction.'),
  ('3\\tfrac12', '\\frac72', 'Convert 3\\tfrac12.'),
  ('[0.75]', '\\frac34', 'Write 0.75 as a fraction'),
  ('\\sqrt{50}=\\sqrt{50}', '5\\sqrt2', 'Simplify $\\sqrt{50}$.'),
  ('\\frac68=\\frac68', '\\frac34', 'Reduce $\\frac{6}{8}$.'),
  ('\\frac{1+i}{1-i}=\\frac{1+i}{1-i}', 'i', 'Evaluate $\\frac{1+i}{1-i}$.'),
  ('3\\tfrac12=3\\tfrac12', '7/2', 'Write $3\\tfrac12$ as a fraction.'),
  ('{x^3\\cdot x^4}', 'x^7', 'Simplify x^3\\cdot x^4'),
  ('{|x-3|<5}', '(-2,8)', 'Solve |x-3|<5'),
  ('\\dfrac{x^5}{x^2}', 'x^3', 'Simplify \\frac{x^5}{x^2}'),
  ('7-3', '4', None),
  ('\\log_4 16', '2', None),
  ('\\gcd(1071,462)', '21', None),
  ('\\sum_{k=1}^{10}k', '55', None),
  ('|x-3|<5', '(-2,8)', 'Solve $|x-3|<5$.'),
  ('30 m+10', '40', None),
  ('84/7', '12', None),
  ('84 \\div 7', '12', None),
  ('\\sqrt{16}', '4', None),
  ('2^{10}', '1024', None),
  ('5!', '120', None),
  ('\\binom{5}{2}', '10', None),
  ('\\sin 30^\\circ', '1/2', None),
  ('\\frac{1}{2}+\\frac13', '5/6', None),
  ('\\arccos\\frac12', '\\frac{\\pi}{3}', None),
  ('x(x+2)', 'x^2+2x', 'Expand $x(x+2)$'),
  ('(x+2)x', 'x^2+2x', 'Expand $x(x+2)$'),
  ('\\sqrt{12}', '2\\sqrt3', 'Simplify $\\sqrt{12}$.'),
  ('0.75', '\\frac34', 'Write $0.75$ as a fraction'),
  ('\\frac{2}{4}', '\\frac12', 'Reduce $\\frac{2}{4}$'),
  ('3(2+5)', '21', None),
  ('1+2+\\sqrt5', '3+\\sqrt5', None),
  ('|-5|', '5', None),
  ('i^2', '-1', None),
  ('e^{\\ln 5}', '5', None),
  ('\\frac{4x}{x}', '4', None),
  ('17_8', '15', None),
  ('\\lfloor 3.7\\rfloor', '3', None),
  ('x=7-3', '4', None),
  ('(7-3, 2+1)', '(4,3)', None),
  ('17 \\bmod 5', '2', 'Compute $17 \\bmod 5$'),
  ('\\lim_{x\\to0}\\frac{\\sin x}{x}', '1', None),
  ('\\int_0^1 x dx', '1/2', None),
  ('2x+3x', '5x', 'Simplify $2x+3x$'),
  ('x^2-5x+6', '(x-2)(x-3)', 'Factor $x^2-5x+6$.'),
  ('2x+1>5', 'x>2', 'Solve 2x+1>5'),
  ('x-1>0', 'x>1', 'Solve $x-1>0$.'),
  ('-x>-1', 'x<1', 'Solve $-x>-1$.'),
  ('x-(7-2)>0', 'x>5', None),
  ('x-\\sqrt{16}>0', 'x>4', None),
  ('-x<-(7-2)', 'x>5', None),
  ('5 K+10', '15', None),
  ('3 \\times 4', '12', None),
  ('8^{2/3}', '4', None),
  ('2^{-3}', '1/8', None),
  ('12\\%\\text{ of }50', '6', None),
  ('\\det\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}', '-2', None),
  ('\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}', '-2', None),
  ('\\frac{7-3}{3}', '4/3', None),
  ('(3+2i)(1-i)', '5-i', None),
  ('(3+2i)+(1-i)', '4+i', None),
  ('\\frac{1}{1+i}', '\\frac{1-i}{2}', 'Simplify $\\frac{1}{1+i}$'),
  ('\\{1,2\\}\\cup\\{3\\}', '\\{1,2,3\\}', None),
  ('(1,5)\\cap(3,8)', '(3,5)', None),
  ('-(-5)', '5', None),
  ('\\max(3,7)', '7', None),
  ('2(3,4)', '(6,8)', None),
  (
    '\\begin{pmatrix}1\\\\2\\end{pmatrix}+\\begin{pmatrix}1\\\\2\\end{pmatrix}',
    '(2,4)',
    None,
  ),
]
ANSWERS = [
  ('0.5', '1/2', 'It rains with probability 0.5. How likely is it dry?'),
  ('1/2', '0.5', 'He eats 1/2 of the cake. How much is left?'),
  (
    '60 minutes',
    '1 hour',
    'A lesson takes 60 minutes. How long are two halves?',
  ),
  ('3.5', '\\frac72', 'Write 3\\tfrac12 as a fraction.'),
  ('\\sqrt{2}', '\\sqrt2', 'Find \\sqrt{2}'),
  ('4', '4', None),
  ('7-3=4', '4', None),
  ('4=7-3', '4', None),
  ('x=4', '4', None),
  ('1/2', '0.5', None),
  ('50\\%', '0.5', None),
  ('0.5', '1/2', None),
  ('\\frac{1}{2}', '50\\%', None),
  ('3\\frac12', '3.5', None),
  ('1.5\\times10^3', '1500', None),
  ('10^{-3}', '0.001', None),
  ('2^{100}', '1267650600228229401496703205376', None),
  ('\\sqrt{12}', '2\\sqrt3', None),
  ('\\frac{\\sqrt2}{2}', '\\frac{1}{\\sqrt2}', None),
  ('-\\ln\\frac12', '\\ln 2', None),
  ('\\frac{1+\\sqrt5}{2}', '\\frac{\\sqrt5+1}{2}', None),
  ('5\\text{ cm}', '5', None),
  ('x>5', '(5,\\infty)', None),
  ('x-5>0', '(5,\\infty)', None),
  ('x-\\frac12>0', 'x>\\frac12', 'Solve $2x-1>0$'),
  ('-x>-1', 'x<1', None),
  ('5 K', '5', None),
  ('300 K', '300\\text{ K}', None),
  ('g(t)=2t', 'f(x)=2x', None),
  ('\\pm 2', '2,-2', None),
  ('x=1,y=2', '(1,2)', None),
  ('3,4', '\\{3,4\\}', None),
  ('2\\pm\\sqrt3', '2+\\sqrt3, 2-\\sqrt3', None),
  ('3:4', '3/4', None),
  ('101_2', '101_2', None),
  ('101', '101_2', None),
  ('2^{10}', '2^{10}', 'a'),
  ('\\binom{5}{2}', '\\binom52', None),
  ('1200', '1,200', 'I have $1,200$'),
  ('3 \\text{ hours } 20 \\text{ minutes}', '200\\text{ minutes}', None),
  ('\\pi', '\\pi', None),
  ('4\\pi\\approx12.57', '12.57', None),
  ('e^2', 'e^{2}', None),
  ('2i', '2i', None),
  ('3+2i', '3+2i', None),
  ('\\frac{3+2i}{5}', '\\frac35+\\frac25i', None),
  ('30^\\circ', '\\frac{\\pi}{6}', None),
  ('\\frac{\\pi}{6}', '30^\\circ', None),
  ('\\sqrt[3]{4}', '4^{1/3}', None),
  ('\\frac{2\\sqrt{3}}{3}', '\\frac{2}{\\sqrt3}', None),
  ('\\$5.00', '5', None),
  ('5', '5', 'Is $5$ odd?'),
  ('x=5', '5', 'If $x=5$'),
  ('six', '6', None),
  ('\\text{six}', '6', None),
  ('-\\frac{3}{-4}', '3/4', None),
  ('\\frac{-3}{4}', '-0.75', None),
  ('\\infty', '\\infty', None),
  ('x \\ge 0', '[0,\\infty)', None),
  ('12', '12\\text{ (to nearest integer)}', None),
  ('5 \\text{ apples}', '5', None),
  ('0.\\overline{3}', '1/3', None),
  ('$72$', '72', None),
  ('18\\text{ or }18.0', '18', None),
  ('\\begin{pmatrix}1\\\\2\\end{pmatrix}', '(1,2)', None),
  ('\\frac13\\begin{pmatrix}1\\\\2\\end{pmatrix}', '(1/3,2/3)', None),
  ('3\\sqrt{2}+2\\sqrt{3}', '2\\sqrt3+3\\sqrt2', None),
  ('P(A)=\\frac{1}{2}', '0.5', None),
  ('90 \\text{ km/h}', '90', None),
  ('5\\text{ cm}^2', '5', None),
  ('1/2', '\\frac{2}{4}', 'x'),
  ('\\frac{12}{5}', '2.4', None),
  ('24\\pi\\text{ cm}^3', '24\\pi', None),
  ('6.02\\times 10^{23}', '6.02 \\cdot 10^{23}', None),
  ('\\cos 20^\\circ', '\\sin 70^\\circ', None),
  ('2^{1/3}', '\\sqrt[3]2', None),
  ('10:30', '10:30 a.m.', None),
  ('10:30 a.m.', '10:30', None),
  ('1.2 thousand', '1200', None),
  ('\\frac{22}{7}\\text{ m}', '22/7', None),
  ('|x|\\le1', '[-1,1]', None),
  ('y=2x+1', '2x+1', 'slope?'),
]


def score(answer, gold, question, **options) -> float:
  example = {'answer': gold, 'prompt': question}
  return math.reward(f'\\boxed{{{answer}}}', example, **options).score


@pytest.mark.parametrize(('answer', 'gold', 'question'), PROBLEMS)
def test_an_answer_that_repeats_the_problem_scores_zero(answer, gold, question):
  assert score(answer, gold, question) == 0.0


@pytest.mark.parametrize(('answer', 'gold', 'question'), ANSWERS)
def test_an_evaluated_answer_scores_one(answer, gold, question):
  assert score(answer, gold, question) == 1.0


DRESSED = [
  ('\\sqrt{50}', '5\\sqrt2', 'Simplify $@$.'),
  ('x^2-4', '(x-2)(x+2)', 'Factor @ completely.'),
  ('\\frac{x^5}{x^2}', 'x^3', 'Simplify $@$.'),
  ('2\\begin{pmatrix}1\\\\2\\end{pmatrix}', '(2,4)', 'Compute $@$.'),
  ('[1,5]\\cup[3,8]', '[1,8]', 'Find the union $@$.'),
  ('60^\\circ', '\\frac{\\pi}{3}', 'Convert $@$ to radians.'),
  ('\\sin 2x', '2\\sin x\\cos x', 'Write $@$ by $\\sin x$.'),
  ('0.75', '\\frac34', 'Write $@$ as a fraction.'),
  ('\\frac{6}{8}', '\\frac34', 'Simplify $@$.'),
  ('2\\frac{1}{3}', '\\frac73', 'Write $@$ as an improper fraction.'),
  ('1400000', '1.4\\times 10^6', 'Express $@$ in scientific notation.'),
  ('264000+12000', '276,000', 'How much is @ in all?'),
  ('900000+600000', '1,500,000', 'Find @.'),
]
DRESSES = [
  'x = @', '@ = x', 'A = @ = B', '(@)', '[@]', '\\{@\\}', '-(-(@))',
  '1\\cdot(@)', '@+0', '(@)+1-1', '(@)^1', '\\frac{@}{1}', '\\frac{2(@)}{2}',
  '2\\cdot(@)-(@)', '\\sqrt{(@)^2}', '|@|', '\\frac{1}{1/(@)}', '@ = @',
  '@ \\approx @', '@ (= @)', '@ \\text{ or } @', '@, @', '\\max(@, @)',
  '(@)\\%\\cdot 100', '@\\text{ units}', '\\$ @', '\\underline{@}', '@ = ?',
  '\\mathrm{Answer:}\\ @', '\\text{The answer is } @', '\\quad @.', 'x \\in @',
]  # fmt: skip


@pytest.mark.parametrize(('formula', 'gold', 'question'), DRESSED)
def test_a_formula_of_the_question_with_text_around_it_scores_zero(
  formula, gold, question
):
  example = {'answer': gold, 'prompt': question.replace('@', formula)}
  for dress in DRESSES:
    answer = dress.replace('@', formula)
    for mark in ('\\boxed{%s}', '#### %s', '<answer>%s</answer>', '$%s$'):
      text = mark.replace('%s', answer)
      assert math.reward(text, example).score == 0.0, text
  for answer in (gold, f'x = {gold}', f'({formula}) = {gold}'):
    assert math.reward(f'\\boxed{{{answer}}}', example).score == 1.0, answer


def test_other_notation_of_a_formula_of_the_question_scores_zero():
  for answer, gold, question in (
    ('\\{17 \\bmod 5\\}', '2', 'Compute $17 \\bmod 5$.'),
    ('50^{1/2}', '5\\sqrt2', 'Simplify $\\sqrt{50}$.'),
    ('|t-3|<5', '(-2,8)', 'Solve $|x-3|<5$.'),
    ('\\frac{ 6 }{ 8 }', '\\frac34', 'Reduce $\\frac{6}{8}$.'),
    ('(6)/(8)', '\\frac34', 'Reduce $\\frac{6}{8}$.'),
    ('6\\div 8', '\\frac34', 'Reduce $\\frac{6}{8}$.'),
    ('.750', '\\frac34', 'Write 0.75 as a fraction.'),
    ('1,400,000', '1.4\\times 10^6', 'Write 1400000 in scientific notation.'),
  ):
    assert score(answer, gold, question) == 0.0, answer
    assert score(answer, gold, 'What is it?', evaluated=False) == 1.0, answer


def test_the_last_operand_of_a_formula_is_not_an_answer():
  for text, gold in (
    ('<answer>The answer is 20-10</answer>', '10'),
    ('#### so it is $6000-3000=?', '3000'),
    ('Is it e^{\\ln 18}', '18'),
    ('It must be \\gcd(96,48)', '48'),
    ('Is it 2!', '2'),
  ):
    assert math.grade(text, gold).score == 0.0, text
  assert math.verify('So she has $20-$10 = $10 left.', '10')


def test_without_the_check_every_equal_answer_scores_one():
  for answer, gold, question in (
    ('7-3', '4', None),
    ('x(x+2)', 'x^2+2x', 'x(x+2)'),
  ):
    assert score(answer, gold, question, evaluated=False) == 1.0


def test_a_copy_of_the_question_is_not_an_answer():
  question = 'Ann reads 3 books a day. How many books does she read in 6 days?'
  for reward in (math.reward, numbers.reward, symbolic.reward):
    for text in (question, question[25:], question.replace(' ', '\n')):
      assert reward(text, {'answer': '6', 'prompt': question}).score == 0.0
      assert reward(text, {'answer': '6'}).score == 1.0
    for text in ('6', '6 days', f'{question}\n#### 6'):
      assert reward(text, {'answer': '6', 'prompt': question}).score == 1.0
