"""Evaluates models x suites x prompts x temperatures, each a `Cell`.

suites, training texts -> contamination, refused above a limit
unfinished cells -> the model is loaded, records are written
all records -> results.json, table.md, pass_at_k.png
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.checkpoints import files
from jaxrl_reason.data import chat
from jaxrl_reason.evals import (
  answer_judges,
  answer_programs,
  cell_settings,
  contamination,
  leaf_verifiers,
  loading,
  outcome,
  prompts,
  suites,
)
from jaxrl_reason.evals import sampled_answers as answers
from jaxrl_reason.evals.cell_settings import Options
from jaxrl_reason.evals.cells import Cell, slug
from jaxrl_reason.evals.suites import Suite
from jaxrl_reason.rollouts import forcing
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.verdict import all_failed

BUCKET = 16  # prompts are padded to a multiple of this number of tokens


@dataclasses.dataclass(frozen=True)
class Asked:
  """A cell with its model, suite and prompt."""

  cell: Cell
  model: str
  suite: Suite
  variant: prompts.Variant
  temperature: float

  @property
  def about(self) -> dict[str, Any]:
    """Returns the fields that describe the cell (`outcome.ABOUT`)."""
    return {k: self.cell.settings[k] for k in outcome.ABOUT}


def run(o: Options, say: Callable[[str], Any], bar: Callable) -> str:
  """Evaluates; returns the table.

  Args:
    say: prints a line; bar: (name, total, done, unit) -> tqdm.

  Raises:
    ValueError: names the error and the remedy in one line.
  """
  models = [loading.full_name(m) for m in o.models]
  with hosts.zero_first():  # data sets are prepared on disk
    asked = [suites.load(s, models[0]) for s in o.suites]
  plan = cells_of(o, asked)
  shares = {
    (m, s.name): _contaminated(o, m, s, say) for m in models for s in asked
  }
  answer(o, plan, bar)
  if not hosts.is_main():
    return ''
  return outcome.write(o.out, list(_outcomes(plan, shares)))


def answer(o: Options, plan: Sequence[Asked], bar: Callable) -> None:
  """Samples the remaining answers of the cells; loads only the needed models.

  Raises:
    ValueError: a cell was begun with other settings, or cannot be sampled.
  """
  mesh = sharding.make_mesh(o.mesh)
  done = {a.cell.path: a.cell.begin() for a in plan}
  total = sum(a.cell.total for a in plan)
  shown = bar('answers', total, sum(done.values()), unit='answer')
  with shown, contextlib.ExitStack() as stack:
    for model in dict.fromkeys(a.model for a in plan):
      todo = [
        a for a in plan
        if a.model == model and done[a.cell.path] < a.cell.total
      ]  # fmt: skip
      if todo:
        _answer(o, mesh, model, todo, done, stack, shown.update)


def cells_of(o: Options, asked: Sequence[Suite]) -> list[Asked]:
  """Returns the cells of all models, ordered by model.

  Raises:
    ValueError: two cells are the same, or a checkpoint does not exist.
  """
  return list(_plan(o, [loading.full_name(m) for m in o.models], asked))


def _plan(
  o: Options, models: Sequence[str], asked: Sequence[Suite]
) -> Iterator[Asked]:
  variants = [prompts.parse(text) for text in o.prompts]
  seen = set()
  for model in models:
    of_weights, run = cell_settings.versions(o, model), loading.run_of(model)
    templates = [prompts.template_of(v, model, run) for v in variants]
    for suite in asked:
      for variant, template in zip(variants, templates):
        of_model = of_weights | template
        for temperature in o.temperatures:
          settings = cell_settings.of(
            o, model, suite, variant, temperature, of_model
          )
          parts = (model, suite.name, variant.name, f't{temperature:g}')
          name = '--'.join(map(slug, parts))
          if name in seen:
            raise ValueError(f'{", ".join(parts)}: asked for twice')
          seen.add(name)
          path = o.out / 'answers' / f'{name}.jsonl'
          samples = range(0 if o.greedy else 1, 1 + settings['k'])
          cell = Cell(path, len(suite.examples), samples, settings)
          yield Asked(cell, model, suite, variant, temperature)


def _trained_on(o: Options, model: str, say: Callable) -> list[str]:
  """Returns the questions of the finite data set of a model's run."""
  run_config = loading.run_of(model)
  try:
    return suites.training_of(run_config) if run_config else []
  except (OSError, ValueError, ImportError) as e:
    text = f'{model}: its training data cannot be compared with suites ({e})'
    if not o.allow_contamination:
      raise ValueError(
        f'{text}; --allow_contamination evaluates all the same'
      ) from e
    say(text)
    return []


def _contaminated(
  o: Options, model: str, suite: Suite, say: Callable
) -> float | None:
  """Computes the share of a suite's problems with n-grams in training texts;
  None without training texts.

  Raises:
    ValueError: it is above the limit, without --allow_contamination.
  """
  own = _trained_on(o, model, say)
  if not (own or o.train):
    return None

  def training():
    yield from contamination.numbered(f'train of {model}', own)
    for name in o.train:
      yield from suites.texts(name)

  questions = [e['prompt'] for e in suite.examples]
  found = contamination.hits(questions, training(), o.ngram)
  share = len(found) / len(questions)
  if found and hosts.is_main():
    path = o.out / f'contamination--{slug(model)}--{slug(suite.name)}.jsonl'
    o.out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dataclasses.asdict(hit)) + '\n' for hit in found]
    files.write_whole(path, ''.join(lines))
  if found:
    first = found[0]
    text = (
      f'{suite.name}: {share:.2%} of {len(questions)} problems have '
      f'{o.ngram} words in a row in common with training texts, as problem '
      f'{first.problem} with {first.where} ({first.words[:60]!r})'
    )
    if share > o.contamination_limit and not o.allow_contamination:
      raise ValueError(
        f'{text}; more than --contamination_limit={o.contamination_limit:g}. '
        '--allow_contamination evaluates all the same'
      )
    say(text)
  return share


def _load(o: Options, mesh: jax.sharding.Mesh, model: str) -> tuple:
  """Returns (a model, the weights of its program, the functions of --base, the
  judge of --judge); the last two may be None.
  """
  found = loading.load(model, dtype=o.dtype, mesh=mesh)
  params, base = answer_programs.Weights(found.params), None
  if o.base:
    other = loading.load(o.base, dtype=o.dtype, mesh=mesh)
    _refuse_other_tokens(found, '--base', other)
    params, base = params._replace(base=other.params), other.model
  judge = None
  if o.judge:
    judge = answer_judges.load(o.judge, found, mesh)
    _refuse_other_tokens(found, '--judge', judge)
    params = params._replace(judge=judge.params)
  if o.top_logprobs > found.shape.vocab:
    raise ValueError(
      f'--top_logprobs={o.top_logprobs}: {model} has {found.shape.vocab} '
      'tokens; choose at most this number'
    )
  return found, params, base, judge


def _answer(
  o: Options,
  mesh: jax.sharding.Mesh,
  model: str,
  todo: Sequence[Asked],
  done: dict[epath.Path, int],
  stack: contextlib.ExitStack,
  tell: Callable[[int], Any],
) -> None:
  """Loads a model and fills its cells."""
  found, params, *others = _load(o, mesh, model)
  programs, graders = {}, {}
  for a in todo:
    settings, suite = a.cell.settings, a.suite
    written = prompts.write(
      a.variant, found, suite, system=o.system, thinking=o.thinking
    )
    longest = max(map(len, written.ids))
    room = -(-longest // BUCKET) * BUCKET
    leaf = settings.get('leaf')
    kernel = leaf and leaf_verifiers.kernel_of(suite, leaf)
    encoded = [kernel.encode(e) for e in suite.examples] if kernel else None
    asked = answers.EvalSet(suite.examples, written.ids, room, encoded)
    grid = answers.Grid.make(
      a.cell.problems, a.cell.samples, o.batch, sharding.row_shards(mesh)
    )
    key = grid.s, settings['max_new'], suite.name if kernel else ''
    if key not in programs:
      programs[key] = _program(o, found, *others, *key[:2], settings, kernel)
    if suite.reward not in graders:
      graders[suite.reward] = _grader(o, suite.reward, stack)
    sampler = answers.AnswerSampler(
      programs[key],
      params,
      mesh=mesh,
      tokenizer=found.tokenizer,
      sampling=cell_settings.sampling(
        o, a.temperature, found.tokenizer, written.stop
      ),
      stop=jnp.asarray(written.stop, jnp.int32),
      key=_noise(o, a),
      grade=graders[suite.reward],
      budgets=tuple(settings['budgets']),
      about={k: v for k, v in a.about.items() if k != 'temperature'},
      whole=not a.variant.hint,
    )
    with jax.set_mesh(mesh):
      a.cell.fill(sampler, asked, grid, done[a.cell.path], tell)


def _program(
  o: Options, found, base, judge, n_samples: int, max_new: int, settings, kernel
) -> Callable:
  """Builds the program that samples the answers of cells with `settings`."""
  tokenizer = found.tokenizer
  encode = functools.partial(chat.encode_after, tokenizer)
  return answer_programs.make_generate(
    found.model,
    n_samples,
    max_new,
    details=True,
    forced=forcing.make(encode, max_new, **cell_settings.forced(o)),
    base=base,
    chunks=cell_settings.chunks_of(settings),
    power=cell_settings.power_of(settings),
    search=cell_settings.search_of(settings, tokenizer, judge),
    top=o.top_logprobs,
    judge=judge and judge.of,
    verifier=kernel and leaf_verifiers.score_of(kernel, tokenizer, max_new),
  )


def _noise(o: Options, a: Asked) -> jax.Array:
  """Returns the key of a cell's noise, which models and prompts share."""
  key = trees.named_key(jax.random.key(o.seed), a.suite.name)
  own = a.cell.settings.get('noise')
  return trees.named_key(key, own) if own else key


def _refuse_other_tokens(
  model: loading.Loaded, flag: str, other: loading.Loaded | answer_judges.Judge
) -> None:
  """Refuses a second model with another tokenizer, because it reads the
  sampled tokens.
  """
  a, b = model.tokenizer, other.tokenizer
  if a.token_bytes() != b.token_bytes():
    raise ValueError(
      f'{flag}={other.name} has other tokens than {model.name}, whose answers '
      'it reads: choose models of one tokenizer'
    )


def _grader(o: Options, reward: str, stack: contextlib.ExitStack) -> Callable:
  """Starts the worker processes that verify answers during the evaluation."""
  pool = stack.enter_context(
    VerifierPool(reward, workers=o.workers, timeout_s=o.timeout_s)
  )

  def grade(cases):
    found = pool.map(cases)
    problem = all_failed(found)
    if problem and len(found) > 1:
      raise ValueError(f'{reward}: {problem}')
    return found

  return grade


def _outcomes(
  plan: Sequence[Asked], shares: dict[tuple[str, str], float | None]
) -> Iterator[outcome.Outcome]:
  """Returns the results; each model is compared with the first on its
  problems.
  """
  first: dict[tuple, list[dict]] = {}

  def made(
    a: Asked, rows: list[dict], temperature: float | str
  ) -> outcome.Outcome:
    base = first.setdefault((a.suite.name, a.variant.name, temperature), rows)
    against = None if base is rows else base
    about = {**a.about, 'temperature': temperature}
    return outcome.make(about, rows, against, shares[a.model, a.suite.name])

  def question(a: Asked) -> tuple[str, str, str]:
    return a.model, a.suite.name, a.variant.name

  for _, same in itertools.groupby(plan, question):
    same = list(same)
    rows = [a.cell.rows() for a in same]
    for a, own in zip(same, rows):
      yield made(a, own, a.temperature)
    if len(same) > 1:
      yield made(same[0], outcome.joined_temperatures(rows), outcome.ALL)
