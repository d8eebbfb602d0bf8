"""Problems composed of several problems of a data set."""

import json
import re

import numpy as np
import pytest
import tiny_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import chained, problems

LINK = re.compile(r'\[x(\d)\] is the answer to problem (\d) (plus|minus) (\d+)')


def write(folder, rows):
  lines = [json.dumps(dict(zip(('question', 'answer'), r))) for r in rows]
  (folder / 'train.jsonl').write_text('\n'.join(lines[12:]))
  (folder / 'test.jsonl').write_text('\n'.join(lines[:12]))
  return folder


def load(folder, n, **flat):
  c = tiny_recipe.get_config()
  c.data.update(name='files', dir=str(folder), knobs={}, harder={}, chain=n)
  c.update_from_flattened_dict(flat)
  return problems.load(config_lib.read(c).data, 0)


@pytest.fixture(params=['{}', '{}.\n#### {}', 'So \\boxed{{{}}}'])
def sums(tmp_path, request):
  """Writes problems whose answer is 7 times their number, or a word."""
  rows = [
    (f'Take {i} bags of seven. How many?', request.param.format(7 * i, 7 * i))
    for i in range(30)
  ]
  return write(tmp_path, [*rows, ('Which 2 colors?', 'red'), ('Why?', '4')])


@pytest.mark.parametrize('n', [2, 4])
def test_the_last_answer_follows_from_all_problems(sums, n):
  """Solves the chain problem by problem, from the text alone."""
  found = load(sums, n)
  for split, rows in (('train', 19), ('heldout', 12)):
    source = getattr(found, split)
    assert len(source) == rows  # without the problem that has no number
    for example in source:
      texts = re.findall(r'Problem \d: (.*)', example['prompt'])
      assert len(texts) == n and len(set(texts)) == n
      links = {int(k): m for k, *m in LINK.findall(example['prompt'])}
      answer = None
      for k, text in enumerate(texts, 1):
        if k > 1:
          before, sign, constant = links[k]
          assert int(before) == k - 1
          value = answer + int(constant) * (1 if sign == 'plus' else -1)
          assert text.count(f'[x{k}]') == 1
          text = text.replace(f'[x{k}]', str(value))
        number = int(re.search(r'\d+', text).group())
        answer = 7 * number if text.startswith('Take') else 'red'
      assert re.search(r'[a-z0-9]+(?=\}?$)', example['answer'])[0] == str(
        answer
      )


def test_an_index_has_one_problem_and_solutions_one_final_answer(sums):
  first, again = load(sums, 3), load(sums, 3)
  for i in range(len(first.train)):
    assert first.train[i] == again.train[i]
  rows = [
    dict(prompt=f'{i} pens', answer=str(i), solution=f'Count.\n#### {i}')
    for i in (5, 8, 2)
  ]
  made = chained.composed(rows, np.random.default_rng(0))
  assert made['solution'].count('####') == 1
  assert made['solution'].endswith('#### 2')
  assert '[x2] is 5 plus 3 = 8.' in made['solution']
  assert '[x3] is 8 minus 6 = 2.' in made['solution']
  for row in rows:
    row['solution'] = f'So \\boxed{{{row["answer"]}}}'
  made = chained.composed(rows, np.random.default_rng(0))
  assert made['solution'].count('boxed') == 1
  assert made['solution'].endswith('So \\boxed{2}')


@pytest.mark.parametrize(
  'text, numbers',
  [
    ('It costs $12, or 3.5 per kg.', ['12']),
    ('At 10:30, on 2024-05-06, 7 men', ['7']),
    ('5% of 40 and 1,000 and x2', ['40']),
  ],
)
def test_only_whole_numbers_become_variables(text, numbers):
  assert chained.NUMBER.findall(text) == numbers


def test_data_without_numbers_are_refused(tmp_path):
  rows = [(f'{i} pens', str(i)) for i in range(17)]
  write(tmp_path, [*rows, ('Why?', '4'), ('2 or 3?', 'red')])
  with pytest.raises(ValueError, match='data.chain=9: files train has 5 prob'):
    load(tmp_path, 9)
  with pytest.raises(ValueError, match="data.chain=2: 'arithmetic' has no tex"):
    load(tmp_path, 2, **{'data.name': 'arithmetic', 'data.dir': ''})
