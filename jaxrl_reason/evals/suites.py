"""Suites of problems to evaluate on, by name.

  gsm8k                              the test split, downloaded
  gsm8k?dir=FOLDER&n=200             of your copy, the first 200
  math500?dir=FILE  aime24  ...      published suites, `published.SUITES`
  FILE.jsonl?question=problem&verifier=math       a row each, or .parquet
  hf:owner/name?split=test&verifier=math          of a data set on the Hub
  task:countdown?max_ops=4&split=harder&n=256     procedural, `tasks`
  run:heldout  run:harder            the splits of the (first) model's run
  run:heldout/chain4                 the held-out problems of one of its sources

After `?`: `n` problems, how they are read, and of tasks any knob.
"""

import dataclasses
import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from etils import epath

from jaxrl_reason.config import Data, leaves
from jaxrl_reason.data import example_files as files
from jaxrl_reason.data import hub, mixture, pipeline
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.evals import accuracy, loading, published
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import hub_hint, nearest
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import games
from jaxrl_reason.verifiers.tools import toolbox

TASK, RUN = 'task:', 'run:'
DEFAULT_N = 256  # of suites without end
ADDRESS = re.compile(r' at 0x[0-9a-f]+')  # in texts of objects without one
FILE = {'question': '', 'answer': '', 'solution': ''}
# Keys of a run's sections that name files of rows with prompts.
FILES = {
  'sft': ('teacher',),
  'preference': ('pairs',),
  'reward_model': ('pairs', 'labels'),
}


@dataclasses.dataclass(frozen=True)
class Suite:
  """Attributes:
  name: of its problems, whatever their number: noise depends on it.
  examples: as verifiers read them.
  reward: the host reward that verifies answers, by name.
  kernel: the kernel with the same verdicts (`Problems.kernel`), or None.
  train: a source of solved problems beside them; None: there is none.
  asks: the text with {question} that models which follow instructions are
    asked; '': the variant of the prompt decides alone.
  samples: of a problem, unless the command names a number.
  """

  name: str
  examples: Sequence[dict]
  reward: str
  train: Any = None
  asks: str = ''
  samples: int = 8
  kernel: Any = None

  def digest(self) -> str:
    """Returns a digest, sixteen hexadecimal digits, of the problems, with all
    fields that a verifier may read, and of their verifier. It is the same in
    every process.
    """
    asked = [dict(e) for e in self.examples]
    parts = [asked, self.reward, *filter(None, [self.asks])]
    text = json.dumps(parts, default=_text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Any) -> str:
  """Returns a text of a value that JSON lacks, without addresses and with the
  members of sets in order.
  """
  if isinstance(value, set | frozenset):
    value = sorted(map(_text, value))
  return ADDRESS.sub('', str(value))


def load(text: str, model: str = '') -> Suite:
  """Returns the suite that a text names.

  Args:
    model: name of the first model (`loading`), for `run:`.

  Raises:
    ValueError: names the suite and what is wrong with it.
  """
  name, _, query = text.partition('?')
  options = _options(text, query)
  try:
    if name.startswith(TASK):
      suite = _task(name.removeprefix(TASK), options)
    elif name.startswith(RUN):
      suite = _of_run(name.removeprefix(RUN), options, model)
    elif name == problems_lib.GSM8K:
      suite = _gsm8k(options)
    elif name in published.SUITES:
      suite = _published(name, options)
    else:
      suite = _file(name, options)
  except (ValueError, OSError, ImportError) as e:
    raise ValueError(f'suite {text!r}: {e}') from e
  if not suite.examples:
    raise ValueError(f'suite {text!r} has no problems')
  return suite


def _options(text: str, query: str) -> dict[str, str]:
  out = {}
  for part in query.split('&') if query else ():
    key, equals, value = part.partition('=')
    if not (key and equals) or key in out:
      raise ValueError(f'suite {text!r}: {part!r} is no new KEY=VALUE')
    out[key] = urllib.parse.unquote(value)
  return out


def _integer(
  options: dict[str, str], key: str, default: int, least: int
) -> int:
  """A number of the options, which it is taken out of."""
  text = options.pop(key, None)
  if text is None:
    return default
  if not text.isdecimal() or int(text) < least:
    raise ValueError(f'{key}={text!r}: a whole number of at least {least}')
  return int(text)


def _done(options: dict[str, str], known: str) -> None:
  if options:
    raise ValueError(f'it has no option {sorted(options)[0]!r}, but {known}')


def _first(source, n: int) -> list[dict]:
  """Returns the first n different problems of a source; 0: all, of endless
  ones DEFAULT_N.
  """
  endless = len(source) >= pipeline.ENDLESS
  n = n or (DEFAULT_N if endless else len(source))
  return accuracy.first_problems(source, n)


def _value(text: str, like: Any) -> Any:
  """A knob as the task's own is: a number, a truth, a list or a text."""
  if isinstance(like, str):
    return text
  try:
    value = json.loads(text)
  except ValueError:
    value = text
  kind = float if isinstance(like, float) else type(like)
  if kind is float and type(value) is int:
    value = float(value)
  if like is not None and type(value) is not kind:
    raise ValueError(f'{text!r} is not like {like!r}')
  return value


def _task(name: str, options: dict[str, str]) -> Suite:
  n, seed = _integer(options, 'n', 0, 1), _integer(options, 'seed', 0, 0)
  split = options.pop('split', 'heldout')
  task = tasks.get(name)
  _refuse_games([name])
  settings = tasks.split_knobs(task, split)
  unknown = sorted(options.keys() - settings.keys())
  if unknown:
    known = ', '.join(('n', 'seed', 'split', *settings))
    raise ValueError(f'it has no option {unknown[0]!r}, but {known}')
  knobs = {k: _value(v, settings[k]) for k, v in options.items()}
  changes = {k: v for k, v in settings.items() if k not in knobs} | knobs
  source = pipeline.TaskSource(name, seed, split, changes, {})
  train = dataclasses.replace(source, split='train')
  # With its knobs: the same task twice, with others, is two suites.
  own = options | ({'seed': seed} if seed else {})
  known = urllib.parse.urlencode(sorted(own.items()), safe='+-*/,[]')
  called = f'{TASK}{name}/{split}' + (f'?{known}' if known else '')
  found = _first(source, n)
  return Suite(called, found, task.reward, train, kernel=task.kernel)


def _refuse_games(names: Iterable[str]) -> None:
  """Refuses tasks whose verdict is the reward of an environment.

  Raises:
    ValueError: names the task.
  """
  for name in names:
    if name in tasks.GAMES and tasks.GAMES[name].check is games.won:
      raise ValueError(
        f'the environment {name!r} rewards its moves, and this command plays '
        'none, so every answer would be wrong; the evaluations of a run with '
        f'rl.turns.env={name!r} play it'
      )


def data_of(run: ml_collections.ConfigDict) -> Data:
  """Returns the `data` section of a run's config, with defaults for newer keys.

  Raises:
    ValueError: names a key that this version does not know.
  """
  try:
    values = leaves(run.data.to_dict(), Data, 'data.')
  except ValueError as e:
    raise ValueError(
      f"the run's config.json has an {e} Another version of jaxrl_reason wrote "
      'it'
    ) from e
  return Data().changed(values)


def tools_of(run: ml_collections.ConfigDict) -> list[dict] | None:
  """Returns the schemas of the tools in the prompts of a run, or None."""
  rl = run.rl  # without turns.calls if an older version wrote it
  return toolbox.prompted(rl) if 'calls' in rl.get('turns', ()) else None


def _of_run(split: str, options: dict[str, str], model: str) -> Suite:
  run = loading.run_of(model) if model else None
  if run is None:
    raise ValueError('the first model is not the workdir of a run')
  n = _integer(options, 'n', 0, 1)
  _done(options, 'n')
  data = data_of(run)
  _refuse_games(section.name for section in mixture.prompted(data))
  found = _as_evaluated(model, data, run)
  splits = {'heldout': found.heldout, 'harder': found.harder}
  splits |= {f'heldout/{k}': v for k, v in found.heldout_by_source.items()}
  if splits.get(split) is None:
    known = [k for k, v in splits.items() if v is not None]
    raise ValueError(f'the run has no split {split!r}, but {", ".join(known)}')
  name = f'{RUN}{data.name}/{split}'
  examples = _first(splits[split], n)
  for example in examples:
    example.pop('rendered', None)
  own = found.reward, found.train
  return Suite(name, examples, *own, kernel=found.kernel)


def _as_evaluated(
  model: str, data: Data, run: ml_collections.ConfigDict
) -> problems_lib.Problems:
  """Returns the problems of a run as its evaluations use them: without those
  that are too long, if `data.too_long` is 'drop'.
  """
  found = problems_lib.load(data, run.seed)
  if data.too_long != 'drop':
    return found
  texts, tokenizer = loading.texts_of(model), loading.tokenizer_of_name(model)
  shown = found, data, tokenizer, texts, tools_of(run)
  kept, _ = problems_lib.drop_long(
    problems_lib.rendered(*shown), data, tokenizer
  )
  return dataclasses.replace(kept, train=found.train)


def training_of(run: ml_collections.ConfigDict) -> list[str]:
  """Returns the questions that a run on finite data sets was trained on: those
  of its data, of its files of answers, pairs and labels, and of the run that it
  began from. Procedural tasks keep their splits apart by a hash of the problem.

  Raises:
    OSError: a file or that run is not there.
    ValueError: a file has an invalid row.
  """
  own = _of_data(run)
  for path in _named_files(run):
    own += _of_path(path)
  if first := run.get('init_from', ''):
    if not loading.is_run(loading.split_step(first)[0]):
      raise FileNotFoundError(f'init_from={first!r} is not there')
    own += _of_path(first)
  return own


def _named_files(run: ml_collections.ConfigDict) -> Iterator[str]:
  """Yields the paths of a run's rows beside its data (FILES), with those of its
  named stages.
  """
  named = run.get('named', {})
  for section in (run, *named.values()):
    for kind, keys in FILES.items():
      paths = (section.get(kind, {}).get(key, '') for key in keys)
      # The name of an earlier stage, such as rl#2, is no path.
      stages = {'', *run.stages, *named}
      yield from (p for p in paths if p.partition('#')[0] not in stages)


def _of_path(name: str) -> list[str]:
  """Returns the questions of a file of rows, of the folder of an evaluation, or
  of the run that a workdir belongs to.
  """
  if loading.is_run(loading.split_step(name)[0]):
    run = loading.run_of(name)  # None: a checkpoint of `convert`
    return [] if run is None else training_of(run)
  path = epath.Path(name)
  paths = [path]
  if path.is_dir():
    paths = sorted((path / 'answers').glob('*.jsonl'))
  rows = (row for path in paths for _, row in files.rows(path))
  return [text for row in rows for text in _strings(row.get('prompt'))]


def _of_data(run: ml_collections.ConfigDict) -> list[str]:
  """Returns the questions of a run's data, without procedural tasks."""
  data = data_of(run)
  if tasks.is_known(data.name) and not data.sources:
    return []
  found = problems_lib.load(data, run.seed)
  parts = found.parts or {data.name: (data, found)}
  finite = [p for d, p in parts.values() if not tasks.is_known(d.name)]
  return [
    part.train[i]['prompt'] for part in finite for i in range(len(part.train))
  ]


def _gsm8k(options: dict[str, str]) -> Suite:
  from jaxrl_reason.data import gsm8k  # TFDS: see data/problems.py

  n, split = _integer(options, 'n', 0, 1), options.pop('split', 'test')
  folder = options.pop('dir', None)
  _done(options, 'dir, n, split')
  if split not in gsm8k.SPLITS:
    raise ValueError(f'split={split!r}: {" or ".join(gsm8k.SPLITS)}')
  found = gsm8k.load(folder, reading.cache_dir() / 'gsm8k')
  examples, train = _first(found[split], n), found['train']
  return Suite(f'{gsm8k.NAME}/{split}', examples, 'numbers', train)


def _published(name: str, options: dict[str, str]) -> Suite:
  n, place = _integer(options, 'n', 0, 1), options.pop('dir', '')
  _done(options, 'dir, n')
  found = published.load(name, place)
  examples = found.pop('examples')
  return Suite(name, examples[: n or len(examples)], **found)


def _file(name: str, options: dict[str, str]) -> Suite:
  n = _integer(options, 'n', 0, 1)
  verifier = options.pop('verifier', 'math')
  paths, called = [epath.Path(name)], epath.Path(name).stem
  fields = {k: options.pop(k, default) for k, default in FILE.items()}
  known = ('n', 'verifier', *FILE)
  if name.startswith(hub.PREFIX):
    split, known = options.pop('split', 'test'), (*known, 'split')
    splits, called = hub.files(name), f'{name}/{split}'
    if split not in splits:
      raise ValueError(f'it has no split {split}, but {", ".join(splits)}')
    paths = [epath.Path(path) for path in splits[split]]
  elif paths[0].suffix[1:] not in files.KINDS or not paths[0].is_file():
    named = (problems_lib.GSM8K, *published.SUITES)
    raise ValueError(
      f'no file (.{" or .".join(files.KINDS)}) of that name.'
      f'{hub_hint(name) or nearest(name, named)} Or choose '
      f'{", ".join(named)}, task:NAME, '
      'run:heldout, run:harder, hf:owner/name'
    )
  _done(options, ', '.join(known))
  return Suite(called, _first(files.examples(paths, fields), n), verifier)


def texts(name: str) -> Iterator[tuple[str, list[str]]]:
  """Returns (where, the texts of a row) of every row of a training file.

  Raises:
    ValueError: names the file and the row.
  """
  path = epath.Path(name)
  if not path.is_file():
    raise ValueError(f'{name} does not exist')
  for number, row in files.rows(path):
    yield f'{name}:{number}', _strings(row)


def _strings(value: Any) -> list[str]:
  if isinstance(value, str):
    return [value]
  if isinstance(value, Mapping):
    value = list(value.values())
  if isinstance(value, list | tuple):
    return [text for inner in value for text in _strings(inner)]
  return []
