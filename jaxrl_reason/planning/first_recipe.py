"""Writes a recipe for a model, data and a reward, and says what a step costs.

data -> its fields -> lengths by the model's tokenizer -> batch
     -> the reward, tried on ten problems
     -> machine: chips that are described (`planner.Planner.search`), or
                 this one, where the recipe runs two steps
     -> the file, and the command that trains it
"""

import dataclasses
import itertools
import math
import os
import pathlib
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import jax
from etils import epath

from jaxrl_reason import command as command_lib
from jaxrl_reason import config as config_lib
from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.config import changes as changes_lib
from jaxrl_reason.data import chat, example_files, hub, pipeline, row_fields
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.models import spec, weights
from jaxrl_reason.names import hub_hint, nearest
from jaxrl_reason.planning import (
  abstract,
  own_machine,
  plan_settings,
  planner,
  trials,
)
from jaxrl_reason.planning.recipe_draft import Draft
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.process import chips, cpu_devices
from jaxrl_reason.verifiers import tasks

MEASURED = 2000  # problems of a split whose lengths are measured, at most
SHORT = 0.99  # share of problems that a row must hold; longer ones are dropped
# A completion of a model that explains its answer, in tokens, at least.
EXPLAINED = 256
SMALL = 3e8  # weights of a model that learns at a higher rate
# Keys that other flags of the command set, and those that --on searches for.
FLAGS = {
  'data.completion_len': 'completion_len', 'data.dir': 'data',
  'data.name': 'data', 'data.prompt_len': 'prompt_len', 'model_dir': 'model',
}  # fmt: skip
SEARCHED = (
  'mesh', 'model.remat', 'rl.micro_batches', 'rl.parts', 'rl.padding',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options:
  """The values of the command's flags; see its help."""

  model: str
  data: str
  reward: str
  on: str
  out: pathlib.Path
  prompt_len: int = 0
  completion_len: int = 0
  trial: bool = True
  changes: Sequence[str] = ()


def run(o: Options, say: Callable[[str], Any]) -> str:
  """Writes the recipe; returns the command that trains it.

  Raises:
    ValueError: names the flag that cannot work, or the phase that failed.
  """
  if o.out.exists():
    raise ValueError(f'--out={o.out} is there already: name another file')
  if not o.out.parent.is_dir():
    raise ValueError(f'--out={o.out}: there is no folder {o.out.parent}')
  if not o.on:
    cpu_devices.split(config_lib.Run())  # as the run that follows
  gpu = o.on if chips.gpu_memory(o.on) else ''
  topology = '' if gpu else chips.topology_of(o.on) if o.on else _here()
  title = f'{o.model or "A small model"} on {o.data}.'
  draft = Draft([title], changes=_changes(o.changes, topology or gpu))
  _data(draft, o, say)
  problems = problems_lib.load(draft.config().data, 0)
  _model(draft, o, problems)
  _lengths(draft, o, problems, say)
  _batch(draft, o, topology)
  say(trials.reward(draft.config().rl, problems))
  paths = {'config': o.out, 'workdir': f'runs/{o.out.stem}'}
  flags = (f'--{k}={shlex.quote(str(v))}' for k, v in paths.items())
  run_it = f'run {" ".join(flags)}'
  command = f'{command_lib.program()} {run_it}'
  config_checks.check(draft.config(), 1)

  def trial() -> float:
    o.out.write_text(draft.text(command))
    return trials.measured(o.out, say)

  if topology or gpu:
    _planned(draft, topology or gpu, _estimated if gpu else _searched, say)
  else:
    folder = _folder(o) if o.model else None
    try:
      own_machine.batch(draft, folder, trial if o.trial else None, say)
    except (ValueError, KeyboardInterrupt):
      if o.out.exists():
        o.out.rename(o.out.with_suffix('.failed.py'))
      raise
  o.out.write_text(draft.text(command))
  return f'{o.out} is written. Train it:\n  {command}'


def _on_cpu(o: Options) -> bool:
  """Returns whether the recipe is for the CPU of this machine."""
  return not o.on and jax.default_backend() == 'cpu'


def _changes(changes: Sequence[str], topology: str) -> dict[str, Any]:
  """Returns the values of --config.KEY=VALUE by key.

  Raises:
    ValueError: no such key or value, or the command chooses the key's value.
  """
  changes_lib.apply(config_lib.default(), changes)
  values = dict(map(changes_lib.parsed, changes))
  for key in values:
    if key in FLAGS:
      raise ValueError(f'--config.{key}: use --{FLAGS[key]}')
    if topology and key in SEARCHED:
      raise ValueError(
        f'--config.{key}: the search for {topology} chooses the value; change '
        'it in the file that this command writes'
      )
  return values


def _here() -> str:
  """Returns the topology of this machine's TPUs; '' for CPUs and GPUs."""
  if jax.default_backend() != 'tpu':
    return ''
  return chips.topology_here(jax.devices())


def _data(draft: Draft, o: Options, say) -> None:
  """Names the problems, their fields and the reward."""
  if tasks.is_known(o.data) or o.data == problems_lib.GSM8K:
    draft.set('data', name=o.data)
    if o.reward:
      answer = {'reward': o.reward, 'weight': 1.0}
      draft.set('rl', rewards={'answer': answer})
    return
  is_hub = o.data.startswith(hub.PREFIX)
  if not is_hub and not epath.Path(o.data).exists():
    known = (problems_lib.GSM8K, *tasks.TASKS, *tasks.GAMES, *_beside(o.data))
    raise ValueError(
      f'--data={o.data} is no file, no folder and no task.'
      f'{hub_hint(o.data) or nearest(o.data, known)} A data set on the Hub is '
      'hf:owner/name'
    )
  draft.set('data', name=example_files.NAME, dir=o.data)
  given = draft.changes.get
  names = {k: given(f'data.files.{k}', '') for k in row_fields.USUAL}
  fields = _fields(o.data, names)
  say(f'fields of {o.data}: {", ".join(f"{k}={v}" for k, v in fields.items())}')
  draft.set('data.files', **fields, verifier=o.reward or 'math')


def _beside(path: str) -> list[str]:
  """Returns the files of problems in the folder of a path."""
  kinds = tuple(f'.{kind}' for kind in example_files.KINDS)
  found = sorted(pathlib.Path(path).parent.glob('*'))
  return [str(p) for p in found if p.suffix in kinds]


def _fields(source: str, names: dict[str, str]) -> dict[str, Any]:
  """Returns the names of fields, guessed from the first row if they are '', and
  the share that is held out if there is no test split.
  """
  paths = example_files.paths_of(source)
  every = [*paths['train'], *paths['test']]
  fields = row_fields.guessed(every, names)
  few = [row for _, row in itertools.islice(example_files.rows(every[0]), 1000)]
  solution = few and row_fields.text_of(row_fields.inside(few[0], 'solution'))
  if solution and fields['answer'] != 'solution':
    fields['solution'] = 'solution'
  share = {} if paths['test'] or len(few) == 1000 else {'heldout': 0.1}
  return fields | share


def _model(draft: Draft, o: Options, problems) -> None:
  """Chooses stages, weights, tokenizer and template."""
  if not o.model:
    tokenizer = 'byte' if problems.alphabet is None else 'char'
    draft.set('', stages=('sft', 'rl'))
    draft.set('data', tokenizer=tokenizer)
    draft.set('model', layers=2, width=128, mlp=256, qk_norm=True)
    draft.set('sft', steps=200, rows=32)
    draft.set('sft.optimizer', lr=1e-3)
    return
  template = 'chat'
  if folder := _folder(o):
    try:
      chat.load(folder)
    except ValueError:
      template = 'boxed'
  draft.set('', stages=('rl',), model_dir=o.model)
  draft.set('data', tokenizer='hf', template=template)
  if not _on_cpu(o):
    draft.set('model', dtype='bfloat16')


def _folder(o: Options):
  """Returns a folder with the model's tokenizer; None if the lengths are named
  and there is no need for it.
  """
  if o.prompt_len and o.completion_len and o.on:
    return None
  return pretrained.small_files(o.model)


def _lengths(draft: Draft, o: Options, problems, say) -> None:
  """Chooses lengths so that nearly all problems fit their row."""
  draft.set('data', too_long='drop')
  if o.prompt_len and o.completion_len:
    lengths = dict(prompt_len=o.prompt_len, completion_len=o.completion_len)
    draft.set('data', **lengths)
    return
  data, folder = draft.config().data, o.model and _folder(o)
  tokenizer = problems_lib.make_tokenizer(data, problems, epath.Path(), folder)
  shown = problems_lib.rendered(problems, data, tokenizer, folder)
  train = _measured(shown.train)
  splits = [train, *map(_measured, (shown.heldout, shown.harder))]
  counts = [
    sorted(len(pipeline.prompt_ids(e, tokenizer)) for e in split)
    for split in splits
    if split
  ]
  prompts = sorted(itertools.chain(*counts))
  answers = sorted(pipeline.solution_length(e, tokenizer) for e in train)
  say(
    f'{len(prompts)} problems: prompts of {prompts[0]} to {prompts[-1]} '
    f'tokens, solutions of {answers[0]} to {answers[-1]}'
  )
  prompt_len = o.prompt_len or max(_room(n, 8) for n in counts)
  completion_len = o.completion_len or _room(answers, 8)
  if o.model and not o.completion_len:
    # A CPU takes seconds for each 100 tokens of a completion.
    factor = 1 if _on_cpu(o) else 2
    completion_len = max(EXPLAINED, factor * completion_len)
  if dropped := sum(n > prompt_len for n in prompts):
    draft.notes.append(
      f'{dropped / len(prompts):.1%} of the prompts are longer than their '
      'row, and are dropped.'
    )
  draft.set('data', prompt_len=prompt_len, completion_len=completion_len)


def _measured(source) -> list[dict]:
  """Returns at most MEASURED examples of a source, evenly spaced if it is
  finite; [] of None.
  """
  if source is None:
    return []
  total = min(len(source), MEASURED)
  step = 1 if len(source) >= pipeline.ENDLESS else len(source) // max(total, 1)
  return [source[i * step] for i in range(total)]


def _room(lengths: Sequence[int], unit: int) -> int:
  """Returns a length that holds nearly all rows: the longest, unless it is far
  longer than most.
  """
  most = lengths[int(SHORT * (len(lengths) - 1))]
  longest = lengths[-1] if lengths[-1] <= 1.25 * most else most
  return -(-longest // unit) * unit


def _batch(draft: Draft, o: Options, topology: str) -> None:
  """Chooses the batch, the path of rewards, and the other keys of the run."""
  fused = tasks.is_known(o.data) and not o.reward and tasks.get(o.data).kernel
  draft.set('rl', steps=200, algorithm='dr_grpo', samples=8)
  if not fused:
    draft.set('rl', path='host', workers=min(os.cpu_count() or 1, 16))
  if topology or o.on:
    n = math.prod(chips.torus_of(topology)) if topology else 1
    draft.set('rl', prompts=max(64, 2 * n))
  lr = _rate(draft, o)
  draft.set('rl.optimizer', lr=lr, schedule='constant', warmup_steps=5)
  few = {'problems': 32, 'samples': 2} if o.model else {'problems': 64}
  draft.set('eval', every=50, **(few if _on_cpu(o) else {'problems': 256}))
  draft.set('checkpoint', every=50)
  draft.set('', log_every=5)


def _rate(draft: Draft, o: Options) -> float:
  """Returns the learning rate, by the number of weights."""
  if not o.model:
    return 3e-4
  config, folder = draft.config(), _folder(o)
  shape = abstract.shape_of(config.model, str(folder or config.model_dir))
  n = spec.n_params(weights.specs(shape))
  return 1e-5 if n < SMALL else 1e-6


def _planned(draft: Draft, where: str, choose: Callable, say) -> None:
  """Adds the mesh and the settings of memory, for the most training that fits.

  Args:
    where: a topology or a GPU.
    choose: (config, where, say) -> (lines of a recipe, the cost of a step), or
      None if it does not fit.

  Raises:
    ValueError: nothing fits, not even adapters on int8 weights.
  """
  for what, smaller in draft.ways():
    say(f'{where}: {what}')
    if found := choose(smaller.config(), where, say):
      break
  else:
    raise ValueError(
      f'--on={where}: the model fits on no mesh, not even with LoRA on int8 '
      'weights: name more chips'
    )
  draft.values = smaller.values
  draft.found = found[0].splitlines()
  cost = f'{where}, {what}: {found[1]}'
  draft.notes.append(cost)
  say(cost)


def _searched(
  config: config_lib.Run, topology: str, say
) -> tuple[str, str] | None:
  """Finds the fastest settings by compiling; see `_planned`."""
  plan = planner.Planner(config, topology, slices=1, model='', say=say)
  best = plan.search()[0]
  if 'why' in best:
    return None
  needs = max(p['needs_gib'] for p in best['phases'])
  return best['recipe'], (
    f'a step of {config.rl.rows} completions '
    f'takes at least {best["step_seconds"]:.3g} s, or '
    f'{best["serial_seconds"]:.3g} s if nothing overlaps; {needs:.1f} of '
    f'{best["hbm_gib"]:.1f} GiB a chip. The time of the verifier is not '
    'counted.'
  )


def _estimated(config: config_lib.Run, gpu: str, say) -> tuple[str, str] | None:
  """Chooses settings by arithmetic; see `_planned`."""
  del say
  hbm = chips.gpu_memory(gpu)
  found = plan_settings.estimated(config, hbm)
  if not found:
    return None
  return plan_settings.Found(found[0], {}).recipe(), (
    f'about {found[1] / chips.GIB:.1f} of the {hbm / chips.GIB:.1f} GiB that '
    'jax takes, by arithmetic alone: nothing was compiled for this GPU, and '
    f'the time of a step of {config.rl.rows} completions is not known.'
  )
