"""IFEval: each type with responses written by hand, and the published
prompts.
"""

import json
import pathlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import SAMPLES

from jaxrl_reason.verifiers import compose
from jaxrl_reason.verifiers.text import instructions
from jaxrl_reason.verifiers.text.instructions import (
  InstructionError,
  follows,
  reward,
)

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared/data/ifeval'
FEW = settings(max_examples=100, deadline=None, derandomize=True)
MORE, LESS = 'at least', 'less than'
LOW = 'the weather was cold this morning and we went to the market.'

# (id, kwargs, responses that follow it, responses that do not)
CASES = [
  (
    'keywords:existence',
    {'keywords': ['cat', 'C++']},
    ['A CAT that writes c++.', 'concatenate C++'],
    ['A cat.', 'C++ only', 'cat C+'],
  ),
  (
    'keywords:frequency',
    {'keyword': ' cat', 'frequency': 2, 'relation': MORE},
    ['cat Cat', 'concatenated cats', 'cat cat cat'],
    ['cat', 'dog'],
  ),
  (
    'keywords:frequency',
    {'keyword': 'cat', 'frequency': 2, 'relation': LESS},
    ['cat', 'dog'],
    ['cat cat', 'CATCAT'],
  ),
  (
    'keywords:forbidden_words',
    {'forbidden_words': ['cat', 'dog']},
    ['concatenate dogs', 'birds'],
    ['A cat.', 'my DOG!', 'cat, dog'],
  ),
  (
    'keywords:letter_frequency',
    {'letter': 'Q', 'let_frequency': 3, 'let_relation': MORE},
    ['quQq', 'q q q q'],
    ['qq', 'none'],
  ),
  (
    'keywords:letter_frequency',
    {'letter': '!', 'let_frequency': 1, 'let_relation': LESS},
    ['no'],
    ['yes!'],
  ),
  (
    'language:response_language',
    {'language': 'de'},
    [SAMPLES['de']],
    [SAMPLES['en'], SAMPLES['nl'], SAMPLES['th']],
  ),
  (
    'language:response_language',
    {'language': 'zh-cn'},
    [SAMPLES['zh']],
    [SAMPLES['ja']],
  ),
  (
    'length_constraints:number_sentences',
    {'num_sentences': 3, 'relation': MORE},
    ['One. Two! Three?', 'I ran. We hid. They won. You lost'],
    ['One. Two.', 'Dr. X met Mr. Y at 3.5 p.m. today.'],
  ),
  (
    'length_constraints:number_sentences',
    {'num_sentences': 3, 'relation': LESS},
    ['One. Two.', 'None'],
    ['One. Two! Three?'],
  ),
  (
    'length_constraints:number_paragraphs',
    {'num_paragraphs': 2},
    ['one\n***\ntwo', '***\none *** two\n***\n'],
    ['one', 'one\n\ntwo', 'one***two***three', 'one ****** two'],
  ),
  (
    'length_constraints:number_words',
    {'num_words': 4, 'relation': MORE},
    ['one two three four', "don't stop now"],
    ['one two three', 'one-two three'],
  ),
  (
    'length_constraints:number_words',
    {'num_words': 4, 'relation': LESS},
    ['one two three'],
    ['one two three four'],
  ),
  (
    'length_constraints:nth_paragraph_first_word',
    {'num_paragraphs': 2, 'nth_paragraph': 2, 'first_word': 'Then'},
    ['First this.\n\nthen that.', 'A\n\n"THEN!" he said.'],
    ['Then.', 'A\n\nThen\n\nB', 'A\n\nAnd then', 'Then\n\nA', 'A\n\nThens'],
  ),
  (
    'detectable_content:number_placeholders',
    {'num_placeholders': 2},
    ['[name] at [address]', '[] []', '[a [b] c]d]e[f]'],
    ['[name]', '[a\nb] [c]', '(a) (b)'],
  ),
  (
    'detectable_content:postscript',
    {'postscript_marker': 'P.S.'},
    ['Bye.\nP.S. I left.', 'x p. s. y'],
    ['Bye.\nPS I left.', 'Bye.\nP.S'],
  ),
  (
    'detectable_content:postscript',
    {'postscript_marker': 'P.P.S'},
    ['P.P.S. more', 'p. p. s more'],
    ['P.S. more', 'PPS more'],
  ),
  (
    'detectable_content:postscript',
    {'postscript_marker': 'Note (end):'},
    ['NOTE (END): x'],
    ['Note end: x'],
  ),
  (
    'detectable_format:number_bullet_lists',
    {'num_bullets': 2},
    ['* a\n* b', 'Text\n  - a\n\n  * b', '*a\n-b', '*\na\n* b'],
    ['* a', '* a\n* b\n* c', '** a\n** b', '1. a\n2. b', 'a * b', '*\n* a'],
  ),
  (
    'detectable_format:constrained_response',
    {},
    ['My answer is maybe.', 'Well. My answer is no. Sorry.'],
    ['my answer is yes.', 'My answer is perhaps.', 'yes'],
  ),
  (
    'detectable_format:number_highlighted_sections',
    {'num_highlights': 2},
    ['*one* and *two*', '**one** and *two*', '**a**\n**b**'],
    ['*one*', '* one\n* two', '** ** **', '*one\ntwo* x', '_a_ _b_'],
  ),
  (
    'detectable_format:multiple_sections',
    {'section_spliter': 'SECTION', 'num_sections': 2},
    ['SECTION 1\na\nSECTION 2\nb', 'SECTION1 SECTION2 SECTION3'],
    ['SECTION 1', 'Section 1\nSection 2', 'SECTION A SECTION B'],
  ),
  (
    'detectable_format:json_format',
    {},
    ['{"a": [1, 2]}', '```json\n{"a": 1}\n```', '```\n[1]\n```', '5'],
    ['{a: 1}', 'Here: {"a": 1}', '{"a": 1', '[' * 100_000],
  ),
  (
    'detectable_format:title',
    {},
    ['<<poem of joy>>\nfirst line', 'a << b >>', '<<<x>>>'],
    ['<poem>', '<<>>', '<< >>', '<<a\nb>>', '>>a<<'],
  ),
  (
    'combination:two_responses',
    {},
    ['one\n******\ntwo', '******one******two******'],
    ['one', 'one******one', 'a******b******c', 'a************b'],
  ),
  (
    'combination:repeat_prompt',
    {'prompt_to_repeat': ' Write a poem.'},
    ['write a poem. Roses are red', '\nWrite a poem.'],
    ['Sure! Write a poem.', 'Write a story.'],
  ),
  (
    'startend:end_checker',
    {'end_phrase': 'Any questions? '},
    ['Well. any questions?', 'x "Any questions?"\n'],
    ['Any questions? No.', 'Questions?'],
  ),
  (
    'startend:quotation',
    {},
    ['"All of it."', ' "a" b "c" '],
    ['All of it.', '"All of it.', '"', "'a'", '\u201ca\u201d'],
  ),
  (
    'change_case:capital_word_frequency',
    {'capital_frequency': 2, 'capital_relation': MORE},
    ['ONE and TWO', "I'M", 'A well-KNOWN THING, REALLY'],
    ['ONE and two', 'One Two', 'WELL-KNOWN'],
  ),
  (
    'change_case:capital_word_frequency',
    {'capital_frequency': 2, 'capital_relation': LESS},
    ['ONE and two', 'none'],
    ['ONE TWO'],
  ),
  (
    'change_case:english_capital',
    {},
    [LOW.upper(), 'OK 42!'],
    [LOW, LOW.capitalize(), SAMPLES['de'].upper(), '42'],
  ),
  (
    'change_case:english_lowercase',
    {},
    [LOW, 'ok, 42!'],
    [LOW.upper(), LOW.capitalize(), SAMPLES['fr'].lower(), '42'],
  ),
  ('punctuation:no_comma', {}, ['one; two'], ['one, two']),
]


@pytest.mark.parametrize('case', CASES, ids=lambda case: case[0])
def test_following_and_violating_responses(case):
  instruction, kwargs, right, wrong = case
  for response in right:
    assert follows(response, instruction, kwargs), response
  for response in [*wrong, '', ' \n']:
    assert not follows(response, instruction, kwargs), response


def test_every_type_has_a_case():
  assert {case[0] for case in CASES} == set(instructions.CHECKS)
  assert len(instructions.CHECKS) == 25


def prompts() -> list[dict]:
  if not DATA.exists():
    pytest.skip(f'{DATA} is not here')
  with open(DATA / 'input_data.jsonl', encoding='utf-8') as f:
    return [json.loads(line) for line in f]


def test_the_published_prompts_are_accepted():
  """Every kwarg of every prompt is valid, and a blank response fails all."""
  seen = set()
  for example in prompts():
    for instruction, kwargs in zip(
      example['instruction_id_list'], example['kwargs']
    ):
      values = instructions.read(instruction, kwargs)
      assert values.keys() == {k for k, v in kwargs.items() if v is not None}
    seen |= set(example['instruction_id_list'])
    for loose in (False, True):
      verdict = reward(' ', example, loose=loose)
      assert (verdict.score, verdict.status) == (0.0, 'no_answer')
      assert len(verdict.parts) == len(example['instruction_id_list'])
      full = reward(example['prompt'], example, loose=loose, score='fraction')
      assert full.score == sum(full.parts.values()) / len(full.parts)
  assert len(prompts()) > 500 and seen == set(instructions.CHECKS)


EXAMPLE = {
  'instruction_id_list': ['punctuation:no_comma', 'startend:quotation'],
  'kwargs': [{}, {'num_words': None}],
}


def test_scores():
  assert reward('"fine"', EXAMPLE).score == 1.0
  verdict = reward('fine', EXAMPLE)
  assert verdict.score == 0.0
  assert dict(verdict.parts) == {
    'punctuation:no_comma': 1.0,
    'startend:quotation': 0.0,
  }
  assert reward('fine', EXAMPLE, score='fraction').score == 0.5
  with pytest.raises(ValueError, match='some'):
    reward('fine', EXAMPLE, score='some')


def test_the_column_of_a_reward_with_parts_of_its_own():
  names = compose.part_names('instructions')
  verdicts = [reward('"fine"', EXAMPLE), reward('fine', EXAMPLE)]
  assert compose.columns(verdicts, names)[1] == [[1.0], [0.0]]


def test_the_response_is_the_text_after_the_thought():
  assert reward('<think>a, b</think>"fine"', EXAMPLE).score == 1.0
  assert reward('<think>"fine"', EXAMPLE).status == 'no_answer'
  assert reward('<think>"fine"', EXAMPLE, part='all').score == 0.0


def test_an_instruction_given_twice_has_two_parts():
  example = {
    'instruction_id_list': ['keywords:existence'] * 2,
    'kwargs': [{'keywords': ['a']}, {'keywords': ['b']}],
  }
  parts = reward('a', example).parts
  assert dict(parts) == {'keywords:existence': 1.0, 'keywords:existence#2': 0.0}


@pytest.mark.parametrize(
  'response',
  [
    '"fine"',
    'Sure:\n"fine"',
    '"fine"\nBye, now',
    'Sure, here:\n"fine"\nBye',
    '**"fine"**',
    'Sure:\n*"fine"*',
    '*"fine"*\nBye',
    'Sure:\n*"fine"*\nBye',
  ],
)
def test_the_eight_variants_of_loose(response):
  assert reward(response, EXAMPLE, loose=True).score == 1.0
  assert reward(response, EXAMPLE).score == float(response == '"fine"')
  assert reward(f'x\n{response}\nx', EXAMPLE, loose=True).score == float(
    response in ('"fine"', '**"fine"**')
  )


@pytest.mark.parametrize(
  ('instruction', 'kwargs', 'words'),
  [
    ('keywords:all', {}, 'keywords:all.*unknown'),
    ('startend:quotation', {'n': 1}, r"does not take \['n'\]"),
    ('length_constraints:number_words', {'num_words': 3}, "lacks.*'relation'"),
    (
      'length_constraints:number_words',
      {'num_words': -1, 'relation': MORE},
      'num_words=-1',
    ),
    (
      'length_constraints:number_words',
      {'num_words': 1, 'relation': 'at most'},
      "relation='at most'",
    ),
    ('keywords:existence', {'keywords': 'cat'}, 'keywords=.cat'),
    ('keywords:existence', {'keywords': []}, 'keywords='),
    (
      'keywords:letter_frequency',
      {'letter': 'ab', 'let_frequency': 1, 'let_relation': MORE},
      'letter=.ab',
    ),
    ('language:response_language', {'language': 'xx'}, 'language=.xx'),
    ('startend:end_checker', {'end_phrase': ' '}, 'end_phrase='),
    (
      'length_constraints:nth_paragraph_first_word',
      {'num_paragraphs': 1, 'nth_paragraph': 0, 'first_word': 'a'},
      'nth_paragraph=0',
    ),
  ],
)
def test_an_invalid_instruction_is_named(instruction, kwargs, words):
  with pytest.raises(InstructionError, match=words):
    follows('text', instruction, kwargs)


@pytest.mark.parametrize(
  'example',
  [
    {},
    {'instruction_id_list': [], 'kwargs': []},
    {'instruction_id_list': ['punctuation:no_comma'], 'kwargs': []},
  ],
)
def test_an_invalid_example_is_an_error(example):
  with pytest.raises(ValueError, match='instruction'):
    reward('text', example)


MARKS = st.sampled_from(
  [*'*-<>[]"{}.,!? \n', '***', '******', '<<', '>>', 'P.S.', 'SECTION 1', 'a']
)
SOUP = st.one_of(st.text(max_size=60), st.lists(MARKS).map(''.join))


@FEW
@given(SOUP)
def test_every_check_is_total(response):
  for instruction, kwargs, _, _ in CASES:
    strict = follows(response, instruction, kwargs)
    assert strict in (True, False)
    example = {'instruction_id_list': [instruction], 'kwargs': [kwargs]}
    for loose in (False, True):
      verdict = reward(response, example, loose=loose, part='all')
      assert (
        verdict.score >= float(strict) if loose else verdict.score == strict
      )


PIECES = [
  *'*-<>[]".?!\' \nPa1_\u0301\u3002',
  *'**|* |*\n|<<|<<a|[a|. |a. |p.|p. |SECTION |n\'t|```|{"a":'.split('|'),
]
HOSTILE = [piece * (100_000 // len(piece)) for piece in PIECES]


@pytest.mark.parametrize('response', HOSTILE, ids=lambda r: repr(r[:4]))
def test_a_hundred_thousand_characters_are_checked_quickly(response):
  start = time.process_time()
  for instruction, kwargs, _, _ in CASES:
    follows(response, instruction, kwargs)
  # 33 checks; a quadratic one alone would take minutes.
  assert time.process_time() - start < 10.0
