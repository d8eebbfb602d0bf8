"""`verifiers.code`: programs of completions, and fields of examples."""

import os

import mutations
import pytest

from jaxrl_reason.verifiers import code

pytestmark = pytest.mark.skipif(
  not hasattr(os, 'fork'), reason='the sandbox needs fork'
)
ADD = 'def add(a, b):\n  return a + b\n'

PROMPT = 'import math\n\n\ndef area(r):\n    """Of a circle."""\n'
EXAMPLE = {
  'prompt': PROMPT,
  'entry_point': 'area',
  'test': 'import math\ndef check(candidate):\n'
  '  assert math.isclose(candidate(2), 4 * math.pi)\n',
}
WHOLE = 'def area(r):\n    return math.pi * r * r\n'


@pytest.mark.parametrize(
  'completion',
  [
    '    return math.pi * r * r\n',
    'return math.pi * r * r',
    'x = r * r\nreturn math.pi * x',
    'x = r * r\n    return math.pi * x\n',
    '    return math.pi * r * r\n\nprint(area(1)\nclass',
    '    return math.pi * r * r\n\ndef volume(r, h',
    '    return math.pi * square(r)\n\ndef square(x):\n    return x * x\n\n'
    '@cache\ndef volume(\n    r):\n    """Of a',
    WHOLE,
    'import math\n' + WHOLE,
    f'<think>```python\nwrong\n```</think>Sure:\n```python\n{WHOLE}```\nDone.',
    f'```python\nwrong = 1\n```\nbetter:\n```py\n{WHOLE}```\nRun it:\n'
    '```bash\npython a.py\n```',
    f'```python\n{WHOLE}```\nExample:\n```\n>>> area(1)\n3.14\n```',
    f'```Python\n{WHOLE}```\nThis prints:\n```\n3.1',
    f'```\nwrong = 1\n```\nbetter:\n```\n{WHOLE}```\n```text\n3.14\n```',
    f'```\n{WHOLE}',
    f'~~~python\n{WHOLE}~~~',
    '```python\n    return math.pi * r * r\n```',
    f'```python\n{WHOLE}```\n```python\nassert area(0) == 0\n```',
    f'```python\n{WHOLE}```\n```py\nprint(area(1))\nprint(area(',
    f'```\n{WHOLE}```\nOutput:\n```\n3.14 square metres\n```',
    f'```\n{WHOLE}```\nUse:\n```python\narea(1)\n```',
    f'```\nwrong = 1\n```\n```py3\n{WHOLE}```',
    '1. So:\n   ~~~python\n   ' + WHOLE.replace('\n ', '\n    ') + '   ~~~',
    f'1. So:\n   ```python\n\n{WHOLE}   ```',
  ],
)
def test_a_completion_becomes_a_program(completion):
  found = code.reward(completion, EXAMPLE)
  assert found.score == 1.0, found


@pytest.mark.parametrize(
  'prompt',
  [f'Complete this:\n```python\n{PROMPT}```', [{'role': 'user'}]]
  + ['Please write\ndef area(r):\nin Python.', 'The area of a circle?'],
)
def test_prompts_around_or_without_the_beginning(prompt):
  example = {**EXAMPLE, 'prompt': prompt}
  whole = f'```python\nimport math\n{WHOLE}```'
  assert code.reward(whole, example).score == 1.0
  body = '    return math.pi * r * r\n'
  begun = isinstance(prompt, str) and '```' in prompt
  assert code.reward(body, example).score == float(begun)


def test_a_completion_without_code():
  for completion in ('', '  \n', '<think>x</think>', '```python\n```'):
    assert code.reward(completion, EXAMPLE).status == 'no_answer'
  assert code.reward('I cannot do that.', EXAMPLE).score == 0.0


def test_fields_of_tests():
  program = mutations.fenced(ADD) + '\n```python\nprint(add(1, 1))\n```'
  tests = ['assert add(1, 2) == 3']
  for example in (
    {'tests': tests},
    {'answer': tests[0]},
    {'answer': '', 'meta': {'test_list': tests, 'test_setup_code': ''}},
    {'answer': 'x', 'tests': tests},
    {'tests': tests, 'meta': {'tests': ['assert add(1, 2) == 4']}},
  ):
    assert code.reward(program, example).score == 1.0
  with pytest.raises(ValueError, match='no tests'):
    code.reward(program, {'answer': ''})


def blocks(*sources: str) -> str:
  return '\nThen:\n'.join(map(mutations.fenced, sources))


WRONG_ADD = ADD.replace('+', '-')


@pytest.mark.parametrize(
  'sources',
  [
    (WRONG_ADD, 'add = lambda a, b: a + b'),
    (WRONG_ADD, 'from operator import add'),
    (WRONG_ADD, 'from operator import concat as cat, add'),
    (WRONG_ADD, 'sub, add = None, lambda a, b: a + b'),
    (WRONG_ADD, 'add: object = lambda a, b: a + b'),
    (WRONG_ADD, '\ufeff' + ADD),
    (WRONG_ADD, '\ufeffadd = lambda a, b: a + b'),
    # Examples of use define nothing that the tests need.
    (ADD, 'from solution import add\nprint(add(1, 2))'),
    (ADD, 'x = add(1, 2)\nd = Counter([x])\nprint(d)'),
    (ADD, 'from collections import Counter\nprint(Counter([add(1, 2)]))'),
    (ADD, 'seen[add] = lambda add: [add for add in add]'),
  ],
)
def test_the_last_definition_is_the_program(sources):
  tests = ['x = add(1, 2)\nassert x == 3 and Counter([x])[3] == 1']
  found = code.reward(blocks(*sources), {'tests': tests})
  assert found.score == 1.0, found


def test_an_assignment_replaces_the_beginning_of_the_prompt():
  wrong = WHOLE.replace('math.pi', '3')
  found = code.reward(
    blocks(wrong, 'area = lambda r: math.pi * r * r'), EXAMPLE
  )
  assert found.score == 1.0, found
  # A local variable of a body may have the name of the function.
  body = 'area = math.pi * r * r\nreturn area'
  assert code.reward(blocks(body), EXAMPLE).score == 1.0


@pytest.mark.parametrize('mark', ['\ufeff', '```python\n\ufeff', '\ufeff```\n'])
def test_a_byte_order_mark_before_a_program(mark):
  assert code.extract(mark + ADD).strip('`\n') == ADD.strip()
  assert code.reward(mark + WHOLE, EXAMPLE).score == 1.0
