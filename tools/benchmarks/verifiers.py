"""Measures speed, accuracy and memory of the math verifiers.

  .venv/bin/python tools/benchmarks/verifiers.py [--out=table.md]

Prints the table of docs/math_answers.md, with a column for math-verify if it is
installed (`pip install 'math-verify[antlr4_13_2]'`). Each verifier runs in one
thread of a new process, so that memory and warm-up are not shared. GSM8K is
read from --gsm8k, if the folder exists.
"""

import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import threading
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / 'tests' / 'verifiers')]

import equivalence  # noqa: E402
import hostile  # noqa: E402

_GSM8K = flags.DEFINE_string(
  'gsm8k', str(ROOT.parent / 'shared/data/gsm8k/test.jsonl'), 'Solutions.'
)
_OUT = flags.DEFINE_string('out', None, 'Markdown file for the table.')
_ONLY = flags.DEFINE_string('only', None, 'Internal: one verifier, as JSON.')
SLOW_S = 1.0


def ours():
  from jaxrl_reason.verifiers import math

  return math.verify


def math_verify():
  from math_verify import parse, verify

  def call(prediction: str, gold: str) -> bool:
    gold = gold if '$' in gold else f'${gold}$'
    if '\\boxed' not in prediction and '$' not in prediction:
      prediction = f'${prediction}$'
    return verify(parse(gold), parse(prediction))

  return call


VERIFIERS = {'jaxrl_reason': ours, 'math-verify': math_verify}


def peak_mb() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def safely(verify, prediction: str, gold: str) -> bool | str:
  """Returns the verdict, or the name of the exception."""
  try:
    return bool(verify(prediction, gold))
  # Exceptions of the other library are counted as wrong verdicts.
  except Exception as e:
    return type(e).__name__


def on_pairs(verify) -> dict:
  pairs = equivalence.pairs()
  start = time.process_time()
  verdicts = [safely(verify, text, gold) for text, gold, _ in pairs]
  seconds = time.process_time() - start
  return {
    'pairs': len(pairs),
    'accuracy': sum(f == y for f, (*_, y) in zip(verdicts, pairs)) / len(pairs),
    'false_positives': sum(
      f is True and not y for f, (*_, y) in zip(verdicts, pairs)
    ),
    'false_negatives': sum(
      f is not True and y for f, (*_, y) in zip(verdicts, pairs)
    ),
    'pairs_per_s': len(pairs) / seconds,
  }


def on_gsm8k(verify, path: str) -> dict:
  """Measures correct and incorrect completions made from solutions of GSM8K."""
  if not pathlib.Path(path).exists():
    return {}
  with open(path, encoding='utf-8') as f:
    solutions = [json.loads(line)['answer'] for line in f]
  cases = []
  for solution in solutions:
    gold = solution.split('####')[1].strip()
    wrong = str(int(gold.replace(',', '')) + 1)
    cases.append((solution, gold, True))
    cases.append((solution, wrong, False))
  start = time.process_time()
  verdicts = [safely(verify, text, gold) for text, gold, _ in cases]
  seconds = time.process_time() - start
  right = sum(f == y for f, (*_, y) in zip(verdicts, cases))
  return {
    'gsm8k': right / len(cases),
    'gsm8k_per_s': len(cases) / seconds,
  }


def on_hostile(verify) -> dict:
  slow, raised, worst = 0, 0, 0.0
  for string in hostile.STRINGS:
    start = time.perf_counter()
    outcome = safely(verify, f'\\boxed{{{string}}}', '\\frac{1}{2}')
    seconds = time.perf_counter() - start
    worst = max(worst, seconds)
    slow += seconds > SLOW_S
    raised += isinstance(outcome, str)
  return {
    'hostile': len(hostile.STRINGS),
    'hostile_slow': slow,
    'hostile_raised': raised,
    'hostile_worst_s': worst,
  }


def in_a_thread(verify) -> dict:
  verdicts = []
  thread = threading.Thread(
    target=lambda: verdicts.append(safely(verify, '\\frac{1}{2}', '0.5'))
  )
  thread.start()
  thread.join()
  return {'thread': verdicts[0]}


def measure(name: str, gsm8k: str) -> dict:
  verify = VERIFIERS[name]()
  start_mb = peak_mb()
  verify('\\frac{1}{2}', '0.5')  # warm
  result = {'name': name, **on_pairs(verify), **on_gsm8k(verify, gsm8k)}
  result |= on_hostile(verify) | in_a_thread(verify)
  return result | {'start_mb': start_mb, 'peak_mb': peak_mb()}


ROWS = [
  ('equivalence pairs', '{pairs}'),
  ('accuracy', '{accuracy:.2%}'),
  ('false positives', '{false_positives}'),
  ('false negatives', '{false_negatives}'),
  ('pairs a second', '{pairs_per_s:,.0f}'),
  ('GSM8K completions right', '{gsm8k:.2%}'),
  ('GSM8K completions a second', '{gsm8k_per_s:,.0f}'),
  ('hostile strings', '{hostile}'),
  ('over 1 s', '{hostile_slow}'),
  ('raised', '{hostile_raised}'),
  ('slowest', '{hostile_worst_s:.3f} s'),
  ('in a second thread', '{thread}'),
  ('memory after import, at the end', '{start_mb:.0f}, {peak_mb:.0f} MB'),
]


def cell(form: str, result: dict) -> str:
  try:
    return form.format(**result)
  except KeyError:
    return 'not measured'


def table(results: list[dict]) -> str:
  lines = ['| | ' + ' | '.join(r['name'] for r in results) + ' |']
  lines.append('|---|' + '---|' * len(results))
  for title, form in ROWS:
    cells = ' | '.join(cell(form, r) for r in results)
    lines.append(f'| {title} | {cells} |')
  return '\n'.join(lines)


def child(name: str, gsm8k: str) -> dict:
  """Measures one verifier in its own process. Its other output is ignored."""
  done = subprocess.run(
    [sys.executable, __file__, f'--only={name}', f'--gsm8k={gsm8k}'],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    check=True,
  )
  return json.loads(done.stdout.strip().splitlines()[-1])


def main(argv):
  del argv
  if _ONLY.value:
    print(json.dumps(measure(_ONLY.value, _GSM8K.value)))
    return
  names = ['jaxrl_reason']
  if importlib.util.find_spec('math_verify'):
    names.append('math-verify')
  text = table([child(name, _GSM8K.value) for name in names])
  print(text)
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(text + '\n')


if __name__ == '__main__':
  app.run(main)
