"""Generates short word problems about counts, for models that can read.

  prompt    Mia has 3 apples. Tom gives Mia 4 more. Mia loses 2 of them. How
            many apples does Mia have now?
  solution  3 + 4 = 7, 7 - 2 = 5 #5

A share `plain` of the problems is bare arithmetic, from left to right: What is
3 plus 4, minus 2? The worked solution has a step for every operation. The host
path verifies answers by `verifiers.math.numbers`, which accepts "She has 5
apples now." The fused path verifies them by a kernel that needs the marker.

`wording` 1 has other words, people and things. With longer chains it is the
harder split.
"""

import string

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'word_problems'
PEOPLE = (
  ('Mia', 'Tom', 'Anna', 'Ben', 'Sara', 'Leo', 'Emma', 'Max'),
  ('Priya', 'Omar', 'Lucy', 'Ivan'),
)
THINGS = (
  ('apples', 'books', 'coins', 'pens', 'cards', 'eggs', 'stamps', 'balls'),
  ('shells', 'tickets', 'lemons', 'bricks'),
)
START = (
  '{who} has {n} {things}.',
  'There are {n} {things} in the box of {who}.',
)
EVENTS = {
  '+': (
    (
      '{other} gives {who} {n} more.',
      '{who} buys {n} more.',
      '{who} finds {n} more.',
    ),
    ('Another {n} are put in.', '{other} adds {n}.'),
  ),
  '-': (
    (
      '{who} gives {n} of them to {other}.',
      '{who} loses {n} of them.',
      '{who} sells {n} of them.',
    ),
    ('{other} takes out {n}.', '{n} of them go missing.'),
  ),
  '*': (
    ('{who} then gets {n} times as many.',),
    ('After a week there are {n} times as many.',),
  ),
}
QUESTION = (
  'How many {things} does {who} have now?',
  'What is the number of {things} in the box at the end?',
)
PLAIN = {
  '+': ('plus {n}', 'and {n} added'),
  '-': ('minus {n}', 'with {n} taken away'),
  '*': ('times {n}', 'multiplied by {n}'),
}


def _story(rng: np.random.Generator, chain: list, wording: int) -> str:
  """Writes a chain [(operator, operand)] as a story."""
  who, other = problem.shuffled(rng, PEOPLE[wording])[:2]
  words = {
    'who': who,
    'other': other,
    'things': problem.choose(rng, THINGS[wording]),
  }
  sentences = [START[wording].format(n=chain[0][1], **words)]
  for op, n in chain[1:]:
    event = problem.choose(rng, EVENTS[op][wording])
    sentences.append(event.format(n=n, **words))
  return ' '.join([*sentences, QUESTION[wording].format(**words)])


def _question(chain: list, wording: int) -> str:
  """Writes a chain as a question of bare arithmetic, from left to right."""
  parts = [PLAIN[op][wording].format(n=n) for op, n in chain[1:]]
  return f'What is {chain[0][1]} {", ".join(parts)}?'


def generate(
  rng: np.random.Generator,
  *,
  min_steps: int,
  max_steps: int,
  max_start: int,
  max_operand: int,
  ops: str,
  max_total: int,
  plain: float,
  wording: int,
) -> problem.Example | None:
  total = problem.between(rng, 2, max_start)
  chain, steps = [('', total)], []
  for _ in range(problem.between(rng, min_steps, max_steps)):
    op, n = problem.choose(rng, ops), problem.between(rng, 2, max_operand)
    before, total = total, problem.OPERATIONS[op](total, n)
    if not 0 <= total <= max_total:
      return None
    chain.append((op, n))
    steps.append(f'{before} {op} {n} = {total}')
  bare = rng.random() < plain
  prompt = _question(chain, wording) if bare else _story(rng, chain, wording)
  return problem.make_example(
    NAME, prompt, [', '.join(steps) + ' '], str(total)
  )


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_integer,
  knobs=dict(
    min_steps=1,  # operations in a problem, at least 1
    max_steps=2,
    max_start=20,  # largest initial count, at least 2
    max_operand=9,  # largest other number, at least 2
    ops='++--*',  # any of + - *; repeat one to draw it more often
    max_total=99,  # largest count; chains outside 0 to this are drawn again
    plain=0.25,  # share of bare arithmetic
    wording=0,  # 0 or 1
  ),
  harder=dict(min_steps=3, max_steps=3, wording=1),
  alphabet=string.ascii_letters + problem.DIGITS + " .,?+-*='" + problem.MARKER,
  answer_chars=problem.DIGITS,
  kernel='integer',
  reward='numbers',
  choices=dict(ops=''.join(problem.OPERATIONS)),
)
