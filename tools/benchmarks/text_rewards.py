"""Measures the speed of rewards for text, structure and format in one process.

  .venv/bin/python tools/benchmarks/text_rewards.py [--seconds=0.5]

Prints a Markdown table of cases per second of CPU time. A completion has a
thought of --words words and an answer for the reward. 'instructions' runs over
the prompts of IFEval (--ifeval), if the file exists.
"""

import functools
import itertools
import json
import os
import pathlib
import sys
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from jaxrl_reason.verifiers import resolve  # noqa: E402

_SECONDS = flags.DEFINE_float('seconds', 0.5, 'CPU time for each reward.')
_WORDS = flags.DEFINE_integer('words', 300, 'Words of the thought.')
_IFEVAL = flags.DEFINE_string(
  'ifeval', str(ROOT.parent / 'shared/data/ifeval/input_data.jsonl'), 'Prompts.'
)
SENTENCE = 'The train leaves at nine, so we have to be there before that. '
CALL = {'name': 'weather', 'arguments': {'city': 'Rome', 'days': 3}}
SCHEMA = {
  'type': 'object',
  'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer'}},
  'required': ['city'],
}
SCRIPT = 'create table t(id integer, name text);' + ''.join(
  f"insert into t values ({i}, 'name {i % 7}');" for i in range(1000)
)
QUERY = 'select name, count(*) from t group by name order by name'
GOLD = SENTENCE * 5
ANSWER = GOLD.replace('nine', 'ten')


def cases() -> dict[str, tuple[str, dict]]:
  """Returns reward -> (answer, example)."""
  call = f'<tool_call>{json.dumps(CALL)}</tool_call>'
  tools = [{'name': 'weather', 'parameters': SCHEMA}]
  options = ['Paris', 'London', 'Berlin', 'Rome']
  text = (ANSWER, {'answer': GOLD})
  return {
    'tags': (f'<answer>{ANSWER}</answer>', {}),
    'language': (ANSWER, {'prompt': GOLD}),
    'repetition': (ANSWER, {}),
    'choices': ('The answer is (B).', {'answer': 'B', 'choices': options}),
    **dict.fromkeys(
      ('exact', 'normalized', 'token_f1', 'rouge_l', 'edit'), text
    ),
    'json': (json.dumps(CALL), {}),
    'json_equal': (json.dumps(CALL), {'answer': json.dumps(CALL)}),
    'json_schema': (json.dumps(CALL['arguments']), {'schema': SCHEMA}),
    'regex': ('AB-12', {'pattern': r'[A-Z]{2}-\d+'}),
    'tool_calls': (call, {'answer': json.dumps([CALL]), 'tools': tools}),
    'tool_calls_valid': (call, {'tools': tools}),
    'sql': (f'```sql\n{QUERY}\n```', {'answer': QUERY, 'db_script': SCRIPT}),
  }


def prompts() -> list[dict]:
  if not os.path.exists(_IFEVAL.value):
    return []
  with open(_IFEVAL.value, encoding='utf-8') as f:
    return [json.loads(line) for line in f]


def rate(calls) -> float:
  """Measures calls per second of CPU time, after a first call of each."""
  for call in calls:
    call()
  start, n = time.process_time(), 0
  for call in itertools.cycle(calls):
    call()
    n += 1
    if n % 10 == 0 and time.process_time() - start > _SECONDS.value:
      return n / (time.process_time() - start)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1:]}')
  length = len(SENTENCE.split())
  thought = SENTENCE * (_WORDS.value // length)
  print('| reward | cases a second |\n|---|---|')
  for name, (answer, example) in cases().items():
    completion = f'<think>{thought}</think>{answer}'
    call = functools.partial(resolve.load(name), completion, example)
    print(f'| `{name}` | {rate([call]):,.0f} |')
  response = f'<think>{thought}</think>{thought}'
  reward = resolve.load('instructions')
  for loose in (False, True):
    calls = [
      functools.partial(reward, response, example, loose=loose)
      for example in prompts()
    ]
    if calls:
      mode = 'loose' if loose else 'strict'
      print(f'| `instructions`, {mode} | {rate(calls):,.0f} |')


if __name__ == '__main__':
  app.run(main)
