"""`jaxrl grade`: verdicts, resuming, errors."""

import json
import os
import subprocess
import sys

import pytest

ROWS = [
  {'id': 0, 'completion': 'so \\boxed{5}', 'answer': '5'},
  {'id': 1, 'completion': '\\boxed{6}', 'answer': '5'},
  {'id': 2, 'completion': 'no idea', 'answer': 'x+1'},
  {'id': 3, 'completion': '\\frac{1}{2}', 'answer': '0.5', 'more': [1]},
]


def run(*args, cwd) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason', 'grade', *args],
    capture_output=True,
    text=True,
    timeout=30,
    cwd=cwd,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )


@pytest.fixture
def folder(tmp_path):
  lines = [json.dumps(row) for row in ROWS]
  (tmp_path / 'c.jsonl').write_text('\n'.join([*lines, '']))
  return tmp_path


def verdicts(folder, name='c.graded.jsonl') -> list[dict]:
  lines = (folder / name).read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [{k: r[k] for k in r if k != 'verdict'} for r in rows] == ROWS
  return [r['verdict'] for r in rows]


def test_verdicts_and_summary(folder):
  done = run('--reward', 'math', '--file', 'c.jsonl', cwd=folder)
  assert done.returncode == 0 and done.stderr == ''
  found = verdicts(folder)
  assert [v['score'] for v in found] == [1.0, 0.0, 0.0, 1.0]
  assert found[0]['extracted'] == '5'
  assert 'mean score 0.5000 over 4 valid' in done.stdout


def test_an_interrupted_run_of_grade_is_continued(folder):
  assert run('--file=c.jsonl', cwd=folder).returncode == 0
  out = folder / 'c.graded.jsonl'
  whole = out.read_bytes()
  out.write_bytes(whole[: whole.index(b'\n') + 20])  # one row and a torn one
  done = run('--file=c.jsonl', cwd=folder)
  assert '4 completions, 3 of them graded now' in done.stdout
  assert out.read_bytes() == whole
  done = run('--file=c.jsonl', cwd=folder)
  assert '4 completions, 0 of them graded now' in done.stdout


def test_an_output_of_other_completions_is_not_changed(folder):
  (folder / 'out.jsonl').write_text('{"completion": "x"}\n')
  done = run('--file=c.jsonl', '--out=out.jsonl', cwd=folder)
  assert done.returncode == 1 and 'out.jsonl:1' in done.stderr
  assert (folder / 'out.jsonl').read_text() == '{"completion": "x"}\n'
  row = {'completion': 'x', 'verdict': {'score': 1.0}}
  (folder / 'out.jsonl').write_text(json.dumps(row) + '\n')
  done = run('--file=c.jsonl', '--out=out.jsonl', cwd=folder)
  assert done.returncode == 1 and 'another row' in done.stderr


def test_verdicts_of_corrected_answers_are_not_kept(folder):
  assert run('--file=c.jsonl', cwd=folder).returncode == 0
  text = (folder / 'c.jsonl').read_text()
  (folder / 'c.jsonl').write_text(
    text.replace('"answer": "x+1"', '"answer": "7"')
  )
  done = run('--file=c.jsonl', cwd=folder)
  assert done.returncode == 1
  assert 'graded.jsonl:3: the input has another row' in done.stderr


def test_verdicts_of_another_field_are_not_kept(folder):
  """Settings of an earlier version lack the field, which was `completion`."""
  rows = [row | {'text': row['completion']} for row in ROWS]
  lines = ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'c.jsonl').write_text(lines)
  assert run('--file=c.jsonl', cwd=folder).returncode == 0
  noted = folder / 'c.graded.json'
  settings = json.loads(noted.read_text())
  for text in (
    json.dumps(settings),
    json.dumps({k: v for k, v in settings.items() if k != 'completion_key'}),
  ):
    noted.write_text(text)
    done = run('--file=c.jsonl', '--completion_key=text', cwd=folder)
    assert done.returncode == 1
    words = "begun with completion_key='completion', not 'text'"
    assert words in done.stderr
    assert run('--file=c.jsonl', cwd=folder).returncode == 0


def test_verdicts_of_other_code_or_of_another_limit_are_not_kept(folder):
  rewards, noted = folder / 'mine.py', folder / 'c.graded.json'
  rewards.write_text('def one(completion, example): return 1.0')
  flags = ['--reward=mine.py:one', '--file=c.jsonl']
  assert run(*flags, cwd=folder).returncode == 0
  done = run(*flags, '--timeout_s=0.5', cwd=folder)
  assert 'begun with timeout_s=10.0, not 0.5' in done.stderr
  rewards.write_text('def one(completion, example): return 0.0')
  assert 'was begun with code=' in run(*flags, cwd=folder).stderr
  # Settings of an earlier version.
  settings = json.loads(noted.read_text())
  settings = {
    k: v for k, v in settings.items() if k not in ('code', 'timeout_s')
  }
  noted.write_text(json.dumps(settings))
  assert run(*flags, cwd=folder).returncode == 0


def test_settings_do_not_replace_the_output(folder):
  done = run('--file=c.jsonl', '--out=out.json', cwd=folder)
  assert done.returncode == 1 and 'out.json must end in .jsonl' in done.stderr
  assert not (folder / 'out.json').exists()


def test_numbers_marks_and_lone_surrogates(folder):
  """As other commands read these rows."""
  rows = [
    {'completion': '\\boxed{5}', 'answer': 5},
    {'completion': '\\boxed{2.5}', 'answer': 2.5, 'x': '\ud800'},
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'c.jsonl').write_text(text, encoding='utf-8-sig')
  for _ in range(2):  # the second continues
    done = run('--file=c.jsonl', cwd=folder)
    assert 'mean score 1.0000 over 2' in done.stdout, done.stderr
  lines = (folder / 'c.graded.jsonl').read_text().splitlines()
  found = [json.loads(line) for line in lines]
  assert [r.pop('verdict')['score'] for r in found] == [1, 1]
  assert found == rows


@pytest.mark.parametrize(
  ('line', 'says'),
  [
    ('{"completion": "x"', 'bad.jsonl:2: not JSON'),
    ('[1]', 'bad.jsonl:2: not an object'),
    ('{"completion": "\udcff"}', 'bad.jsonl:2: not JSON'),
    ('{"completion": "x"}', "bad.jsonl:2: 'answer' is None"),
    ('{"completion": "x", "answer": true}', "bad.jsonl:2: 'answer' is True"),
    ('{"completion": 5, "answer": "5"}', "bad.jsonl:2: 'completion' is 5"),
  ],
)
def test_errors_name_file_and_row(folder, line, says):
  text = f'{json.dumps(ROWS[0])}\n{line}\n'
  (folder / 'bad.jsonl').write_bytes(text.encode(errors='surrogateescape'))
  done = run('--file=bad.jsonl', cwd=folder)
  assert done.returncode == 1 and says in done.stderr
  assert 'Traceback' not in done.stderr


def test_other_rewards_and_other_names(folder):
  (folder / 'mine.py').write_text(
    'def score(completion, example):\n'
    '  return len(completion) + len(example["id"])\n'
  )
  (folder / 'n.jsonl').write_text('{"text": "abc", "gold": "", "id": "ab"}\n')
  args = ['--completion_key=text', '--answer_key=gold', '--file=n.jsonl']
  done = run('--reward=mine.py:score', *args, cwd=folder)
  assert 'mean score 5.0000' in done.stdout, done.stderr


def test_a_reward_that_reads_no_answer(folder):
  row = {
    'completion': 'one, two',
    'instruction_id_list': ['punctuation:no_comma', 'startend:quotation'],
    'kwargs': [{}, {}],
  }
  rows = [row, row | {'completion': '"one"'}]
  lines = [json.dumps(r) for r in rows]
  (folder / 'i.jsonl').write_text('\n'.join(lines) + '\n')
  args = ['--reward=instructions', '--answer_key=', '--file=i.jsonl']
  done = run(*args, cwd=folder)
  assert 'mean score 0.5000' in done.stdout, done.stderr
  assert 'punctuation:no_comma: 0.5000' in done.stdout


def test_a_reward_that_always_raises_stops_with_its_name(folder):
  (folder / 'mine.py').write_text(
    'def broken(completion, example):\n  raise KeyError("oh")\n'
  )
  done = run('--reward=mine.py:broken', '--file=c.jsonl', cwd=folder)
  assert done.returncode == 1 and 'broken raised KeyError' in done.stderr


def test_no_file_and_unknown_reward(folder):
  done = run('--file=nowhere.jsonl', cwd=folder)
  assert done.stderr == 'error: --file=nowhere.jsonl does not exist\n'
  assert [p.name for p in folder.iterdir()] == ['c.jsonl']
  assert '--file=. is a folder' in run('--file=.', cwd=folder).stderr
  done = run('--file=c.jsonl', '--reward=nonsense', cwd=folder)
  assert done.returncode == 1 and "reward 'nonsense'" in done.stderr
  done = run('--file=c.jsonl', '--reward=tsak', cwd=folder)
  assert done.returncode == 1 and "Did you mean 'task'?" in done.stderr
  (folder / 'none.jsonl').write_text('\n')
  done = run('--file=none.jsonl', cwd=folder)
  assert done.returncode == 1 and 'none.jsonl has no rows' in done.stderr


def test_it_imports_no_jax(folder):
  code = (
    'import sys; from jaxrl_reason import grade; grade.main(["--file=c.jsonl"])'
    '; print("jax" in sys.modules, "sympy" in sys.modules)'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    check=True,
    cwd=folder,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  assert done.stdout.endswith('\nFalse False\n')
