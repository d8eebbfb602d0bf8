"""Only one answer scores: no list of guesses, no repeated problem, no crafted
residue.
"""

import random
import subprocess
import sys

import equivalence
import pytest
import sympy

from jaxrl_reason.verifiers import math
from jaxrl_reason.verifiers.math import extraction, numbers
from jaxrl_reason.verifiers.math.expr import chance

PAIRS = equivalence.pairs('one_answer.txt')


def wrong_verdicts(pairs) -> list:
  return [p for p in pairs if math.verify(p[0], p[1]) != p[2]]


def test_every_pair():
  assert len(PAIRS) > 600 and wrong_verdicts(PAIRS) == []


# --- alternatives in a completion -----------------------------------------

GUESSES = [
  '\\boxed{%s} or \\boxed{%s}',
  '\\boxed{%s} or maybe \\boxed{%s}',
  '\\boxed{%s}, possibly \\boxed{%s}',
  '\\boxed{\\boxed{%s} or %s}',
  '\\boxed{%s} or %s',
  'It is %s or \\boxed{%s}.',
  'The answer is %s or %s.',
  'The answer is %s, or maybe it is %s.',
  'The answer is $%s$, or it could be $%s$.',
  'The answer is **%s** or **%s**.',
  '<answer>It is %s or %s.</answer>',
  '#### %s or %s',
  'I think that it is %s or %s',
  'I think that it is $%s$ or $%s$',
  '**%s** or **%s**',
  '**$%s$** or $%s$',
  '$%s$ or **%s**',
  'The answer is **$%s$** or $%s$.',
  'The answer is $%s$ or **%s**.',
  'It is *%s* or *%s*',
  'It is __%s__ or __%s__',
  '\\(%s\\) or \\(%s\\)',
  'The answer is **\\(%s\\)** or **\\(%s\\)**.',
  '#### **%s** or $%s$',
  '<answer>**%s** or $%s$</answer>',
  '<answer>**%s**</answer> or $%s$',
]


@pytest.mark.parametrize('guess', GUESSES)
def test_two_guesses_score_zero(guess):
  text = guess % (12, 35)
  assert [math.verify(text, gold) for gold in ('12', '35')] == [False, False]
  assert math.verify(text, '12, 35')


@pytest.mark.parametrize('guess', GUESSES)
def test_a_value_may_be_written_twice(guess):
  assert math.verify(guess % ('3/4', '0.75'), '0.75')
  assert math.verify(guess % ('0.75', '75\\%'), '0.75')


@pytest.mark.parametrize(
  'quotient', ['**%s** / **%s**', '**%s**/$%s$', '$%s$/**%s**', '*%s*/*%s*']
)
def test_two_marked_values_with_a_slash_score_zero(quotient):
  text = 'I get ' + quotient % (12, 35)
  assert [math.verify(text, gold) for gold in ('12', '35')] == [False, False]


def test_a_product_and_a_power_are_not_emphasis():
  for product, value in (('2*3*4', 24), ('2**3', 8), ('2 * 3 * 4', 24)):
    assert math.verify(product, str(value)) and not math.verify(product, '3')


def test_a_correction_is_not_an_alternative():
  for doubt in ('. No, it should be', ', wait, not that or so:', '. Actually'):
    text = f'\\boxed{{3}}{doubt} \\boxed{{4}}'
    assert math.verify(text, '4') and not math.verify(text, '3')


DENIALS = [
  '%s, not %s', '%s (not %s)', '%s apples and not %s', '%s rather than %s',
  '%s instead of %s', '%s but not %s', '$%s$, not $%s$', '**%s**, not **%s**',
  '%s, not %s apples', '%s, not %s, not 20', '%s, not %s or 20',
  '%s, rather than %s or 20 apples', '%s (not %s nor 20)', '%s, not %s, nor 20',
  '%s and not %s and not 20', '$%s$, not $%s$ or $20$', '$%s$ instead of $%s$',
]  # fmt: skip
DOUBTS = [
  '%s, if not %s', '%s if not %s', '%s or not %s', '%s, not %s but 7',
  '%s, not %s. Or 7', '%s, not %s. Wait, 7', '%s, perhaps not %s',
  '%s, and possibly not %s', '%s, not just %s', '%s (not %s) or 7',
  '%s, not %s, or 7', '%s, not %s or maybe 7', '%s, not %s or 7 possibly',
  '%s, not %s, 7', '%s, not %s and 7', '%s, not %s or 7 works',
]  # fmt: skip
DRESSES = ['The answer is %s.', '#### %s', '<answer>%s</answer>']


@pytest.mark.parametrize('dress', [*DRESSES, 'It is %s.', '%s'])
@pytest.mark.parametrize('denial', DENIALS)
def test_a_denied_value_is_not_an_alternative(dress, denial):
  text = dress.replace('%s', denial) % (5, 6)
  assert math.verify(text, '5') and not math.verify(text, '6')
  assert numbers.extract(text) == '5'


@pytest.mark.parametrize('dress', DRESSES)
@pytest.mark.parametrize('doubt', DOUBTS)
def test_a_denial_in_doubt_is_an_alternative(dress, doubt):
  text = dress.replace('%s', doubt) % (5, 6)
  assert not [gold for gold in '567' if math.verify(text, gold)]


def test_a_denied_value_behind_a_box_is_not_an_alternative():
  for other in (', not 6', ' instead of 6.', ' rather than $6$.', ' (not 6)'):
    assert math.verify(f'\\boxed{{5}}{other}', '5')
    for doubt in ('. Or 7', '. Wait, 7', '\nMaybe 7'):
      assert not math.verify(f'\\boxed{{5}}{other}{doubt}', '5'), doubt


CHOICES = ['A. 5 or B. 6', 'A. 5, B. 6', 'A. 5; B. 6', 'A) 5 or B', 'A. or B.']


@pytest.mark.parametrize('choices', CHOICES)
def test_two_choices_score_zero(choices):
  for text in (f'The answer is {choices}', f'\\boxed{{{choices}}}', choices):
    assert [math.verify(text, gold) for gold in 'AB'] == [False, False]
  assert math.verify('The answer is A. Let us check B. It is wrong.', 'A')


HEDGES = [
  'maybe', 'perhaps', 'possibly', 'alternatively', 'otherwise', 'or even',
  'it could be', 'it might be', 'but maybe', 'or alternatively', 'if not,',
  'either that or',
]  # fmt: skip
MARKS = [
  '\\boxed{12}',
  '$\\boxed{12}$',
  'The answer is 12',
  '#### 12',
  '<answer>12</answer>',
]


@pytest.mark.parametrize('mark', MARKS)
@pytest.mark.parametrize('between', [', {}', ' ({}', '. {}', '\n{}', '; {}'])
def test_a_hedge_after_the_answer_is_a_second_guess(mark, between):
  for hedge in HEDGES:
    for other in ('35', '$35$'):
      text = f'{mark}{between.format(hedge)} {other}'
      paid = [gold for gold in ('12', '35') if math.verify(text, gold)]
      assert paid == [], text


SECONDS = [
  ', or you get {}',
  ', or the number {}',
  ', alternately {}',
  ' xor {}',
  '… or {}',
  ' or\n{}',
  ' or just {}',
  ' (I am not sure, could be {})',
  ' (some would say {})',
  ', depending on rounding {}',
  ', but I would not rule out {}',
  ', {}, one of these',
  ', but {} is also possible',
  ', though {} is possible too',
  '. Another possibility is {}.',
  '. If that is wrong, {}.',
  ', if not then {}',
  '. Depending on the interpretation, it could be {}.',
  '. My second guess is {}.',
  '. Second choice: {}.',
  '. Also acceptable: {}.',
  ', most likely {}',
  ' vs. {}',
  '? Maybe {}?',
  ', potentially {}',
  ', with {} as a second guess',
  '. Alternatively, the answer is {}.',
  '\n\nAlternative answer: {}',
  ' | {}',
  ' | {} |',
  ' || {}',
  ' // {}',
  ' \\mid {}',
  ' \\lor {}',
  ' or rather {}',
  ', or better {}',
  ', or more precisely {}',
  ', or should I say {}',
  ', or was it {}',
  ', or actually {}',
]


@pytest.mark.parametrize('mark', MARKS)
@pytest.mark.parametrize('second', SECONDS)
def test_function_words_with_a_hedge_join_a_second_value(mark, second):
  for other in ('35', '$35$', '**35**', '\\boxed{35}'):
    text = mark + second.format(other)
    assert not [g for g in ('12', '35') if math.verify(text, g)], text


FURTHER = [
  ', {}', '; {}', ' / {}', ' and {}', ' & {}', ' → {}', ' to {}', ' plus {}',
  '. Also {}.', ' (also {})', ', {} works too', ', {} is fine as well',
  '. Both this and {} are correct.', ', a.k.a. {}', ', i.e. {}', ' ≈ {}',
  ', {} would also be accepted', ', take your pick: {}', ', not necessarily {}',
]  # fmt: skip
CORRECTED = [
  ', no, {}', '. No, {}.', '. Wait, {}', ' ... no wait, {}', '. Actually, {}.',
  '\nCorrection: {}', ', I mean {}', '. Scratch that, {}.', '. Make that {}.',
  '. That is wrong, it is {}.', ' (edit: {})', '. On second thought, {}.',
  '. Not quite: {}.', ', er, {}', '. I made a mistake; {}.', '. My bad, {}.',
  '. The correct value is {}.', '. Wait, it should be {}.', ', nope, {}',
]  # fmt: skip


@pytest.mark.parametrize('mark', MARKS)
def test_a_further_value_and_a_correction_refuse_the_answer(mark):
  for second in (*FURTHER, *CORRECTED):
    for other in ('35', '$35$', '**35**'):
      text = mark + second.format(other)
      paid = [g for g in ('12', '35') if math.verify(text, g)]
      corrected = second in CORRECTED and '35' in paid
      assert paid == ['35'][:corrected], text
    if second in FURTHER and 'box' in mark:
      text = mark + second.format('\\boxed{35}')
      assert not [g for g in ('12', '35') if math.verify(text, g)], text
    if 'box' in mark:
      assert math.verify(mark + second.format('12'), '12')


@pytest.mark.parametrize(
  'text',
  [
    '\\boxed{12}. So 35 of the 47 are left.',
    '\\boxed{12}, which is 40% of 30.',
    '\\boxed{12}, as 35 - 23 = 12.',
    '\\boxed{12}, i.e. 12 apples and 5 pears.',
    '\\boxed{12}. Also, 35 people came.',
    '\\boxed{12}. No, it is not 35.',
    '\\boxed{12}. Actually, 3 * 4 = 12.',
    '\\boxed{12}\n\n1. Check the rows.',
    '\\boxed{12}. To check, 3 rows of 4.',
    'We get 35. No, wait, \\boxed{12}.',
    'We get $35$. Correction: $12$',
  ],
)
def test_a_remark_with_words_of_corrections_is_not_a_second_value(text):
  assert math.verify(text, '12')


def test_a_rounding_after_the_answer_is_the_same_answer():
  for link in (', i.e. {}', ' ≈ {}', ' $\\approx {}$', ', that is, {}'):
    assert math.verify('\\boxed{\\sqrt2}' + link.format(1.41), '\\sqrt2')


PROSE = ['It is {}.', 'Hence x = {}.', 'I would say {}.', 'The answer is {}.']
BEFORE = [
  'between {} and {}',
  'one of {} and {}',
  'either {}, {}',
  '{}\nor\n{}',
]


@pytest.mark.parametrize('prose', PROSE)
def test_hedges_in_a_sentence_without_a_mark(prose):
  for second in [*BEFORE, *('{}' + second for second in SECONDS)]:
    for mark in ('{}', '${}$', '**{}**'):
      text = prose.format(second.format(mark.format(12), mark.format(35)))
      assert not [g for g in ('12', '35') if math.verify(text, g)], text


@pytest.mark.parametrize(
  'text',
  [
    '\\boxed{12}, not 35.',
    '\\boxed{12}. It could not be 35.',
    '\\boxed{12}. This might seem surprising, as 35 is larger.',
    '\\boxed{12}. Alternatively, 2 * 6 = 12.',
    '\\boxed{12}.\n\nAlternatively:\n\n1. Count the rows.',
    'The answer is 12. It may be checked: 5 + 7 = 12.',
    '\\boxed{12} (or 12.00 in total)',
    'There are 5 or 6 candidates. The answer is 12.',
    'It could be 12 or 35, but 35 is too large. So \\boxed{12}.',
    'That is 720 minutes, or \\boxed{12} hours.',
    'It takes 12 hours or 720 minutes. The answer is 12.',
    'The answer is probably 12.',
  ],
)
def test_a_remark_is_not_a_second_value(text):
  assert math.verify(text, '12')


def test_or_about_joins_a_rounding():
  for gold in ('\\sqrt2', '1.41'):
    assert math.verify('\\boxed{\\sqrt2}, or about 1.41', gold)
  for gold in ('12', '35'):
    assert not math.verify('\\boxed{12}, or about 35', gold)


NEIGHBOURS = [
  '\\boxed{%s \\approx %s}',
  '\\boxed{x = %s \\approx %s}',
  '\\boxed{%s (= %s)}',
  '\\boxed{%s \\ (=%s)}',
  '\\boxed{%s \\text{ (approximately } %s)}',
  '\\boxed{%s \\simeq %s}',
  'The answer is $%s \\approx %s$.',
  '#### %s ≈ %s',
  '<answer>%s (about %s)</answer>',
  '\\boxed{%s\\text{ cm} \\approx %s\\text{ cm}}',
]


@pytest.mark.parametrize('chain', NEIGHBOURS)
def test_two_neighbouring_integers_never_both_score(chain):
  for n in [*range(1, 60), 99, 199, 999, 1999]:
    for m in (n + 1, n - 1):
      paid = [v for v in (n, m) if math.verify(chain % (n, m), str(v))]
      assert len(paid) < 2, chain % (n, m)


@pytest.mark.parametrize(
  'nine',
  [
    '9\\cos 0', '\\ln e^9', '9e^0', '\\frac{9\\pi}{\\pi}', '-9i^2',
    'e^{\\ln 9}', '\\sqrt2\\sqrt{40.5}', '9(\\sqrt2+1)(\\sqrt2-1)', '9\\%',
    '9\\sin 90^\\circ',
  ],
)  # fmt: skip
def test_an_integer_in_other_notation_has_no_decimals_to_round(nine):
  for chain in (f'{nine} \\approx 10', f'10 \\approx {nine}'):
    paid = [v for v in ('9', '10') if math.verify(f'\\boxed{{{chain}}}', v)]
    assert len(paid) < 2, chain


def test_neighbouring_integers_in_other_notation_never_both_score():
  for text, golds in [
    ('(17,30)\\approx(18,31)', ['(17,30)', '(18,31)']),
    ('17_8 \\approx 16', ['15', '16', '17']),
    ('17\\%\\approx18\\%', ['17', '0.17', '18', '0.18']),
  ]:
    paid = [g for g in golds if math.verify(f'\\boxed{{{text}}}', g)]
    assert len(paid) < 2, (text, paid)


def test_a_rounding_with_fewer_digits_scores_one():
  for chain, golds in [
    ('203.7 \\approx 204', ['203.7', '204']),
    ('\\frac13 \\approx 0.33', ['1/3', '0.33']),
    ('\\sqrt{300} \\approx 17', ['\\sqrt{300}', '17']),
    ('12.57 \\approx 4\\pi', ['4\\pi']),
    ('12.3 \\approx 13', ['13']),
    ('\\frac73 \\approx 3', ['3']),
    ('\\frac13 \\approx 33\\%', ['1/3', '33\\%']),
    ('0.094 \\approx 9\\%', ['9\\%']),
  ]:
    for gold in golds:
      assert math.verify(f'\\boxed{{{chain}}}', gold), (chain, gold)


# --- thoughts --------------------------------------------------------------

MARKED = ['\\boxed{5}', 'the answer is 5', '<answer>5</answer>', '#### 5', '5']


@pytest.mark.parametrize('marked', MARKED)
@pytest.mark.parametrize('opening', ['<think>', '<thinking>', '\n <THINK>\n'])
def test_an_unfinished_thought_is_not_an_answer(marked, opening):
  for text in (opening + marked, f'<think>1</think>{opening}{marked}'):
    for strict in (True, False):
      verdict = math.grade(text, '5', strict=strict)
      assert (verdict.score, verdict.status) == (0.0, 'no_answer')


@pytest.mark.parametrize('marked', MARKED[:-1])
def test_text_outside_of_thoughts_counts(marked):
  assert math.verify(f'<think>6 \\boxed{{6}}</think>{marked}', '5')
  assert math.verify(f'{marked}\n<think>or \\boxed{{6}}', '5')
  assert math.verify(f'<thinking>\\boxed{{6}}</thinking>{marked}', '5')
  assert extraction.extract(f'{marked}\n<think>\\boxed{{6}}').explicit


OPENINGS = [
  '<think>\n', '<thinking>', '<reasoning>\n', '<thought>', '[THINK]',
  '<seed:think>', '< think >', '\u25c1think\u25b7',
  '<|channel|>analysis<|message|>',
]  # fmt: skip


@pytest.mark.parametrize('opening', OPENINGS)
def test_a_thought_begun_by_the_prompt_is_not_an_answer(opening):
  thoughts = ['Let me try 2 + 3 = 5', '\\boxed{5}', '5 <think> or 6']
  for key in ('prompt', 'rendered'):
    example = {'answer': '5', key: f'What is 2 + 3? {opening}'}
    for reward in (math.reward, numbers.reward):
      for thought in thoughts:
        assert reward(thought, example).status == 'no_answer', thought


def test_the_response_after_a_thought_is_read_in_every_format():
  for opening, closing in [
    ('<reasoning>', '</reasoning>'),
    ('[THINK]', '[/THINK]'),
    ('<seed:think>', '</seed:think>'),
  ]:
    for text in (f'{opening}6{closing} 5', f'6{closing}\n#### 5'):
      example = {'answer': '5', 'prompt': f'What? {opening}'}
      assert numbers.reward(text, example).score == 1.0
      assert math.reward(text, example).score == 1.0


# --- prose with prices -----------------------------------------------------

PRICES = [
  'It costs ${a} + ${b} + ${c} = ${total}.',
  'The total cost is ${a} + ${b} + ${c} = ${total}.',
  'She pays ${a} for books, ${b} for pens and ${c} for a bag, ${total} in all.',
  'First she spends ${a}.\nThen ${b} and ${c}.\nIt is ${a}+${b}+${c}=${total}.',
  'He had ${more} and spent ${spent}, so he has ${more} - ${spent} = ${total}.',
  'Together, they earn ${a} + ${b} + ${c} = ${total} a week',
  'They need \\${a} + \\${b} + \\${c} = \\${total} for the trip.',
  'In total that makes $ {a} + $ {b} + $ {c} = $ {total}.',
  'Each pays ${half} so 2 * ${half} = ${double} dollars\nTom: ${total}',
  'Altogether, Ann and Bob spent {a}$ + {b}$ + {c}$ = {total}$.',
]


def priced(count: int):
  rng = random.Random(5)
  for i in range(count):
    a, b, c, half = (rng.randint(2, 900) for _ in range(4))
    total = a + b + c
    spent = rng.randint(1, 400)
    text = PRICES[i % len(PRICES)].format(
      a=a, b=b, c=c, half=half, double=2 * half, total=total, spent=spent,
      more=total + spent,
    )  # fmt: skip
    yield text, str(total)


def test_prices_are_not_formulas():
  cases = list(priced(400))
  assert [text for text, gold in cases if not math.verify(text, gold)] == []
  wrong = [(text, str(int(gold) + 1)) for text, gold in cases]
  assert [case for case in wrong if math.verify(*case)] == []


# --- the draw --------------------------------------------------------------


def drawn() -> int:
  room = 'jaxrl_reason.verifiers.math.expr'
  code = f'from {room} import chance; print(chance.prime(1))'
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  return int(done.stdout)


def test_primes_are_drawn_per_process():
  primes = [drawn(), drawn(), chance.prime(1), chance.prime(2)]
  assert len(set(primes)) == 4
  for prime in primes:
    assert prime.bit_length() == 256 and sympy.isprime(prime)


def test_verdicts_do_not_depend_on_the_draw(monkeypatch):
  pairs = [*equivalence.pairs()[::5], *PAIRS[::2]]
  for key in (b'1', b'2'):
    monkeypatch.setattr(chance, 'KEY', key)
    chance.prime.cache_clear()
    assert wrong_verdicts(pairs) == []
