"""Defines the sections of the data: data set, format and choice of problems."""

import dataclasses

from jaxrl_reason.config.record import Record, mapping
from jaxrl_reason.ranges import (
  Count,
  CountOrNone,
  Memory,
  Nucleus,
  Positive,
  Share,
)


@dataclasses.dataclass(frozen=True)
class Files(Record):
  """Problems of your own, for data.name='files' (`data/example_files.py`)."""

  read_with = {'*': 'name=files data.sources'}

  # Field with the question; 'a.0.b' is a nested field; '': guessed from the
  # first row.
  question: str = ''
  # Field with the bare answer, or with a text that marks the answer; '':
  # guessed from the first row.
  answer: str = ''
  # Field with a worked solution, for supervised stages; '': the answer.
  solution: str = ''
  # A name in verifiers.resolve.SHORT, or another reward (docs/verifiers.md).
  verifier: str = 'math'
  # Share of the train problems that are held out if there is no test file.
  heldout: Memory = 0.02


@dataclasses.dataclass(frozen=True)
class Controller(Record):
  """The choice of problems in the rl stage, by statistics of the problems.

  A key with the value None has the default of its controller
  (docs/choosing.md).
  """

  read_with = {
    'refresh': 'name!=none',
    'window memory prior': 'name!=none data.sources',
  }

  # A name in data.controllers.CONTROLLERS; none: the order of the data, without
  # statistics.
  name: str = 'none'
  # Choice between data.sources: a name in data.controllers.STEERING.
  sources: str = 'weights'
  window: Count = 4096  # number of problems of an endless task in the pool
  # Steps after which an endless task's pool has new problems; 0: never.
  refresh: CountOrNone = 0
  memory: Memory = 0.5  # decay of solve rate and length per visit
  prior: Share = 0.5  # solve rate that is assumed for an untried problem
  floor: Share | None = None  # priority, learnability: smallest weight
  low: Share | None = None  # band: smallest solve rate
  high: Share | None = None  # band: largest solve rate
  # band: draw equally often below and above the middle of the band.
  balanced: bool | None = None
  # greso: initial probability of keeping a problem without a signal.
  explore: Nucleus | None = None
  easy: Share | None = None  # greso: target share of groups that are all right
  hard: Share | None = None  # greso: target share of groups that are all wrong
  # mastered: solve rate from which a problem is left out.
  above: Share | None = None
  # mastered: steps after which such a problem is tried again.
  retest: Count | None = None
  keep: Nucleus | None = None  # drive: final share of the pool
  # drive, easy_to_hard: steps of the stage until the final distribution.
  steps: Count | None = None
  # easy_to_hard: exponent on the fraction of these steps.
  power: Positive | None = None
  # easy_to_hard: width of the Gaussian, in difficulties from 0 to 1.
  width: Positive | None = None
  goal: Share | None = None  # adarft: target solve rate
  # adarft: largest change of the target difficulty per step. greso: change of
  # the probability per batch.
  change: Nucleus | None = None
  # adarft: factor on (solve rate - goal), inside the tanh.
  slope: Positive | None = None
  # adarft: share of the pool to draw from, nearest to the target difficulty.
  nearest: Nucleus | None = None
  rungs: Count | None = None  # ladder: number of levels of difficulty
  # ladder: solve rate at which the next level starts.
  climb: Share | None = None
  review: Share | None = None  # ladder: share of draws from lower levels
  # sec, dump: weight of a new batch in the running mean.
  learn: Share | None = None
  # sec, dump: temperature of the softmax over sources.
  temperature: Positive | None = None


@dataclasses.dataclass(frozen=True)
class Data(Record):
  """The problems, and their encoding as tokens."""

  read_with = {
    'dir': 'name=gsm8k name=files sources',
    'vocab': 'tokenizer=sentencepiece',
    'tokenizer_dir': 'tokenizer=hf',
    'system thinking day': 'template=chat sources',
    'shots': 'template!=chat sources',
    'chain': 'name=gsm8k name=files sources',
  }

  # A name in verifiers.tasks.TASKS, gym:..., gsm8k or files.
  name: str = 'arithmetic'
  # A folder; for files also a file, or a data set on the Hub,
  # hf:owner/name[:configuration][@revision]. '': download the published data.
  dir: str = ''
  files: Files = Files()
  # Settings of the task, such as its difficulty; the task's file lists them.
  # Another data.name on the command line removes those of the recipe.
  knobs: dict = mapping()
  harder: dict = mapping()  # changes for the harder split
  tokenizer: str = 'char'  # char, byte, sentencepiece, hf: of a folder
  tokenizer_dir: str = ''  # folder of the hf tokenizer; '': model_dir
  vocab: Count = 2048  # vocabulary size of the sentencepiece tokenizer
  # Format of the prompt: none; a name in data.chat.PLAIN; chat: the template in
  # the model's folder.
  template: str = 'none'
  system: str = ''  # template=chat: system message; '': none
  # template=chat: on or off, if the template has this switch; low, medium or
  # high, if it has a level of effort.
  thinking: str = ''
  day: str = '2024-07-26'  # template=chat: date, if the template shows one
  # Plain templates: number of solved problems before each problem. They are the
  # first problems of the train split, and are not trained on.
  shots: CountOrNone = 0
  prompt_len: Count = 32  # P, tokens
  completion_len: Count = 32  # C, tokens, stop token included
  too_long: str = 'error'  # examples that do not fit: error, or drop them
  # Problems that are composed into one; each needs the answer to the one before
  # (`data/chained.py`). 1: none is composed.
  chain: Count = 1
  # In a named stage: name of an earlier stage, whose archived solutions
  # (rl.archive) replace those of the data; '': the solutions of the data.
  solutions: str = ''
  # A mixture of data sets or tasks: name -> a weight, a difficulty, and the
  # keys of this section that differ (`data/mixture.py`).
  sources: dict = mapping()
  controller: Controller = Controller()

  @property
  def has_pool(self) -> bool:
    """Returns whether a controller or sources choose problems from a pool."""
    return self.controller.name != 'none' or bool(self.sources)
