"""Verdicts of `verifiers.math` on answers of people and models."""

import concurrent.futures
import re

import equivalence
import pytest

from jaxrl_reason.verifiers import math
from jaxrl_reason.verifiers.math import symbolic as math_symbolic

GROUPS = equivalence.groups()
PAIRS = equivalence.pairs()


def test_the_set_is_large_and_has_both_kinds():
  assert len(PAIRS) >= 1_500 and len(set(PAIRS)) > 0.98 * len(PAIRS)
  assert 0.4 < sum(same for *_, same in PAIRS) / len(PAIRS) < 0.6


def wrong_verdicts(pairs) -> list:
  return [p for p in pairs if math.verify(p[0], p[1]) != p[2]]


def test_every_pair():
  assert wrong_verdicts(PAIRS) == []


def test_equality_is_symmetric():
  # The gold answer `a` is a variable, and `A` may be a choice. ADB and ABD are
  # similar.
  letters = re.compile('[a-z]|[A-Z]{2,6}')
  swapped = [(gold, text, same) for text, gold, same in PAIRS]
  assert (
    wrong_verdicts([p for p in swapped if not letters.fullmatch(p[1])]) == []
  )


def test_equal_answers_of_one_line_equal_each_other():
  """Equality is transitive, except for omitted units, labels or digits."""
  loose = re.compile(
    r'\\text|%|\$|circ|°|[a-z]{2}|_|@|\.[0-9]{3}|f\(|=|\([A-J]\)|[A-J]|,|[米元℃¥]'
  )
  bad = []
  for _, gold, equal, _ in GROUPS:
    if any(loose.search(text) for text in (gold, *equal)):
      continue
    bad += [(x, y) for x, y in zip(equal, equal[1:]) if not math.verify(x, y)]
  assert bad == []


@pytest.mark.parametrize(
  'wrap',
  [
    'So we find $\\boxed{{{}}}$.',
    'First 17, then 23.\n\nTherefore the final answer is \\boxed{{{}}}.',
    '<think>Is it 99? \\boxed{{98}}</think> It is \\boxed{{{}}}',
    '<think>maybe 99</think><answer>{}</answer>',
    'Counting gives 12.\n#### {}',
    '\\[ {} \\]',
    '$$\n{}\n$$',
    '\\displaystyle {}',
    '{}.',
    '  {}  ',
  ],
)
def test_wrappings_change_nothing(wrap):
  """Tests every third pair, to save time."""
  skip = ('\\boxed', '####', '<', '>', '"')
  some = [p for p in PAIRS[::3] if not any(s in p[0] for s in skip)]
  wrapped = [(wrap.format(text), gold, same) for text, gold, same in some]
  assert wrong_verdicts(wrapped) == []


COMPLETIONS = [
  ('The total cost is $20, so she has $5 left.', '5', True),
  ('The total cost is $20, so she has $5 left.', '20', False),
  ('The answer is $20. I hope it is correct.', '20', True),
  ('So the answer is $\\frac{3}{4}$ or 0.75.', '3/4', True),
  (
    'Answer: Let us think step by step. 3 times 4 is 12. So 12 apples.',
    '12',
    True,
  ),
  (
    'Solution: We have 5 and then 7.\n\nSo she has 12 apples in total.',
    '12',
    True,
  ),
  ('Therefore, the answer is **(B) 12**.', 'B', True),
  ('Therefore, the answer is **(B) 12**.', '12', True),
  ('Therefore, the answer is **(B)**.', 'A', False),
  ('**Answer**: 42', '42', True),
  ('**Answer:** 42', '42', True),
  ('Final answer: x = 5, y = 6', '(5,6)', True),
  ('The answer is \\( \\frac{1}{2} \\).', '0.5', True),
  ('The answer is: $$x=5$$', '5', True),
  ('The answer is Monday because it rains.', 'Monday', True),
  ('The correct option is (C).', 'C', False),
  ('The correct answer is option C.', 'C', True),
  ('The correct answer is C: 15', 'C', True),
  ('Thus, the value is 3.5 meters.', '3.5', True),
  ('### Final Answer\n\n$$\\boxed{\\dfrac{7}{8}}$$\n', '\\frac78', True),
  ('Hence $\\angle ABC = \\boxed{60^\\circ}$.', '60', True),
  (
    'So there are $\\boxed{12}$ ways, not $\\boxed{13}$... wait $12$.',
    '13',
    False,
  ),
  ('The answer is 1,234.', '1234', True),
  ('The answer is 12 square units.', '12', True),
  (
    'the probability is therefore $\\frac{1}{6}$, and not $\\frac{5}{6}$',
    '\\frac{1}{6}',
    True,
  ),
  ('So we get x=3.\nAnswer: 3', '3', True),
  ('答案：$\\sqrt{2}$', '\\sqrt2', True),
  ('故答案为：$\\frac{1}{2}$', '1/2', True),
  ('所以选B', 'B', True),
  (
    'So the final answer is:\n\n\\[\n\\boxed{\\left(-\\infty, 3\\right]}\n\\]',
    'x\\le3',
    True,
  ),
  ('The final answer is **3x + 5**.', '5+3x', True),
  ('The final answer is 3x+5.', '5+3x', True),
  ('He earned 18 dollars per day.\n#### 18', '18', True),
  ('#### \\frac{1}{2}', '0.5', True),
  ('A: 72', '72', True),
  ('#### 18<|endoftext|>', '18', True),
  ('The answer is 18.</s>', '18', True),
  ('#### 18 eggs (a dozen & a half!)', '18', True),
  ('#### $1,018 !! in all', '1018', True),
  ('#### 18 eggs & 3 more', '18', False),
  ('\\boxed{18 \\foo{x}}', '18', False),
  ('The answer is 3/4 of a cup.', '3/4', True),
  ('The solutions are $x=2$ and $x=-3$.', '2,-3', True),
  ('The solutions are x = 2 and x = -3.', '2,-3', True),
  ('The solution is $x = 4$.', '4', True),
  ('Thus the domain is $[0, \\infty)$.', 'x\\ge0', True),
  ('So, $f(x) = 2x+1$.', '2x+1', True),
  ('It takes him 5+3=8 hours, which is 8*60=480 minutes', '480', True),
  ('Mary has 3 apples and Tom has 4. Together they have 7 apples.', '7', True),
  ('...= -5', '-5', True),
  ("so that's 100% of them", '100', True),
  ('<think>I think 5</think>The answer is 6', '6', True),
  ('<think>I think 5</think>\n\n6', '6', True),
  ('\\text{Answer: } 6', '6', True),
  ('x = 5 or x = -5', '\\pm5', True),
  ('The two values are 3 and 4.', '3,4', False),
  ('Answer: None of the above', 'None of the above', True),
  ('The answer is no solution.', '\\emptyset', True),
  ('There is no solution.', '\\text{no solution}', True),
  ('Yes, it is.', 'Yes', True),
  ('No.', 'Yes', False),
  ('The answer is 5.5 hours', '5.5', True),
  ('The answer is 2^{10}.', '1024', True),
  (
    'The answer is 1024. Let me double check. The answer is indeed 1024.',
    '1024',
    True,
  ),
  ('Answer is $12$ since $3\\cdot4=12$', '12', True),
]


@pytest.mark.parametrize(('completion', 'gold', 'same'), COMPLETIONS)
def test_whole_completions(completion, gold, same):
  assert math.verify(completion, gold) == same


FRACTION = re.compile(r'\\frac\{([^{}]*)\}\{([^{}]*)\}')
REWRITES = {
  'dfrac': lambda s: s.replace('\\frac', '\\dfrac'),
  'slash': lambda s: FRACTION.sub(r'((\1)/(\2))', s),
  'sqrt()': lambda s: re.sub(r'\\sqrt\{([^{}]*)\}', r' sqrt(\1)', s),
  'root sign': lambda s: re.sub(r'\\sqrt\{([^{}]*)\}', r'√(\1)', s),
  'caret': lambda s: re.sub(r'\^\{([^{}\\]*)\}', r'^(\1)', s),
  'no left': lambda s: re.sub(r'\\(left|right)(?![a-z])', '', s),
  'big': lambda s: s.replace('\\left', '\\bigl').replace('\\right', '\\bigr'),
  'leq': lambda s: re.sub(r'\\(l|g)e(?![a-z])', r'\\\1eqslant', s),
  'times': lambda s: s.replace('\\cdot', '\\times'),
  'mathrm': lambda s: s.replace('\\text{', '\\mathrm{'),
  'mbox': lambda s: s.replace('\\text{', '\\mbox{'),
  'unicode': lambda s: (
    s.replace('\\pi', 'π')
    .replace('\\infty', '∞')
    .replace('\\cup', '∪')
    .replace('\\pm', '±')
    .replace('-', '−')
    .replace('\\theta', 'θ')
  ),
  'wide': lambda s: (
    s.replace('(', '（').replace(')', '）') if '\\' not in s else s
  ),
}


@pytest.mark.parametrize('name', REWRITES)
def test_notation_changes_nothing(name):
  rewrite = REWRITES[name]
  # 3\frac{1}{2} is a mixed number, 3(1/2) a product; f^{-1} is an inverse.
  excluded = re.compile(r'[0-9] ?\\[dt]?frac|f\^|prime|sum|int_')
  pairs = [
    (rewrite(gold), gold, True)
    for _, gold, *_ in GROUPS
    if rewrite(gold) != gold and not excluded.search(gold)
  ]
  assert len(pairs) > 1 and wrong_verdicts(pairs) == []


DIGIT = re.compile(r'[0-9]')


def test_a_changed_digit_is_a_changed_answer():
  """Tests numbers, fractions, powers, roots, intervals and matrices."""
  plain = re.compile(r'(?:[-+0-9.,()\[\] {}/^]|\\frac|\\sqrt|\\cup|\\pi|x|y)+')
  pairs = []
  for _, gold, *_ in GROUPS:
    if not plain.fullmatch(gold) or '.' in gold or gold == '0':
      continue
    for match in DIGIT.finditer(gold):
      digit = str((int(match[0]) + 3) % 10)
      changed = gold[: match.start()] + digit + gold[match.end() :]
      pairs.append((changed, gold, False))
  assert len(pairs) > 200
  # [0,1] U [1,2] is [0,2] with any digit at the seam below.
  seams = ('[0,1]\\cup[1,2]',)
  assert [p for p in wrong_verdicts(pairs) if p[1] not in seams] == []


@pytest.mark.parametrize(
  ('text', 'status', 'extracted'),
  [
    ('thus \\boxed{5}', 'parsed', '5'),
    ('\\boxed{\\foo{5}}', 'unparsed', '\\foo{5}'),
    ('', 'no_answer', None),
    ('   ', 'no_answer', None),
    ('so 1 + 1 = 2 and that is it, 7 in total', 'parsed', '7'),
  ],
)
def test_status_and_extracted_answer(text, status, extracted):
  verdict = math.grade(text, '6')
  assert (verdict.status, verdict.extracted) == (status, extracted)
  assert verdict.score == 0.0 and verdict.valid


def test_strict_requires_a_marked_answer():
  assert math.verify('it must be 6', '6')
  assert math.grade('it must be 6', '6', strict=True).status == 'no_answer'
  assert math.verify('the answer is 6', '6', strict=True)


def test_unparsed_answers_are_compared_as_text():
  gold = '\\foo{x}{y}'
  assert math.grade('\\boxed{ \\foo{x}{y} }', gold).score == 1.0
  assert math.grade('\\boxed{\\foo{x}{z}}', gold).score == 0.0
  assert math.grade('\\boxed{\\foo{x}{z}}', gold).status == 'unparsed'


def test_a_gold_answer_may_be_a_solution():
  assert math.verify('5', 'Since 2+3=5 we have $\\boxed{5}$.')
  assert math.verify('1,080', '9*120=<<9*120=1080>>1080\n#### 1,080')


def test_guessing_many_answers_does_not_help():
  assert not math.verify('\\boxed{1,2,3,4,5}', '3')
  assert not math.verify('1 or 2 or 3', '3')
  assert not math.verify('\\boxed{3} or maybe \\boxed{4}', '3')
  assert not math.verify('\\boxed{3}, wait, no: \\boxed{4}', '3')


@pytest.mark.parametrize('size', [100, 5_000, 100_000])
def test_integers_of_any_size(size):
  digits = '7' * size
  assert math.verify(f'\\boxed{{{digits}}}', digits)
  assert not math.verify(f'\\boxed{{{digits[:-1]}8}}', digits)
  assert not math.verify(f'\\boxed{{{digits}7}}', digits)


def test_threads_agree_with_the_main_thread():
  some = PAIRS[::7]
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    found = list(threads.map(lambda p: math.verify(p[0], p[1]), some))
  assert found == [same for *_, same in some]


@pytest.mark.parametrize(
  ('found', 'gold', 'same'),
  [
    ('\\sum_{k=1}^{n} k', '\\frac{n(n+1)}{2}', True),
    ('\\sum_{k=1}^{n} k', '\\frac{n(n-1)}{2}', False),
    ('\\sum_{k=1}^{\\infty}\\frac{1}{k^2}', '\\frac{\\pi^2}{6}', True),
    ('\\int_0^1 x^2\\,dx', '\\frac13', True),
    ('\\int_0^1 x^2\\,dx', '\\frac12', False),
    ('\\lim_{x\\to 0}\\frac{\\sin x}{x}', '1', True),
    ('\\prod_{k=1}^{5} k', '120', True),
    ('5', '5', True),
  ],
)
def test_symbolic_reward(found, gold, same):
  verdict = math_symbolic.reward(f'\\boxed{{{found}}}', {'answer': gold})
  assert (verdict.score == 1.0) == same and verdict.valid
