"""Where problems come from, by name: a procedural task or a data set.

A `Problems` is what the rest asks of either: sources by split, how answers are
verified on the device and on the host, and what a tokenizer is made from.
"""

import dataclasses
from typing import Any

import ml_collections
from etils import epath

from jaxrl_reason import tasks
from jaxrl_reason.data import (
  chat,
  files,
  hf_tokenizers,
  mixture,
  pipeline,
  tokenizers,
)
from jaxrl_reason.hosts import reading

GSM8K = 'gsm8k'  # in `data.name`
PIECES = hf_tokenizers.PIECES  # in a workdir: the tokenizer that a run trained


@dataclasses.dataclass(frozen=True)
class Problems:
  """Attributes:
  train, heldout: sources of examples.
  harder: a source out of distribution, or None.
  kernel: the device kernel that verifies answers, or None.
  reward: the host reward that does, by name.
  alphabet: every character of its texts, or None when unknown.
  parts: of a mixture (`data.sources`), each source's (section, Problems).
  supervised: what supervised stages are trained on; None: train.
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

  @property
  def verifiers(self) -> tuple[str, ...]:
    """Names the host rewards behind `reward`, one or those of all sources."""
    own = tuple(part.reward for _, part in self.parts.values())
    return own or (self.reward,)

  @property
  def heldout_by_source(self) -> dict[str, Any]:
    """Gives the held-out problems of each source of a mixture."""
    return dict(zip(self.parts, _labelled(self.parts, 'heldout')))


def _task(c, seed: int) -> Problems:
  task = tasks.get(c.name)
  knobs, harder = c.knobs.to_dict(), c.harder.to_dict() or None

  def source(split):
    return pipeline.TaskSource(c.name, seed, split, knobs, harder)

  for split in tasks.SPLITS:
    tasks.split_knobs(task, split, knobs, harder)  # refuses unknown knobs
  return Problems(
    *map(source, tasks.SPLITS),
    kernel=task.kernel,
    reward=task.reward,
    alphabet=task.alphabet,
  )


# A reward that calls the one an example names.
BY_SOURCE = 'jaxrl_reason.rewards.task:by_source'


def _labelled(parts: dict, split: str) -> list:
  """A split of every source that has it."""
  return [
    mixture.Labelled(getattr(part, split), i, name, part.reward)
    for i, (name, (_, part)) in enumerate(parts.items())
    if getattr(part, split) is not None
  ]


def mixed(parts: dict[str, tuple[Any, Problems]], c) -> Problems:
  """Makes one of several sources.

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
  """The problems of `data.sources`."""
  parts, rewards = {}, mixture.own(c, 'reward')
  for (name, section), reward in zip(mixture.sections(c).items(), rewards):
    try:
      part = load(section, seed)
    except (ValueError, OSError, ImportError) as error:
      raise type(error)(f'data.sources.{name}: {error}') from error
    if reward is not None:
      part = dataclasses.replace(part, reward=reward, kernel=reward)
    parts[name] = section, part
  return mixed(parts, c)


def load(c, seed: int) -> Problems:
  """Returns the problems of a config's `data` section."""
  if c.sources:
    return _of_sources(c, seed)
  if tasks.is_known(c.name):
    return _task(c, seed)
  if c.name == GSM8K:
    # Here: it imports TFDS, a tenth of the time of all imports.
    from jaxrl_reason.data import gsm8k

    found = gsm8k.load(c.dir or None, reading.cache_dir() / 'gsm8k')
    return _of_files(found, 'numbers')
  if c.name == files.NAME:
    if not c.dir:
      raise ValueError('data.name="files" needs data.dir: a file or a folder')
    rest = {k: v for k, v in c.files.items() if k != 'verifier'}
    return _of_files(files.load(c.dir, **rest), c.files.verifier)
  raise ValueError(
    f'data.name={c.name!r}: choose {GSM8K}, {files.NAME}, one of '
    f'{", ".join(tasks.TASKS | tasks.GAMES)}, or gym:<family> of reasoning-gym'
  )


def _of_files(found: dict, reward: str) -> Problems:
  """Problems that are finite, and verified in Python."""
  return Problems(
    found['train'], found['test'], None, None, reward, alphabet=None
  )


def make_tokenizer(c, problems: Problems, workdir: epath.Path, folder=None):
  """Returns the tokenizer of a `data` section; one that is trained is kept in
  the workdir, so that a resumed run reads the same ids.

  Args:
    folder: the model's, in Hugging Face layout, where the run has one.
  """
  if c.tokenizer == 'hf':
    tokenizer = hf_tokenizers.load(_folder(c, folder))
    if c.template == 'chat':
      _stop_at_turn_end(tokenizer, chat.load(_folder(c, folder), c.day))
    return tokenizer
  if c.tokenizer == 'byte':
    return tokenizers.ByteTokenizer()
  if c.tokenizer == 'char':
    if problems.alphabet is None:
      raise ValueError(
        f'data.tokenizer="char" needs a task with an alphabet; {c.name} has '
        'none. Use "sentencepiece" or "byte".'
      )
    return tokenizers.CharTokenizer(problems.alphabet)
  if c.tokenizer == 'sentencepiece':
    path = workdir / PIECES
    if path.exists():
      return tokenizers.SentencePieceTokenizer(path)
    rows = (problems.train[i] for i in range(min(len(problems.train), 20_000)))
    texts = (text for r in rows for text in (r['prompt'], r['solution']))
    return tokenizers.train_sentencepiece(texts, c.vocab, path)
  raise ValueError(
    f'data.tokenizer={c.tokenizer!r}: choose char, byte, sentencepiece or hf'
  )


def tokenizer_of_run(workdir):
  """Returns the tokenizer of a run that began from no folder.

  Args:
    workdir: the run's, as a path.

  Raises:
    ValueError: the workdir does not say which it was.
  """
  workdir = epath.Path(workdir)
  run = reading.json_object(workdir / 'config.json')
  c = ml_collections.ConfigDict(run['data'])
  if c.tokenizer == 'sentencepiece' and not (workdir / PIECES).exists():
    raise ValueError(f'{workdir} lacks {PIECES}, the tokenizer that it trained')
  problems = load(c, run['seed']) if c.tokenizer == 'char' else None
  return make_tokenizer(c, problems, workdir)


def _folder(c, folder):
  if c.tokenizer_dir or folder:
    return c.tokenizer_dir or folder
  raise ValueError(
    f'data.tokenizer={c.tokenizer!r} and data.template={c.template!r} need a '
    'folder: set config.model_dir or data.tokenizer_dir'
  )


def _stop_at_turn_end(tokenizer, template: chat.ChatTemplate) -> None:
  """Puts the token that ends the assistant's turn first among those that end
  a completion: worked solutions end with it.
  """
  tokenizer.template = template  # of what stands around a tool's answer
  end = chat.turn_end(template, tokenizer)
  if end is not None:
    tokenizer.eos_ids = tuple(dict.fromkeys((end, *tokenizer.eos_ids)))


def renderer(c, problems: Problems, tokenizer, folder, tools=None):
  """Gives question -> prompt text, as a `data` section has it; None: as it is.

  Args:
    problems: whose train split has the solved ones of `data.shots`.
    folder: the model's, where the run has one.
    tools: that a chat template tells the model of, as schemas; None: none.
  """
  if c.template == 'chat':
    if c.tokenizer != 'hf':
      raise ValueError('data.template="chat" needs data.tokenizer="hf"')
    if c.shots:
      raise ValueError(f'data.shots={c.shots} needs a plain data.template')
    template = chat.load(_folder(c, folder), c.day)
    system = [{'role': 'system', 'content': c.system}] if c.system else []
    thinking = chat.THINKING[c.thinking]
    return lambda question: template.render(
      [*system, {'role': 'user', 'content': question}],
      enable_thinking=thinking,
      tools=tools,
    )
  if c.system or c.thinking:
    raise ValueError('data.system and data.thinking need data.template="chat"')
  chat.plain(c.template, '')  # refuses an unknown name
  ids = tokenizer.prefix_ids if c.tokenizer == 'hf' else ()
  prefix = ''.join(tokenizer.token_text(i) for i in ids)
  if c.template == 'none' and not prefix and not c.shots:
    return None
  solved = [problems.train[i] for i in range(c.shots)]
  shots = [(e['prompt'], e['solution']) for e in solved]
  return lambda question: prefix + chat.few_shot(c.template, shots, question)


def rendered(
  problems: Problems, c, tokenizer, folder=None, tools=None
) -> Problems:
  """Returns the problems, written out in the template that a `data` section
  names.

  Args:
    tools: schemas that a chat template tells the model of; None: none.

  Raises:
    ValueError: names the key that does not fit.
  """
  if problems.parts:
    parts = {
      name: (section, rendered(part, section, tokenizer, folder, tools))
      for name, (section, part) in problems.parts.items()
    }
    return mixed(parts, c)
  if c.thinking not in chat.THINKING:
    raise ValueError(
      f'data.thinking={c.thinking!r}: choose on, off, low, medium, high or ""'
    )
  render = renderer(c, problems, tokenizer, folder, tools)
  if render is None:
    return problems
  sources = {k: getattr(problems, k) for k in ('train', 'heldout', 'harder')}
  return dataclasses.replace(
    problems,
    **{
      k: pipeline.Rendered(source, render)
      for k, source in sources.items()
      if source is not None
    },
  )


def drop_long(problems: Problems, c, tokenizer) -> tuple[Problems, dict]:
  """Leaves out what does not fit, when `data.too_long` says so.

  Training examples must fit with their solution; of held-out ones only the
  prompt, since nobody reads their solution: dropping more would flatter the
  accuracy.

  Returns the problems, and how many of each split were dropped.
  """
  if c.too_long not in ('error', 'drop'):
    raise ValueError(f'data.too_long={c.too_long!r}: choose error or drop')
  if c.too_long == 'error':
    return problems, {}
  if problems.parts:
    parts, dropped = {}, {}
    for name, (section, part) in problems.parts.items():
      part, of_part = drop_long(part, section, tokenizer)
      parts[name] = section, part
      dropped |= {f'{name}/{split}': n for split, n in of_part.items()}
    return mixed(parts, c), dropped

  def prompt_fits(example):
    return len(pipeline.prompt_ids(example, tokenizer)) <= c.prompt_len

  def fits(example):
    solution = len(tokenizer.encode(example['solution'])) + 1  # stop token
    return prompt_fits(example) and solution <= c.completion_len

  changes, dropped = {}, {}
  for split, rule in (('train', fits), ('heldout', prompt_fits)):
    source = getattr(problems, split)
    if len(source) >= pipeline.ENDLESS:
      changes[split] = pipeline.Redrawn(source, rule)
      continue
    kept = [i for i in range(len(source)) if rule(source[i])]
    dropped[split] = len(source) - len(kept)
    if not kept:
      raise ValueError(
        f'data.too_long="drop" leaves nothing of {c.name} {split}: none of '
        f'{len(source)} examples fits data.prompt_len={c.prompt_len} and '
        f'data.completion_len={c.completion_len}'
      )
    changes[split] = pipeline.Subset(source, kept)
  return dataclasses.replace(problems, **changes), dropped
