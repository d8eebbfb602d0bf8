"""Problems of a procedural task or a data set, by name.

A `Problems` record has, for either, the sources by split, the verifiers of
answers on the device and on the host, and the alphabet for a tokenizer.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from jaxrl_reason.config import Data, leaves
from jaxrl_reason.data import (
  chained,
  chat,
  hf_tokenizers,
  lengths,
  mixture,
  pipeline,
  rendering,
  tokenizers,
)
from jaxrl_reason.data import example_files as files
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import choice
from jaxrl_reason.verifiers import tasks

GSM8K = 'gsm8k'  # in `data.name`
ROWS = 20_000  # that a tokenizer is trained on
PIECES = hf_tokenizers.PIECES  # in a workdir: the tokenizer trained by the run


@dataclasses.dataclass(frozen=True)
class Problems:
  """Problems and how to verify their answers.

  Attributes:
    train, heldout: sources of examples.
    harder: a source out of distribution, or None.
    kernel: name of the device kernel that verifies answers, or None.
    reward: name of the host reward that verifies answers.
    alphabet: every character of the texts, or None if unknown.
    parts: (section, Problems) of each source of a mixture (`data.sources`).
    supervised: training examples of supervised stages; None: train.
    pairs: of the stages that learn from pairs, and the answers of stored
      teachers; by `preference_pairs.name_of`.
  """

  train: Any
  heldout: Any
  harder: Any
  kernel: str | mixture.Routes | None
  reward: str
  alphabet: str | None
  parts: dict[str, tuple[Any, 'Problems']] = dataclasses.field(
    default_factory=dict
  )
  supervised: Any = None
  pairs: dict[tuple[str, str, int], Sequence] = dataclasses.field(
    default_factory=dict
  )

  @property
  def verifiers(self) -> tuple[str, ...]:
    """Returns the names of the host rewards behind `reward`, of all sources."""
    names = tuple(part.reward for _, part in self.parts.values())
    return names or (self.reward,)

  @property
  def heldout_by_source(self) -> dict[str, Any]:
    """Returns the held-out problems of each source of a mixture."""
    return dict(zip(self.parts, _labelled(self.parts, 'heldout')))


def _task(c, seed: int) -> Problems:
  task = tasks.get(c.name)
  knobs, harder = dict(c.knobs), dict(c.harder) or None

  def source(split):
    return pipeline.TaskSource(c.name, seed, split, knobs, harder)

  for split in tasks.SPLITS:
    tasks.split_knobs(task, split, knobs, harder)  # raises on unknown knobs
  return Problems(
    *map(source, tasks.SPLITS),
    kernel=task.kernel,
    reward=task.reward,
    alphabet=task.alphabet,
  )


# A reward that calls the reward named by an example.
BY_SOURCE = 'jaxrl_reason.verifiers.task:by_source'


def _labelled(parts: dict, split: str) -> list:
  """Returns a split of every source that has it, with labels."""
  return [
    mixture.Labelled(getattr(part, split), i, name, part.reward)
    for i, (name, (_, part)) in enumerate(parts.items())
    if getattr(part, split) is not None
  ]


def mixed(parts: dict[str, tuple[Any, Problems]], c) -> Problems:
  """Combines the problems of several sources.

  Args:
    parts: (section, Problems) by name.
    c: the `data` section.
  """
  window, warm = c.controller.window, mixture.own(c, 'supervised')
  each = [part for _, part in parts.values()]
  train, heldout, harder = (_labelled(parts, s) for s in tasks.SPLITS)
  kernels = tuple(part.kernel for part in each)
  routes = mixture.Routes(kernels, tuple(source[0] for source in train))
  alphabets = [part.alphabet for part in each]
  return Problems(
    mixture.OneAfterAnother(train, window),
    mixture.InTurns(heldout),
    mixture.InTurns(harder) if len(harder) == len(each) else None,
    kernel=None if None in kernels else routes,
    reward=BY_SOURCE,
    alphabet=None if None in alphabets else _united(alphabets),
    parts=parts,
    supervised=mixture.OneAfterAnother(
      [source for source, kept in zip(train, warm) if kept], window
    ),
  )


def _united(alphabets: list[str]) -> str:
  return ''.join(dict.fromkeys(''.join(alphabets)))


def _of_sources(c, seed: int) -> Problems:
  """Returns the problems of `data.sources`."""
  sections, parts = mixture.sections(c), {}
  for name, section in sections.items():
    with _named(name):
      parts[name] = load(section.changed({'chain': 1}), seed)
  finite = {k: p for k, p in parts.items() if len(p.train) < pipeline.ENDLESS}
  if len(finite) > 1:
    train = {name: part.train for name, part in finite.items()}
    held = [part.heldout for part in finite.values()]
    for name, source in mixture.without_heldout(train, held).items():
      parts[name] = dataclasses.replace(parts[name], train=source)
  for (name, part), reward in zip(parts.items(), mixture.own(c, 'reward')):
    if c.chain > 1:
      with _named(name):
        part = _chained(part, sections[name])
    if reward is not None:
      part = dataclasses.replace(part, reward=reward, kernel=reward)
    parts[name] = part
  return mixed(
    {name: (sections[name], part) for name, part in parts.items()}, c
  )


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
  """Adds the name of a source to the error of its problems."""
  try:
    yield
  except (ValueError, OSError, ImportError) as error:
    raise type(error)(f'data.sources.{name}: {error}') from error


def load(c, seed: int) -> Problems:
  """Returns the problems of a config's `data` section."""
  if c.sources:
    return _of_sources(c, seed)
  if c.chain > 1:
    return _chained(load(c.changed({'chain': 1}), seed), c)
  if tasks.is_known(c.name):
    return _task(c, seed)
  if c.name == GSM8K:
    # Imported here: TFDS takes a tenth of the time of all imports.
    from jaxrl_reason.data import gsm8k

    examples = gsm8k.load(c.dir or None, reading.cache_dir() / 'gsm8k')
    return _of_files(examples, 'numbers')
  if c.name == files.NAME:
    if not c.dir:
      raise ValueError(
        'data.name="files" needs data.dir: a file, a folder or hf:owner/name'
      )
    keys = ('question', 'answer', 'solution', 'heldout')
    fields = {key: c.files[key] for key in keys}
    return _of_files(files.load(c.dir, **fields), c.files.verifier)
  raise ValueError(
    f'data.name={c.name!r}: choose {GSM8K}, {files.NAME}, one of '
    f'{", ".join(tasks.TASKS | tasks.GAMES)}, or gym:<family> of reasoning-gym'
  )


def _chained(problems: Problems, c) -> Problems:
  """Returns the problems with `data.chain` of them in each.

  Raises:
    ValueError: the problems are procedural, or too few have numbers.
  """
  if c.name not in (GSM8K, files.NAME):
    raise ValueError(
      f'data.chain={c.chain}: {c.name!r} has no texts with numbers; choose '
      f'data.name={GSM8K} or {files.NAME}'
    )
  splits = {
    split: chained.Chained(
      getattr(problems, split), c.chain, f'{c.name} {split}'
    )
    for split in ('train', 'heldout')
  }
  return dataclasses.replace(problems, **splits)


def _of_files(splits: dict, reward: str) -> Problems:
  """Builds finite problems that are verified in Python."""
  return Problems(
    splits['train'], splits['test'], None, None, reward, alphabet=None
  )


def make_tokenizer(
  c, problems: Problems, workdir: epath.Path, folder=None, origin: str = ''
):
  """Returns the tokenizer of a `data` section. A trained one is saved in the
  workdir, so that a resumed run reads the same ids.

  Args:
    folder: the model's folder in Hugging Face layout, or None.
    origin: workdir of the run whose weights a run begins with. Its trained
      tokenizer is copied, because the weights are of its ids. '': none.
  """
  if c.tokenizer == 'hf':
    folder = rendering.folder_of(c, folder)
    tokenizer = hf_tokenizers.load(folder)
    if mixture.uses_chat(c):
      _stop_at_turn_end(tokenizer, chat.load(folder, c.day))
    return tokenizer
  if c.tokenizer == 'byte':
    return tokenizers.ByteTokenizer()
  if c.tokenizer == 'char':
    if problems.alphabet is None:
      raise ValueError(
        f'data.tokenizer=char needs a task with an alphabet, and {c.name} has '
        'none: use sentencepiece or byte'
      )
    return tokenizers.CharTokenizer(problems.alphabet)
  if c.tokenizer == 'sentencepiece':
    path = workdir / PIECES
    first = epath.Path(origin) / PIECES
    if not path.exists() and origin and first.exists():
      tokenizers.write(first.read_bytes(), path)
    if path.exists():
      return tokenizers.SentencePieceTokenizer(path)
    rows = _first_rows(problems)
    texts = (text for r in rows for text in (r['prompt'], r['solution']))
    return tokenizers.train_sentencepiece(texts, c.vocab, path)
  known = ('char', 'byte', 'sentencepiece', 'hf')
  raise ValueError(choice('data.tokenizer', c.tokenizer, known))


def _first_rows(problems: Problems) -> Iterator[dict]:
  """Yields at most ROWS training problems, of a mixture as many of each source
  where there are more.
  """
  n, train = len(problems.train), [problems.train]
  if n > ROWS and problems.parts:
    train = [part.train for _, part in problems.parts.values()]
  for source in train:
    for i in range(min(len(source), n, ROWS // len(train))):
      yield source[i]


def tokenizer_of_run(workdir):
  """Returns the tokenizer of a run that began without a model folder.

  Args:
    workdir: path of the run's workdir.

  Raises:
    ValueError: the workdir lacks the trained tokenizer.
  """
  workdir = epath.Path(workdir)
  run = reading.json_object(workdir / 'config.json')
  c = Data().changed(leaves(run['data'], Data, 'data.'))
  if c.tokenizer == 'sentencepiece' and not (workdir / PIECES).exists():
    raise ValueError(
      f'{workdir} lacks {PIECES}, the tokenizer that the run trained'
    )
  problems = load(c, run['seed']) if c.tokenizer == 'char' else None
  return make_tokenizer(c, problems, workdir)


def _stop_at_turn_end(tokenizer, template: chat.ChatTemplate) -> None:
  """Makes the token that ends the assistant's turn the first of those that end
  a completion, so that worked solutions end with it.
  """
  tokenizer.template = template  # read by the turns of tools
  end = chat.turn_end(template, tokenizer)
  if end is not None:
    tokenizer.eos_ids = tuple(dict.fromkeys((end, *tokenizer.eos_ids)))


def rendered(
  problems: Problems, c, tokenizer, folder=None, tools=None
) -> Problems:
  """Returns the problems with their prompts rendered in the template of a
  `data` section, without the train problems of `data.shots`.

  Args:
    tools: schemas of tools for the chat template; None: none.

  Raises:
    ValueError: names the key whose value does not fit.
  """
  if problems.parts:
    parts = {
      name: (section, rendered(part, section, tokenizer, folder, tools))
      for name, (section, part) in problems.parts.items()
    }
    return mixed(parts, c)
  if c.thinking not in chat.THINKING:
    raise ValueError(choice('data.thinking', c.thinking, chat.THINKING))
  render = rendering.renderer(c, problems.train, tokenizer, folder, tools)
  if render is None:
    return problems
  sources = {k: getattr(problems, k) for k in ('train', 'heldout', 'harder')}
  sources['train'] = rendering.without_solved(problems.train, c.shots)
  return dataclasses.replace(
    problems,
    **{
      k: pipeline.Rendered(source, render)
      for k, source in sources.items()
      if source is not None
    },
  )


def drop_long(
  problems: Problems, c, tokenizer, solution_len: int | None = None
) -> tuple[Problems, dict]:
  """Removes examples that are too long, if `data.too_long` is 'drop'.

  Training examples must fit with their solution, if a stage reads it. Held-out
  ones need only fit with their prompt, because their solution is never read:
  dropping more would inflate the accuracy.

  Args:
    c: config.data.
    solution_len: most tokens of a reference solution, its stop token included;
      None: no stage reads solutions.

  Returns:
    (problems, number of dropped examples by split).
  """
  if c.too_long not in ('error', 'drop'):
    raise ValueError(choice('data.too_long', c.too_long, ('error', 'drop')))
  if c.too_long == 'error':
    return problems, {}
  if problems.parts:
    parts, dropped = {}, {}
    for name, (section, part) in problems.parts.items():
      part, of_part = drop_long(part, section, tokenizer, solution_len)
      parts[name] = section, part
      dropped |= {f'{name}/{split}': n for split, n in of_part.items()}
    return mixed(parts, c), dropped

  room = None if solution_len is None else min(c.completion_len, solution_len)
  changes, dropped = {}, {}
  for split in ('train', 'heldout', 'harder'):
    source = getattr(problems, split)
    if source is None:
      continue
    rule = lengths.fits(c, tokenizer, room if split == 'train' else None)
    if len(source) >= pipeline.ENDLESS:
      changes[split] = pipeline.Redrawn(source, rule)
      continue
    changes[split] = lengths.without_long(source, rule, c, f'{c.name} {split}')
    dropped[split] = len(source) - len(changes[split])
  return dataclasses.replace(problems, **changes), dropped
