"""The keys of the rl stage, and of what it is asked."""

import ml_collections
from ml_collections.config_dict import placeholder

from jaxrl_reason import losses
from jaxrl_reason.config import sections


def loss_overrides() -> ml_collections.ConfigDict:
  """Makes one empty slot per setting of `losses`; None leaves it to the
  recipe.
  """
  kinds = {
    k: float if v is None else type(v) for k, v in losses.DEFAULTS.items()
  }
  return sections.section(
    {k: placeholder(kind) for k, kind in kinds.items() if k != 'name'}
  )


def reinforce() -> ml_collections.ConfigDict:
  """Makes the rl section of a config."""
  return sections.section(
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
      rewards=sections.Open({'answer': dict(reward='task', weight=1.0)}),
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
        args=sections.Open(),  # its further arguments
        # Of env='tools': name -> {'tool': name or path.py:function, 'args'}.
        tools=sections.Open(),
        stops=(),  # texts that end a turn, besides what ends a call
        # Of env='chain', inside the program: name -> what asks for the link,
        # its reward and weight (`rollouts/chain.py`, docs/turns.md).
        links=sections.Open(),
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
        optimizer=sections.optimizer(3e-4),
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
      optimizer=sections.optimizer(1e-4),
    )
  )


def controller() -> ml_collections.ConfigDict:
  """Makes the section of what the rl stage is asked next, by what is known of
  the problems.

  Settings that are None are the controller's own (docs/choosing.md).
  """
  return sections.section(
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
