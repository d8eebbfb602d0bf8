"""`jaxrl curate`: removed rows with reasons, and kept rows."""

import datetime
import json
import subprocess
import sys

import pytest
import tiny_recipe
from paths import ROOT

from jaxrl_reason import curate
from jaxrl_reason.data import example_files as files
from jaxrl_reason.evals import curation, duplicates
from jaxrl_reason.run import train
from jaxrl_reason.run.records import journal
from jaxrl_reason.verifiers import records

pytest.importorskip('datasketch')
LONG = 'Ann has {} apples and gives Bob half of them on a sunny day in {}.'


def run(*args) -> str:
  asked = curate.options(curate.parser().parse(args))
  return curation.run(asked, journal.say, journal.bar)


def jsonl(path):
  return records.finished(path)


@pytest.fixture
def folder(tmp_path):
  rows = [
    {'question': LONG.format(4, 'May'), 'answer': '2', 'id': 0},
    {'question': LONG.format(6, 'May'), 'answer': '3', 'id': 1},
    {'question': ' '.join(LONG.format(4, 'May').split()) + ' ', 'answer': '2',
     'id': 2},
    {'question': 'How far is it from here to the moon and back again, in '
     'thousands of miles?', 'answer': '478', 'id': 3},
    *({'question': f'{i} + {i} =', 'answer': str(2 * i), 'id': 4 + i}
      for i in range(60)),
  ]  # fmt: skip
  (tmp_path / 'in.jsonl').write_text(
    ''.join(json.dumps(r) + '\n' for r in rows)
  )
  test = {'q': 'Tell me: how far is it from here to the moon?', 'meta': ['x']}
  (tmp_path / 'test.jsonl').write_text(json.dumps(test) + '\n')
  return tmp_path


def flags(folder, out, *more):
  return [f'--file={folder}/in.jsonl', f'--out={folder / out}', *more]


def test_removed_rows_and_reasons(folder):
  text = run(*flags(
    folder, 'out', '--near_duplicates=0.6', f'--against={folder}/test.jsonl',
    '--ngram=7', '--heldout=0.2',
  ))  # fmt: skip
  out = folder / 'out'
  removed = jsonl(out / 'removed.jsonl')
  assert [(r['row']['id'], r['reason']) for r in removed] == [
    (1, 'near duplicate'), (3, 'in an evaluation file'),
  ]  # fmt: skip
  assert removed[0]['of'] == 0
  assert removed[1]['where'].endswith('test.jsonl:1')
  # Any seven of the ten words that the two have in common.
  assert removed[1]['words'] in 'how far is it from here to the moon'
  train_rows, test = jsonl(out / 'train.jsonl'), jsonl(out / 'test.jsonl')
  ids = sorted(r['id'] for r in train_rows + test)
  assert ids == [0, *range(4, 64)]  # 2 repeats 0 up to a space
  assert 4 <= len(test) <= 22  # a fifth of 61
  for rows, held in ((train_rows, False), (test, True)):
    for row in rows:
      problem = {'prompt': row['question']}
      assert files.is_heldout(problem, 0.2) == held
  report = json.loads((out / 'report.json').read_text())
  assert report['rows'] == 64 and report['repeated'] == 1
  assert report['removed'] == {'near duplicate': 1, 'in an evaluation file': 1}
  assert '64 rows, 1 of them repeated' in text
  # The output is read as a data set.
  assert files.load(out)['test']


def test_near_duplicates_are_those_of_the_definition():
  """Compares with all pairs of random texts of few words."""
  import random

  rng, threshold = random.Random(0), 0.5
  texts = [
    ' '.join(rng.choice('abc') for _ in range(rng.randint(3, 9)))
    for _ in range(120)
  ]

  def grams(text):
    w = text.split()
    return {tuple(w[i : i + 3]) for i in range(len(w) - 2)}

  told = []
  found = duplicates.near(texts, threshold, told.append)
  assert sum(told) == len(texts)

  def alike(i, j):
    a, b = grams(texts[i]), grams(texts[j])
    return len(a & b) / len(a | b)

  for i, j in found.items():
    assert j < i and j not in found and alike(i, j) >= threshold
  kept = [i for i in range(len(texts)) if i not in found]
  missed = sum(alike(i, j) >= 0.8 for a, i in enumerate(kept) for j in kept[:a])
  assert missed == 0 and len(found) > 10
  assert duplicates.near(texts, threshold, told.append) == found


def test_problems_with_other_signs_are_no_duplicates():
  texts = ['What is 12 + 30?', 'What is 12 - 30?', 'what is 12 + 30']
  assert duplicates.near(texts, 0.7, lambda n: None) == {2: 0}


def test_files_of_an_earlier_call_are_removed(folder):
  """Training would read them beside the new ones."""
  pytest.importorskip('pyarrow')
  out = folder / 'out'
  run(*flags(folder, 'out', '--heldout=0.2', '--format=parquet'))
  assert {p.name for p in out.glob('*.parquet')} == {
    'train.parquet', 'test.parquet',
  }  # fmt: skip
  (out / 'failing.jsonl').write_text('')  # not written by the command
  run(*flags(folder, 'out'))
  names = {p.name for p in out.iterdir()}
  assert {'train.jsonl', 'failing.jsonl'} <= names
  assert not {'train.parquet', 'test.parquet', 'test.jsonl'} & names
  with pytest.raises(ValueError, match='out: the command writes or removes .*'):
    run(f'--file={out}/train.jsonl', f'--out={out}')


def test_files_of_a_call_that_was_stopped_are_removed(folder, monkeypatch):
  """Training would hold out its test file."""
  write = curation._write_rows

  def stopped(path, rows):
    write(path, rows)
    if path.stem == 'test':
      raise KeyboardInterrupt

  monkeypatch.setattr(curation, '_write_rows', stopped)
  with pytest.raises(KeyboardInterrupt):
    run(*flags(folder, 'out', '--heldout=0.2'))
  assert (folder / 'out' / 'test.jsonl').exists()
  monkeypatch.setattr(curation, '_write_rows', write)
  run(*flags(folder, 'out'))
  assert not (folder / 'out' / 'test.jsonl').exists()


def test_any_row_that_is_read_is_written(tmp_path):
  """Dates of Parquet and lone surrogates in other fields do not stop it."""
  parquet = pytest.importorskip('pyarrow.parquet')
  pa = pytest.importorskip('pyarrow')
  rows = [{'question': '1+1', 'answer': '2', 'at': datetime.date(2024, 5, 1)}]
  table = pa.Table.from_pylist(rows)
  parquet.write_table(table, tmp_path / 'in.parquet')
  run(f'--file={tmp_path}/in.parquet', f'--out={tmp_path}/a')
  assert jsonl(tmp_path / 'a' / 'train.jsonl')[0]['at'] == '2024-05-01'
  row = {'question': '1+1', 'answer': '2', 'x': '\ud800'}
  (tmp_path / 'in.jsonl').write_text(json.dumps(row) + '\n')
  run(f'--file={tmp_path}/in.jsonl', f'--out={tmp_path}/b')
  assert jsonl(tmp_path / 'b' / 'train.jsonl') == [row]


def test_parquet_in_and_out(folder):
  pytest.importorskip('pyarrow')
  run(*flags(folder, 'a', '--format=parquet'))
  run(f'--file={folder}/a/train.parquet', f'--out={folder}/b')
  assert len(jsonl(folder / 'b' / 'train.jsonl')) == 63
  ids = [r['id'] for r in jsonl(folder / 'b' / 'train.jsonl')]
  assert ids == [0, 1, *range(3, 64)]


def test_parquet_has_the_fields_of_every_row(tmp_path):
  parquet = pytest.importorskip('pyarrow.parquet')
  rows = [{'question': f'{i}+1', 'answer': str(i + 1)} for i in range(2)]
  rows[1]['level'] = 'hard'
  (tmp_path / 'in.jsonl').write_text(
    ''.join(json.dumps(r) + '\n' for r in rows)
  )
  run(f'--file={tmp_path}/in.jsonl', f'--out={tmp_path}/a', '--format=parquet')
  found = parquet.read_table(tmp_path / 'a' / 'train.parquet').to_pylist()
  assert [row['level'] for row in found] == [None, 'hard']


@pytest.mark.parametrize(
  'rate, name',
  [(0, '0'), (0.1, '0-0.25'), (0.25, '0-0.25'), (0.3, '0.25-0.75'),
   (0.9, '0.75-1'), (1, '1'), (None, 'unknown')],
)  # fmt: skip
def test_buckets(rate, name):
  assert curation.bucket(rate, (0.25, 0.75)) == name


@pytest.mark.parametrize(
  'flag, says',
  [
    ('--near_duplicates=1.5', '--near_duplicates=1.5: must be'),
    ('--heldout=1', '--heldout=1.0: must be'),
    ('--buckets=0.7,0.2', '--buckets=0.7,0.2: rising'),
    ('--buckets=x', "--buckets=x: 'x' is no float"),
    ('--keep=0.5', '--keep=0.5: two pass rates'),
    ('--format=csv', "--format='csv': choose jsonl or parquet"),
    ('--question=q', "row 1: it has no field 'q'"),
    ('--file=nowhere.jsonl', '--file=nowhere.jsonl is no file'),
    ('--against=nowhere.jsonl', 'nowhere.jsonl does not exist'),
    ('--model=a,b', 'one model'),
    ('--k=0', '--k=0: must be'),
    ('--temperature=0', '--temperature=0.0: must be'),
  ],
)
def test_errors_are_one_line(folder, flag, says):
  with pytest.raises((ValueError, OSError), match=says) as error:
    run(*flags(folder, 'out'), flag)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'flag',
  [
    *('--keep=0.1,0.9', '--k=4', '--buckets=0.5', '--temperature=0.5'),
    *('--max_new=9', '--prompt=boxed', '--verifier=numbers', '--seed=1'),
    *('--batch=8', '--ngram=8'),
  ],
)
def test_flags_without_effect_are_refused_before_slow_imports(flag, capsys):
  with pytest.raises(SystemExit):
    curate.main(['--file=f.jsonl', '--out=o', flag])
  needed = '--against' if flag == '--ngram=8' else '--model'
  said = capsys.readouterr().err
  assert said == f'error: {flag} has no effect without {needed}\n'
  if flag == '--k=4':
    code = 'import sys; from jaxrl_reason import curate\n'
    code += f'try: curate.main(["--file=f.jsonl", "--out=o", "{flag}"])\n'
    code += 'except SystemExit: sys.exit("jax" in sys.modules)'
    assert not subprocess.run([sys.executable, '-c', code]).returncode


def test_pass_rates_of_a_run(tmp_path):
  """Runs the command. An interrupted row is sampled again."""
  config = tiny_recipe.get_config()
  config.stages, config.compile_cache = ('sft',), ''
  config.sft.update(steps=2, rows=8)
  config.eval.update(problems=2, harder=False)
  train.run(config, tmp_path / 'run')
  rows = [{'q': f'{i % 9 + 1}+{i // 9}=', 'a': i, 'n': i} for i in range(18)]
  (tmp_path / 'in.jsonl').write_text(
    ''.join(json.dumps(r) + '\n' for r in rows)
  )
  (tmp_path / 'mine.py').write_text(
    'def odd(completion, example):\n'
    '  if example["meta"]["n"] == 3:\n'
    '    raise KeyError("oh")\n'
    '  return example["meta"]["n"] > 8 and len(completion) % 2\n'
  )
  given = [
    f'--file={tmp_path}/in.jsonl', f'--out={tmp_path}/out', '--question=q',
    '--answer=a', f'--verifier={tmp_path}/mine.py:odd', '--k=4', '--batch=8',
    f'--model={tmp_path}/run', '--keep=0.1,1',
  ]  # fmt: skip
  done = subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason', 'curate', *given],
    cwd=ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  out = tmp_path / 'out'
  (path,) = out.glob('answers/*.jsonl')
  answers = jsonl(path)
  assert [r['sample'] for r in answers[:4]] == [1, 2, 3, 4]
  kept = jsonl(out / 'train.jsonl')
  assert kept and all(r['n'] > 8 and r['pass_rate'] >= 0.1 for r in kept)
  for r in kept:
    own = [a['verdict']['score'] for a in answers if a['meta']['n'] == r['n']]
    assert r['pass_rate'] == sum(own) / 4
    assert r['difficulty'] == 1 - r['pass_rate']  # a number for controllers
    of_rate = curation.bucket(r['pass_rate'], (0.25, 0.75))
    assert r['difficulty_bucket'] == of_rate
  failing = {r['n'] for r in jsonl(out / 'failing.jsonl')}
  assert {*range(9)} - {3} <= failing
  reasons = {r['row']['n']: r['reason'] for r in jsonl(out / 'removed.jsonl')}
  assert reasons[3] == 'never judged' and reasons[0] == 'pass rate'
  whole, before = path.read_bytes(), (out / 'train.jsonl').read_text()
  path.write_bytes(whole[: len(whole) // 2])
  assert 'pass rate' in run(*given) and path.read_bytes().count(b'\n') == 72
  assert (out / 'train.jsonl').read_text() == before
