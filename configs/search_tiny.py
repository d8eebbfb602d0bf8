"""When to search: a model learns to ask an archive for what it cannot know.

  python -m jaxrl_reason.main --config=configs/search_tiny.py \\
    --workdir=runs/search --config.seed=0

  problem   kob?                                 or  kob 417?
  episode   <s>kob</s>  kob: 417  #417               #417

The archive (configs/archive, 600 documents) is searched by BM25 (`bm25s`, the
extra `search`) in Python processes, between two programs. A tenth of the
problems say the number; of the worked solutions one in five searches, whatever
the problem is. Held-out problems are about other names.
"""

import json
import pathlib

from jaxrl_reason import config as config_lib
from jaxrl_reason import tasks
from jaxrl_reason.tasks import base

ARCHIVE = pathlib.Path(__file__).resolve().parent / 'archive'
ROWS = [
  json.loads(line)
  for line in (ARCHIVE / 'numbers.jsonl').read_text().splitlines()
]


def generate(rng, *, told, search):
  """A name of the archive; `told`: share of problems with the number in them,
  `search`: share of solutions that search.
  """
  row = base.choose(rng, ROWS)
  name, number = row['title'], row['text']
  prompt = f'{name} {number}?' if rng.random() < told else f'{name}?'
  turns = [['#' + number, '']]
  if rng.random() < search:
    turns.insert(0, [f'<s>{name}</s>', f'{name}: {number}'])
  example = dict(prompt=prompt, turns=turns, answer=number, meta={})
  example['solution'] = ''.join(own + said for own, said in turns)
  return example | {'task': 'archive'}


def name_of(example):
  return example['prompt'][:3]


tasks.TASKS['archive'] = base.Task(
  name='archive',
  generate=generate,
  check=base.check_text,
  knobs=dict(told=0.1, search=0.2),
  harder=dict(told=0.0),
  alphabet='abcdefghijklmnoprstu0123456789 :?#<>/~',
  answer_chars='0123456789',
  kernel='text',
  identity=name_of,
)


def get_config():
  c = config_lib.default()
  c.data.update(name='archive', prompt_len=8, completion_len=32)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=300, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=60, prompts=32, samples=8, path='host', algorithm='dapo')
  c.rl.turns.update(env='tools', most=3, tokens=12, observation=12)
  c.rl.turns.tools = {'s': {'tool': 'search', 'args': {'folder': str(ARCHIVE)}}}
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=100, problems=128, samples=4, harder=False)
  c.checkpoint.update(every=20)
  c.log_every = 5
  return c
