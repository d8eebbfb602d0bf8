"""Generates puzzles with knights, who are truthful, and knaves, who lie.

  prompt    A:nB B:B/C C:nB>
  solution  KKK!A KKN!A KNK!B KNN!C NKK!C#NKN

Each person makes one statement about one or two people. The answer is the kind
of each person in order, K or N. Only one answer is consistent. The steps try
all answers in order, each with the first speaker that it contradicts.
Statements:

  kB   B is a knight          A=B  A and B are of the same kind
  nB   B is a knave           A~B  A and B are of different kinds
  A&B  both are knights       A/B  at least one is a knight
"""

import itertools
import operator

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'knights_knaves'
PEOPLE = 'ABCDEF'

# Kind of a statement -> its truth value, given whether each of the two people
# is a knight. `k` and `n` are about the second person only.
_OF_TWO = {
  '&': operator.and_,
  '/': operator.or_,
  '=': operator.eq,
  '~': operator.ne,
}

Statement = tuple[str, int, int]


def _statement(
  rng: np.random.Generator, speaker: int, people: int
) -> Statement:
  """Samples a statement. `k` and `n` are about another person, since nobody can
  say 'I lie'.
  """
  first, second = sorted(problem.shuffled(rng, range(people))[:2])
  if second == speaker:
    # Only `k` and `n` depend on the order of the pair.
    kind = problem.choose(rng, '&/=~kn')
    return (kind, second, first) if kind in 'kn' else (kind, first, second)
  return problem.choose(rng, '&/=~kn'), first, second


def _show(speaker: int, statement: Statement) -> str:
  kind, first, second = statement
  left = '' if kind in 'kn' else PEOPLE[first]
  return f'{PEOPLE[speaker]}:{left}{kind}{PEOPLE[second]}'


def _is_true(statement: Statement, kinds: tuple[bool, ...]) -> bool:
  kind, first, second = statement
  if kind in 'kn':
    return kinds[second] == (kind == 'k')
  return _OF_TWO[kind](kinds[first], kinds[second])


def _liar(kinds: tuple[bool, ...], statements: list[Statement]) -> int | None:
  """Returns the first speaker whose statement contradicts the kinds."""
  for speaker, statement in enumerate(statements):
    if _is_true(statement, kinds) != kinds[speaker]:
      return speaker
  return None


def generate(
  rng: np.random.Generator, *, min_people: int, max_people: int
) -> problem.Example | None:
  if not 2 <= min_people <= max_people <= len(PEOPLE):
    raise ValueError(
      f'min_people={min_people}, max_people={max_people}; 2 to {len(PEOPLE)}'
    )
  people = problem.between(rng, min_people, max_people)
  statements = [_statement(rng, who, people) for who in range(people)]
  steps, answers = [], []
  for kinds in itertools.product((True, False), repeat=people):
    shown = ''.join('K' if knight else 'N' for knight in kinds)
    liar = _liar(kinds, statements)
    if liar is None:
      answers.append(shown)
    elif not answers:
      steps.append(f'{shown}!{PEOPLE[liar]}')
  if len(answers) != 1:
    return None
  prompt = ' '.join(
    _show(who, statement) for who, statement in enumerate(statements)
  )
  return problem.make_example(NAME, prompt + '>', steps, answers[0])


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_text,
  knobs=dict(
    min_people=3,  # 2 to 6
    max_people=4,
  ),
  harder=dict(min_people=5, max_people=5),
  alphabet=PEOPLE + 'KNkn&/=~!:> ' + problem.MARKER,
  answer_chars='KN',
  kernel='text',
)
