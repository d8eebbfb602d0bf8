"""Puzzle checkers against definitions, on hostile text, on bad instances."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from puzzle_instances import CASES

from jaxrl_reason import tasks
from jaxrl_reason.rewards import fields, puzzles

FEW = settings(max_examples=100, deadline=None, derandomize=True)
NAMES = sorted(puzzles.PUZZLES)


def judged(name, answer, instance, **knobs):
  example = {'puzzle': name, 'meta': instance}
  return puzzles.reward(f'<answer>{answer}</answer>', example, **knobs)


def instance_of(name, seed=0):
  return CASES[name](random.Random(seed))


def test_every_puzzle_has_instances():
  assert NAMES == sorted(CASES)


@pytest.mark.parametrize('name', NAMES)
def test_a_checker_agrees_with_the_definition(name):
  right = wrong = 0
  for seed in range(25):
    instance, answers = instance_of(name, seed)
    for answer, solved in answers:
      verdict = judged(name, answer, instance)
      assert verdict.score == float(solved), (instance, answer)
      # Partial credit never makes a wrong answer right, nor the reverse.
      share = judged(name, answer, instance, threshold=0).score
      assert 0 <= share <= 1 and (share == 1) == solved, (instance, answer)
      right, wrong = right + solved, wrong + (not solved)
  assert right > 5 and wrong > 20


PETS = {
  'attributes': {'pet': ['cat', 'dog']},
  'clues': [['left', 'dog', 'cat']],
}
FORMS = {
  'countdown': [
    ({'numbers': [3, 7, 2, 5], 'target': 24}, '3 × 7 + 5 − 2', 1),
    ({'numbers': [3, 7, 2, 5], 'target': 24}, '$3\\times 7+5-2=24$', 1),
    ({'numbers': [3, 7, 2, 5], 'target': 24}, '3*7+5-2=25', 0),
    ({'numbers': [3, 7, 2, 5], 'target': 24}, '3*7+5-2=24=24', 0),
    ({'numbers': [3, 7, 2, 3], 'target': 21}, '3*7', 1),
    ({'numbers': [3, 7, 2], 'target': 21, 'use': 'all'}, '3*7', 0),
    ({'numbers': [3, 7], 'target': 9}, '3*3', 0),
    ({'numbers': [3, 7], 'target': 37}, '37', 0),
    ({'numbers': [2, 3], 'target': 8}, '2**3', 0),
    ({'numbers': [2, 3], 'target': 0}, '2//3', 0),
    ({'numbers': [75, 100, 25000], 'target': 2500000}, '100*25000', 1),
  ],
  'game24': [
    ({'numbers': [3, 3, 8, 8]}, '8/(3-8/3)', 1),
    ({'numbers': [3, 3, 8, 8]}, '**8/(3-8/3)**', 1),
    ({'numbers': [1, 5, 5, 5]}, '5*(5-1/5) = 24', 1),
  ],
  'n_queens': [
    ({'size': 4}, '[1, 3, 0, 2]', 1),
    ({'size': 4}, '2, 4, 1, 3', 1),
    ({'size': 4}, '(1,2), (2,4), (3,1), (4,3)', 1),
    ({'size': 4}, '. Q . .\n. . . Q\nQ . . .\n. . Q .', 1),
    ({'size': 4}, '1 3 0', 0),
    ({'size': 4}, '1 3 0 9', 0),
    ({'size': 1}, '1', 1),
  ],
  'maze': [
    ({'maze': ['S.', '#G']}, 'right, down', 1),
    ({'maze': ['S.', '#G']}, '→↓', 1),
    ({'maze': ['S.', '#G']}, '["R", "D"]', 1),
    ({'maze': ['S.', '#G']}, '[(0, 0), (0, 1), (1, 1)]', 1),
    ({'maze': ['S.', '#G']}, '[(0, 1), (1, 1)]', 0),
    ({'maze': ['S.', '#G']}, '[(0, 0), (1, 1)]', 0),
    ({'maze': ['S.', '#G']}, 'down, right', 0),
    ({'maze': ['S.', '#G']}, 'go right then down', 0),
    ({'maze': ['S.', '#G']}, 'RDU', 0),
    ({'maze': ['SG..']}, 'RRL', 1),
    ({'maze': ['SG..'], 'shortest': True}, 'RRL', 0),
  ],
  'sorting': [
    ({'items': ['pear', 'fig', 'Fig']}, 'Fig, fig, pear', 1),
    ({'items': [2, 1.5, 10]}, '1.50 2 10', 1),
    ({'items': [2, 1]}, '["1", "2"]', 1),
    ({'items': [2, 1]}, '1 2 2', 0),
    ({'items': [2, 1]}, '1 nan', 0),
    ({'items': [10**20 + 1, 10**20]}, f'{10**20} {10**20 + 1}', 1),
    ({'items': [10**20 + 1, 10**20]}, f'{10**20} {10**20}', 0),
  ],
  'base_conversion': [
    ({'number': 255, 'to_base': 16}, '0xFF', 1),
    ({'number': 5, 'to_base': 2}, '0b101', 1),
    ({'number': 5, 'to_base': 2}, '$101_2$', 1),
    ({'number': 5, 'to_base': 2}, '101_{3}', 0),
    ({'number': 1, 'to_base': 16}, '0b1', 0),
    ({'number': 0xB1, 'to_base': 16}, '0B1', 1),
    ({'number': '1_0', 'from_base': 2}, '2', None),
    ({'number': 5, 'to_base': 2}, '1_0_1', 0),
    ({'number': 5, 'to_base': 2}, '\u0661\u0660\u0661', 0),
  ],
  'satisfiability': [
    ({'clauses': [[1, 2], [-1]]}, '{"x1": false, "x2": true}', 1),
    ({'clauses': [[1, 2], [-1]], 'variables': ['p', 'q']}, 'p: F; q: T', 1),
    ({'clauses': [[1], [2]]}, '1', 0),  # 2 may matter
    ({'clauses': [[1], [1, 2]]}, '1', 1),  # 2 may not
    ({'clauses': [[1]]}, '1 -1', 0),
    ({'clauses': [[1]]}, '1 2', 0),
  ],
  'graph_colouring': [
    (
      {'nodes': ['A', 'B'], 'edges': [['A', 'B']], 'colours': ['red', 'blue']},
      '{"A": "red", "B": "blue"}', 1,
    ),
    (
      {'nodes': ['A', 'B'], 'edges': [['A', 'B']], 'colours': ['red', 'blue']},
      'A -> red, B -> blue, A -> blue', 0,
    ),
    (
      {'nodes': ['A', 'B'], 'edges': [['A', 'B']], 'colours': ['red', 'blue']},
      'red blue', 1,
    ),
    ({'nodes': ['A', 'B'], 'edges': [['A', 'B']], 'colours': 2}, 'A=1, B=3', 0),
  ],
  'knights_knaves': [
    (
      {'people': ['A', 'B'], 'statements': [['A', ['knave', 'B']]]},
      'A=knight\nB=knave', 1,
    ),
    (
      {'people': ['A', 'B'], 'statements': [['A', ['knave', 'B']]]},
      'A is not a knight, B is a knight', 0,
    ),
    (
      {'people': ['A', 'B'], 'statements': [['A', ['knave', 'B']]]},
      '{"A": "knight", "B": "knave"}', 1,
    ),
  ],
  'zebra': [
    (
      PETS,
      '| House | Pet |\n|---|---|\n| 1 | dog |\n| 2 | cat |', 1,
    ),
    (
      PETS,
      '{"House 1": {"pet": "dog"}, "House 2": {"pet": "cat"}}', 1,
    ),
    (
      PETS,
      '[{"pet": "dog"}, {"pet": "cat"}]', 1,
    ),
    (
      PETS,
      '1: dog\n2: cat\n1: cat', 0,
    ),
  ],
  'scheduling': [
    (
      {'durations': {'A': 3, 'B': 1}, 'precedence': [['A', 'B']]},
      '{"A": 0, "B": 3}', 1,
    ),
    (
      {'durations': {'A': 3, 'B': 1}, 'precedence': [['A', 'B']]},
      'A starts at 0; B: 2', 0,
    ),
    ({'durations': {'A': 3}}, 'A=-1', 0),
    ({'durations': {'A': 3}}, 'A=1.5', 0),
  ],
  'sudoku': [],
  'lis': [({'numbers': [3, 1, 2]}, '[1, 2]', 1), ({'numbers': [1]}, '', 0)],
}  # fmt: skip


@pytest.mark.parametrize(
  ('name', 'instance', 'answer', 'score'),
  [(name, *row) for name, rows in FORMS.items() for row in rows],
)
def test_forms_of_answers(name, instance, answer, score):
  if score is None:
    with pytest.raises(fields.FieldError):
      judged(name, answer, instance)
  else:
    assert judged(name, answer, instance).score == score


@pytest.mark.parametrize(
  'name', ['countdown', 'game24', 'lis', 'maze', 'satisfiability', 'sorting']
)
def test_nothing_hides_behind_a_long_gap(name):
  instance, answers = instance_of(name)
  good = next(answer for answer, solved in answers if solved)
  for gap in (1, 1000, 5000, 40_000, 90_000):
    assert judged(name, f'{good}{" " * gap}%', instance).score == 0.0


@pytest.mark.parametrize(
  'shown',
  [
    '1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1',
    '1234\n3412\n2143\n4321',
    '1234341221434321',
    '[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]',
    '| 1 2 | 3 4 |\n| 3 4 | 1 2 |\n+-----+-----+\n| 2 1 | 4 3 |\n| 4 3 | 2 1 |',
    '1 0 0 4\n0 4 1 0\n0 0 0 0\n0 0 0 1\nbecomes\n'
    '1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1\nas one sees.',
  ],
)
def test_forms_of_grids(shown):
  grid = [[1, 0, 0, 4], [0, 4, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
  assert judged('sudoku', shown, {'grid': grid}).score == 1.0
  wrong = shown.replace('4', '3')
  assert judged('sudoku', wrong, {'grid': grid}).score == 0.0


@pytest.mark.parametrize(
  ('completion', 'score', 'status'),
  [
    ('<think>1+2</think>The answer is 1+2', 1, 'parsed'),
    ('<think>1+2</think>2*1', 0, 'parsed'),
    ('so \\boxed{1+2}', 1, 'parsed'),
    ('**Answer:** 1+2', 1, 'parsed'),
    ('Try 2+2.\n#### 1+2', 1, 'parsed'),
    ('Solution:\n```\n1+2\n```', 1, 'parsed'),
    ('1+2', 1, 'parsed'),
    ('<think>1+2', 0, 'no_answer'),
    ('<answer></answer>', 0, 'no_answer'),
    ('', 0, 'no_answer'),
    ('I cannot say', 0, 'unparsed'),
    ('Answer: 1+2. Answer: 2+2', 0, 'parsed'),
  ],
)
def test_where_the_answer_stands(completion, score, status):
  example = {'task': 'countdown', 'meta': {'numbers': [1, 2], 'target': 3}}
  verdict = puzzles.reward(completion, example)
  assert (verdict.score, verdict.status) == (score, status)


def test_thresholds_of_partial_credit():
  instance = {'clauses': [[1], [2], [3], [-3]]}
  for threshold, score in ((1, 0), (0.75, 0.75), (0.76, 0), (0, 0.75)):
    verdict = judged('satisfiability', '1 2 3', instance, threshold=threshold)
    assert verdict.score == score
  with pytest.raises(ValueError, match='threshold'):
    judged('satisfiability', '1', instance, threshold=2)


def test_settings_hold_for_every_example():
  instance = {'numbers': [1, 2, 3], 'target': 3}
  assert judged('countdown', '1+2', instance).score == 1
  assert judged('countdown', '1+2', instance, use='all').score == 0
  with pytest.raises(ValueError, match='shortest'):
    judged('countdown', '1+2', instance, shortest=True)
  with pytest.raises(fields.FieldError, match='chess'):
    judged('chess', 'e4', {})


@pytest.mark.parametrize('name', NAMES)
def test_a_malformed_instance_is_an_error_that_names_its_field(name):
  instance, answers = instance_of(name)
  for field, needed in puzzles.schema(name).items():
    below = () if field in ('number', 'target') else (-1,)
    for bad in (object(), [object()], {'x': object()}, '!' * 300, 1.5, *below):
      for answer in (answers[0][0], '', 'garbage'):
        with pytest.raises(fields.FieldError, match=f'{field}'):
          judged(name, answer, instance | {field: bad})
    if needed:
      rest = {k: v for k, v in instance.items() if k != field}
      with pytest.raises(fields.FieldError, match=field):
        judged(name, answers[0][0], rest)


PIECES = (
  *'[](){},;:|#\n "=+-*/_.TFQUDLR→019azx', '10 ', 'A=1', 'Ann=knight', '```\n',
  'Ann is a ', 'v ', '1: red', 'up, ', '9' * 30, '((', '{"', '0x', 'answer:',
  '\u0661', '\u00b2', '**', '****', '\\boxed{', '<answer>', '====', '1 2 3 4\n',
)  # fmt: skip


@pytest.mark.parametrize('name', NAMES)
def test_long_garbage_takes_no_time(name):
  instance, answers = instance_of(name)
  good = next(answer for answer, solved in answers if solved)
  start = time.process_time()
  for piece in PIECES:
    text = piece * (100_000 // len(piece))
    for completion in (text, f'<answer>{text}</answer>', good + text):
      example = {'puzzle': name, 'meta': instance}
      score = puzzles.reward(completion, example, threshold=0).score
      assert 0 <= score <= 1
      if completion != good + text:
        assert score < 1, piece
  # 100 texts of 100,000 characters; a second of CPU for each would be a hang.
  assert time.process_time() - start < 30


@pytest.mark.parametrize('name', NAMES)
@FEW
@given(
  st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=12).map(''.join),
  )
)
def test_total(name, text):
  instance, _ = instance_of(name)
  verdict = judged(name, text, instance, threshold=0)
  assert 0 <= verdict.score <= 1 and verdict.status != 'error'


# --- the task families hold to the same rules ----------------------------


def problems(name, n=60):
  return [tasks.example(name, 5, i, split='train') for i in range(n)]


@pytest.mark.parametrize('name', ['countdown', 'lis'])
def test_families_that_keep_their_instance_are_puzzles_as_they_are(name):
  for example in problems(name):
    assert puzzles.reward(example['answer'], example).score == 1.0


def test_knights_and_knaves_of_the_family():
  kinds = {
    'k': lambda a, b: ['knight', b],
    'n': lambda a, b: ['knave', b],
    '&': lambda a, b: ['and', ['knight', a], ['knight', b]],
    '/': lambda a, b: ['or', ['knight', a], ['knight', b]],
    '=': lambda a, b: ['same', ['knight', a], ['knight', b]],
    '~': lambda a, b: ['not', ['same', ['knight', a], ['knight', b]]],
  }
  for example in problems('knights_knaves'):
    said = re.findall(r'(\w):(\w?)([kn&/=~])(\w)', example['prompt'])
    instance = {
      'people': [who for who, *_ in said],
      'statements': [[who, kinds[kind](a, b)] for who, a, kind, b in said],
    }
    answer = example['answer']
    assert judged('knights_knaves', answer, instance).score == 1.0
    wrong = ('K' if answer[0] == 'N' else 'N') + answer[1:]
    assert judged('knights_knaves', wrong, instance).score == 0.0


def test_satisfiability_of_the_family():
  for example in problems('satisfiability'):
    clauses = [
      [(ord(x.lower()) - 96) * (1 if x.islower() else -1) for x in clause]
      for clause in example['prompt'].rstrip('>').split()
    ]
    instance = {'clauses': clauses, 'variables': 3}
    scores = {
      row: judged('satisfiability', row, instance).score
      for row in (f'{i:03b}' for i in range(8))
    }
    right = example['answer'].translate(str.maketrans('TF', '10'))
    assert [row for row, score in scores.items() if score] == [right]


def test_sudoku_of_the_family():
  for example in problems('sudoku4'):
    rows = example['prompt'].rstrip('>').replace('.', '0').split()
    instance = {'grid': [[int(x) for x in row] for row in rows]}
    answer = example['answer'].replace(' ', '\n')
    assert judged('sudoku', answer, instance).score == 1.0


def test_base_conversion_of_the_family():
  for example in problems('base_conversion'):
    number, start, end = re.findall('[0-9a-f]+', example['prompt'])
    assert int(number, int(start)) == int(example['answer'], int(end))
    instance = {'number': number, 'from_base': int(start), 'to_base': int(end)}
    assert judged('base_conversion', example['answer'], instance).score == 1.0
