"""Comparisons of evaluations: which cells there are, their order, and the
problems that two cells are compared on.
"""

import json

import pytest
from test_report import evaluation, workdir

from jaxrl_reason.reports import answer_folders, answer_pages, figures, workdirs

pytest.importorskip('plotly', reason='the extra report is not installed')


def cells_of(path):
  return answer_folders.read(path, 0, answer_pages.Blocks())


def edit(path, model, change):
  """Changes the records of a model; those for which `change` returns None are
  removed.
  """
  file = path / 'answers' / f'{model}--gsm8k.jsonl'
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  rows = [row for row in map(change, rows) if row is not None]
  file.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def test_the_first_model_is_that_of_the_command(tmp_path):
  """By name, run@250 is before run@50. The files have these names, too."""
  path = evaluation(tmp_path, {'run@250': [4, 4], 'run@50': [0, 1]})
  results = []
  for model in ('run@50', 'run@250'):
    about = {'model': model, 'suite': 'gsm8k', 'variant': 'own'}
    about |= {'temperature': 1.0}
    results.append(about | {'problems': 2})
    file = path / 'answers' / f'{model}--gsm8k.json'
    file.write_text(json.dumps(about | {'k': 4}))
  # Without results, as during the evaluation, files are ordered by name.
  assert [c.model for c in cells_of(path)] == ['run@250', 'run@50']
  (path / 'results.json').write_text(json.dumps({'results': results}))
  cells = cells_of(path)
  assert [c.model for c in cells] == ['run@50', 'run@250']
  (panel,) = answer_folders.forgetting(cells)
  (note,) = panel['notes']
  assert note.startswith('run@250, gsm8k, own, T 1: +0.8750')


def test_evaluations_without_samples_show_the_greedy_answers(tmp_path):
  path = evaluation(tmp_path, {'base': [0, 0, 0], 'tuned': [0, 0, 0]}, 0)
  edit(path, 'tuned', lambda row: row | {'verdict': {'score': 1.0}})
  cells = cells_of(path)
  assert [(c.model, c.suite, c.samples) for c in cells] == [
    ('base', 'gsm8k, own, greedy', 1),
    ('tuned', 'gsm8k, own, greedy', 1),
  ]
  (panel,) = answer_folders.forgetting(cells)
  assert panel['notes'] == ['tuned, gsm8k, own, greedy: +1.0000 ± 0.0000']


def test_models_are_compared_on_equal_problems(tmp_path):
  """Suites of one name may have other problems under the same number."""
  path = evaluation(tmp_path, {'base': [0, 2, 4], 'tuned': [4, 2, 2]})

  def other(row):
    return row | {'prompt': 'another?'} if row['problem'] == 0 else row

  edit(path, 'tuned', other)
  (panel,) = answer_folders.forgetting(cells_of(path))
  assert panel['notes'] == ['tuned, gsm8k, own, T 1: -0.2500 ± 0.2500']
  (changes,) = answer_folders.support(cells_of(path))
  assert changes['figure']['data'][0]['y'] == [2, 0, 0, 0]
  edit(path, 'tuned', lambda row: row | {'prompt': 'another?'})
  assert answer_folders.forgetting(cells_of(path)) == []
  assert answer_folders.support(cells_of(path)) == []


def test_curves_cross_on_equal_problems(tmp_path):
  path = evaluation(tmp_path, {'base': [0, 2, 2], 'tuned': [4, 4, 0]})

  def notes(*others):
    """Returns the notes after the problems of these numbers are others."""
    other = {'prompt': 'another?'}
    edit(path, 'tuned', lambda r: r | (other if r['problem'] in others else {}))
    (curves,) = answer_folders.pass_at_k(cells_of(path))
    return curves['notes']

  assert notes() == ['base and tuned do not cross']
  assert notes(0) == ['base is ahead of tuned from k = 2']
  assert notes(0, 1, 2) == []


def test_the_numbers_of_samples_of_both_sides_are_shown(tmp_path):
  path = evaluation(tmp_path / 'ev', {'base': [0, 1], 'tuned': [4, 0]})
  edit(path, 'base', lambda row: row if row['sample'] < 3 else None)
  (changes,) = answer_folders.support(cells_of(path))
  title = changes['figure']['layout']['title']['text']
  assert title.endswith('solved by any of 4, before by any of 2')
  path = workdir(tmp_path / 'run')
  file = path / 'evaluations' / '00000005.json'
  row = json.loads(file.read_text())
  row['splits']['heldout']['samples'] = 8
  file.write_text(json.dumps(row))
  run = workdirs.read(path)
  changes, *_ = figures.of_support([run], [answer_pages.Answers([], [], [])])
  title = changes['figure']['layout']['title']['text']
  assert title.endswith('solved by any of 4, before by any of 8')
