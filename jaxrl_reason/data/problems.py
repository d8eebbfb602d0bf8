"""Where problems come from, by name: a procedural task or a data set.

A `Problems` is what the rest asks of either: sources by split, how answers are
verified on the device and on the host, and what a tokenizer is made from.
"""

import dataclasses
import os
from typing import Any

from etils import epath

from jaxrl_reason import tasks
from jaxrl_reason.data import gsm8k, pipeline, tokenizers


@dataclasses.dataclass(frozen=True)
class Problems:
  """Attributes:
  train, heldout: sources of examples.
  harder: a source out of distribution, or None.
  kernel: the device kernel that verifies answers, or None.
  reward: the host reward that does, by name.
  alphabet: every character of its texts, or None when unknown.
  """

  train: Any
  heldout: Any
  harder: Any
  kernel: str | None
  reward: str
  alphabet: str | None


def cache_dir() -> epath.Path:
  """The user's folder for what can be made again."""
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return epath.Path(base) / 'jaxrl_reason'


def _task(c, seed: int) -> Problems:
  task = tasks.get(c.name)
  knobs, harder = c.knobs.to_dict(), c.harder.to_dict() or None
  source = lambda split: pipeline.TaskSource(c.name, seed, split, knobs, harder)
  for split in tasks.SPLITS:
    tasks.split_knobs(task, split, knobs, harder)  # refuses unknown knobs
  return Problems(
    *map(source, tasks.SPLITS),
    kernel=task.kernel,
    reward=task.reward,
    alphabet=task.alphabet,
  )


def load(c, seed: int) -> Problems:
  """The problems of a config's `data` section."""
  if tasks.is_known(c.name):
    return _task(c, seed)
  if c.name == gsm8k.NAME:
    found = gsm8k.load(c.dir or None, cache_dir() / 'gsm8k')
    return Problems(
      found['train'],
      found['test'],
      None,
      kernel=None,
      reward='numbers',
      alphabet=None,
    )
  raise ValueError(
    f'data.name={c.name!r}: choose {gsm8k.NAME}, one of '
    f'{", ".join(tasks.TASKS)}, or gym:<family> of reasoning-gym'
  )


def make_tokenizer(c, problems: Problems, workdir: epath.Path):
  """The tokenizer of a `data` section; one that is trained is kept in the
  workdir, so that a resumed run reads the same ids.
  """
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
    path = workdir / 'tokenizer.model'
    if path.exists():
      return tokenizers.SentencePieceTokenizer(path)
    rows = (problems.train[i] for i in range(min(len(problems.train), 20_000)))
    texts = (text for r in rows for text in (r['prompt'], r['solution']))
    return tokenizers.train_sentencepiece(texts, c.vocab, path)
  raise ValueError(
    f'data.tokenizer={c.tokenizer!r}: choose char, byte or sentencepiece'
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

  def prompt_fits(example):
    return len(tokenizer.encode(example['prompt'])) <= c.prompt_len

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
