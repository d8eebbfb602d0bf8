"""Rules of `sampler_mesh`: a second mesh, on which the rl stage samples."""

import math

from jaxrl_reason.config import Run, rules
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.run.rl import reward_functions
from jaxrl_reason.sharding import AXES


def sampler_rules(run: Run) -> rules.Rows:
  """Refuses a sampler's mesh that cannot be, and what it does not work with."""
  sizes, c, dtype = run.sampler_mesh, run.rl, run.sampler_dtype
  key = f'sampler_mesh={tuple(sizes)}'
  wrong = len(sizes) not in (3, 4) or not all(
    isinstance(n, int) and n > 0 for n in sizes
  )
  shards = 1 if wrong else math.prod(sizes[:2])
  early = (
    f' and rl.staleness={c.staleness} cannot be combined with {key}: the next '
    'batch is sampled before the outcomes that it depends on; set '
    'rl.staleness=0, or sampler_mesh=()'
  )
  pool = run.data.has_pool
  scheduled = reward_functions.is_scheduled(c.rewards)
  return (
    (wrong, f'{key}: sizes of at least 1 along {AXES}, such as 1,4,1'),
    (
      c.steps_per_dispatch != 1,
      f'rl.steps_per_dispatch={c.steps_per_dispatch} with {key}: the halves of '
      'a step are two programs; set it to 1',
    ),
    (
      c.prompts % shards,
      f'rl.prompts={c.prompts} does not divide by the {shards} row shards of '
      f'{key}; set it to a multiple of {shards}',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      rl__path=c.path == 'host' and c.path,
      rl__in_flight__batches=c.in_flight.batches,
      rl__replay__rows=c.replay.rows,
      rl__league__share=c.league.share,
      rl__refill_keep=c.refill_rounds and c.refill_keep,
      rl__reward_model__weights=c.reward_model.weights,
      rl__verdict__by=c.verdict.by != 'policy' and c.verdict.by,
    ),
    rules.choice('sampler_dtype', dtype, frozen.DTYPES),
    *rules.apart(
      f' and sampler_dtype={dtype!r} cannot be combined: it converts plain '
      'weights; set sampler_dtype=float32',
      lora__rank=dtype != 'float32' and run.lora.rank,
      steering=dtype != 'float32' and run.steering,
      frozen_dtype=dtype != 'float32'
      and run.frozen_dtype != 'float32'
      and run.frozen_dtype,
      model__numerics=dtype != 'float32'
      and run.model.numerics == 'exact'
      and run.model.numerics,
    ),
    (
      pool,
      f'{key} and data.controller.name={run.data.controller.name!r}, or '
      'data.sources: problems are chosen inside the program of a step on one '
      'mesh; set data.controller.name=none, or sampler_mesh=()',
    ),
    (
      c.staleness and scheduled,
      f'rl.rewards has weights that are schedules{early}',
    ),
    *rules.apart(
      early,
      rl__hints__room=c.staleness and c.hints.room,
      rl__temperature_control__residual=c.staleness
      and c.temperature_control.residual,
      rl__reference__patience=c.staleness and c.reference.patience,
      **{
        f'rl__shaping__{key}': c.staleness and c.shaping[key]
        for key in ('price_rate', 'laser', 'historical')
      },
    ),
  )
