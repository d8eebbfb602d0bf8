"""The sections of the problems: data set, format, and choice of problems."""

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

  # Field of a row; 'a.0.b' is a nested field; '': guessed from the first row.
  question: str = ''
  # The bare answer, or a text with it marked; '': guessed from the first row.
  answer: str = ''
  solution: str = ''  # a worked solution, for supervised stages; '': answer
  verifier: str = 'math'  # a reward: a name in verifiers.resolve.SHORT, ...
  heldout: Memory = 0.02  # share of train held out, if there is no test file


@dataclasses.dataclass(frozen=True)
class Controller(Record):
  """The choice of problems in the rl stage, by statistics of the problems.

  None: the controller's own default (docs/choosing.md).
  """

  # A name in data.controllers.CONTROLLERS; none: problems come in the order of
  # the data, without statistics.
  name: str = 'none'
  sources: str = 'weights'  # choice between data.sources: a name in STEERING
  window: Count = 4096  # problems of an endless task that form the pool
  refresh: CountOrNone = 0  # steps between windows of the pool; 0: one window
  memory: Memory = 0.5  # decay of solve rate and length per visit
  prior: Share = 0.5  # solve rate of a problem that was not tried
  floor: Share | None = None  # priority, learnability: least weight
  low: Share | None = None  # band: least solve rate
  high: Share | None = None  # band: largest solve rate
  balanced: bool | None = None  # band: as many below its middle as above
  explore: Nucleus | None = None  # greso: initial chance to keep
  easy: Share | None = None  # greso: target share of all-right groups
  hard: Share | None = None  # greso: target share of all-wrong groups
  above: Share | None = None  # mastered: from this solve rate
  retest: Count | None = None  # mastered: steps until the next try
  keep: Nucleus | None = None  # drive: share of the pool at the end
  steps: Count | None = None  # drive, easy_to_hard: of the stage, to the end
  power: Positive | None = None  # easy_to_hard: of the share of steps done
  width: Positive | None = None  # easy_to_hard: in difficulty, 0 to 1
  goal: Share | None = None  # adarft: target solve rate
  change: Nucleus | None = None  # adarft, greso: largest move per batch
  slope: Positive | None = None  # adarft: of the move
  nearest: Nucleus | None = None  # adarft: share of the pool to draw from
  rungs: Count | None = None  # ladder: of difficulty, 0 to 1
  climb: Share | None = None  # ladder: solve rate at which the next begins
  review: Share | None = None  # ladder: share of draws below the rung
  learn: Share | None = None  # sec, dump: weight of a new batch
  temperature: Positive | None = None  # sec, dump: of the softmax


@dataclasses.dataclass(frozen=True)
class Data(Record):
  """The problems, and their encoding as tokens."""

  name: str = 'arithmetic'  # a name in tasks.TASKS, gym:..., gsm8k or files
  # A folder; for files also a file, or a data set on the Hub,
  # hf:owner/name[:configuration][@revision]. '': download the published data.
  dir: str = ''
  files: Files = Files()
  # Difficulty; see the task's file. Another data.name on the command line
  # removes those of the recipe.
  knobs: dict = mapping()
  harder: dict = mapping()  # changes for the harder split
  tokenizer: str = 'char'  # char, byte, sentencepiece, hf: of a folder
  tokenizer_dir: str = ''  # that folder, for hf; '': the model_dir
  vocab: Count = 2048  # tokens, for sentencepiece
  # The prompt's format: none, a name in chat.PLAIN, or chat: the template of
  # the model's folder.
  template: str = 'none'
  system: str = ''  # chat: the system message; '': none
  # chat: on or off, for templates with the switch; low, medium or high, for
  # those with an effort
  thinking: str = ''
  day: str = '2024-07-26'  # chat: the date, for templates that show one
  shots: CountOrNone = 0  # plain: solved problems of train before each
  prompt_len: Count = 32  # P, tokens
  completion_len: Count = 32  # C, tokens, stop token included
  too_long: str = 'error'  # examples that do not fit: error, or drop them
  # Of a named stage: an earlier stage, whose archive of solutions (rl.archive)
  # replaces the data's own; '': the data's own.
  solutions: str = ''
  # Several data sets or tasks in one: name -> keys of this section that differ,
  # a weight and a difficulty (`data/mixture.py`).
  sources: dict = mapping()
  controller: Controller = Controller()
