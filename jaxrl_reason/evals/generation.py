"""Generates completions: one prompt to the terminal, or file to file."""

import argparse
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import command, ranges
from jaxrl_reason.base import Model
from jaxrl_reason.data import chat, pipeline
from jaxrl_reason.evals import loading, sampling_settings, text_stream
from jaxrl_reason.rollouts import automaton, forcing, sampler
from jaxrl_reason.verifiers import records

ARGUMENTS = {
  'n': ranges.COUNT,
  'max_new': ranges.COUNT,
  'seed': ranges.SEED,
  'batch': ranges.COUNT,
  **ranges.SAMPLING,
  **ranges.FORCING,
}
FORCED = ('least', 'wait', 'most', 'final')
OF_CHAT = 'system', 'thinking'  # flags of chat templates
BUCKET = 64  # prompts are padded to multiples of so many tokens


@dataclasses.dataclass
class Generator:
  """A model with its tokenizer; compiles once per shape.

  Attributes:
    template: its chat template; None: prompts are plain text.
    name: of the model; version: see `loading.Loaded`.
    n_samples, max_new: completions per prompt, tokens of each.
    sampling, biases: see `sampling_settings.make`; seed: of the noise.
    forced: arguments of `forcing.make`.
    vocab: tokens of the model, which may be more than the tokenizer's.
    stops: texts that end a completion; `text` cuts them off.
    expression: regular expression that completions match; '': none.
  """

  model: Model
  params: Any
  tokenizer: Any
  template: chat.ChatTemplate | None
  name: str
  n_samples: int
  max_new: int
  sampling: Mapping[str, float]
  vocab: int
  seed: int = 0
  on_token: Callable | None = None
  forced: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  biases: Mapping[str, float] = dataclasses.field(default_factory=dict)
  stops: Sequence[str] = ()
  expression: str = ''
  version: str = ''

  def __post_init__(self):
    eos = self.tokenizer.eos_ids
    if self.template is not None:
      end = chat.turn_end(self.template, self.tokenizer)
      eos = eos if end is None else (*eos, end)
    stops, ids = sampling_settings.stops(self.stops, self.tokenizer)
    self._stop = jnp.asarray((*eos, *ids), jnp.int32)
    self._compiled = functools.cache(self._compile)
    encode = functools.partial(chat.encode_after, self.tokenizer)
    self._forcing = forcing.make(encode, self.max_new, **self.forced)
    self._automaton = self._follow(stops, eos)
    given = self.sampling, self.biases, self.tokenizer
    self._sampling = sampling_settings.make(*given)

  def _follow(
    self, stops: Sequence[str], eos: Sequence[int]
  ) -> automaton.Automaton | None:
    """Returns the automaton of texts that end a completion, or of
    `expression`.
    """
    if not (stops or self.expression):
      return None
    tokens = self.tokenizer.token_bytes()
    if stops:
      return automaton.of_stops(stops, tokens, self.vocab)
    return automaton.of_expression(self.expression, tokens, self.vocab, eos)

  def ids(self, prompt: str | chat.Messages, **options: Any) -> list[int]:
    """Returns the tokens of a prompt: a text, or messages for the chat
    template.

    Args:
      options: of `ChatTemplate.render`.
    """
    if self.template is None:
      prefix = getattr(self.tokenizer, 'prefix_ids', ())
      found = [*prefix, *self.tokenizer.encode(prompt)]
    else:
      found = self.tokenizer.encode(self.template.render(prompt, **options))
    if not found:
      raise ValueError('the prompt is empty: it has no token to go on from')
    return found

  def __call__(
    self, prompts: Sequence[list[int]], indices: Sequence[int]
  ) -> tuple[list[list[list[int]]], float]:
    """Returns (completions by prompt, each a list of tokens; seconds without
    compilation).

    Args:
      prompts: tokens of each.
      indices: number of each prompt, which determines its noise.
    """
    room = -(-max(map(len, prompts)) // BUCKET) * BUCKET
    rows = [pipeline.pad_prompt(ids, room, 'prompt') for ids in prompts]
    tokens, valid = (np.stack([r[k] for r in rows]) for k in rows[0])
    g = self.n_samples
    row_ids = (np.asarray(indices)[:, None] * g + np.arange(g)).reshape(-1)
    run = self._compiled(*tokens.shape)
    begun = time.monotonic()
    row_ids = row_ids.astype(np.int32)
    out = run(self.params, tokens, valid, row_ids, self._automaton)
    drawn, lengths = np.asarray(out.tokens), np.asarray(out.length)
    jax.effects_barrier()  # every token was printed
    seconds = time.monotonic() - begun
    each = [row[:n].tolist() for row, n in zip(drawn, lengths)]
    return [each[i : i + g] for i in range(0, len(each), g)], seconds

  def _compile(self, b: int, length: int):
    def f(params, tokens, valid, row_ids, follow):
      return sampler.generate(
        self.model,
        params,
        tokens,
        valid,
        jax.random.key(self.seed),
        self._sampling.replace(automaton=follow),
        self._stop,
        n_samples=self.n_samples,
        max_new=self.max_new,
        row_ids=row_ids,
        on_token=self.on_token,
        forcing=self._forcing,
      )

    of = jax.ShapeDtypeStruct
    rows = of((b * self.n_samples,), jnp.int32)
    shapes = of((b, length), jnp.int32), of((b, length), bool), rows
    shapes += (self._automaton,)
    return jax.jit(f).lower(self.params, *shapes).compile()

  def stopped(self, tokens: list[int]) -> bool:
    """Returns whether a completion ended with a stop token or text."""
    if tokens and tokens[-1] in self._stop.tolist():
      return True
    text = self.tokenizer.decode(tokens) if self.stops else ''
    return any(stop in text for stop in self.stops)

  def text(self, tokens: list[int]) -> str:
    """Returns the text of a completion, up to the first of `stops`."""
    return text_stream.before(self.tokenizer.decode(tokens), self.stops)


def load(
  name: str,
  dtype: str | None,
  use_chat: bool,
  *,
  sampling: Mapping[str, float | None],
  **settings: Any,
) -> Generator:
  """Returns the Generator of a folder, a model on the Hub, or a workdir.

  Args:
    sampling: flags of `sampling_settings.of_model`.

  Raises:
    ValueError: there is no such model, tokenizer or template.
  """
  found = loading.load(name, dtype=dtype)
  if use_chat and found.texts is None:
    raise ValueError(f'{name} began from no folder: it has no chat template')
  return Generator(
    found.model,
    found.params,
    found.tokenizer,
    chat.load(found.texts, loading.day_of(found.run)) if use_chat else None,
    found.name,
    sampling=sampling_settings.of_model(found.texts, sampling),
    vocab=found.shape.vocab,
    version=found.version,
    **settings,
  )


def show(g: Generator, ids: list[int], write: Callable[[str], Any]) -> str:
  """Prints the completions of one prompt, the first while it is generated.

  Returns:
    A line with the speed.
  """
  g.on_token = text_stream.TextStream(g.tokenizer, write, g.stops)
  (completions,), seconds = g([ids], [0])
  g.on_token.close()
  for i, tokens in enumerate(completions[1:], 2):
    write(f'\n--- {i} of {len(completions)}\n{g.text(tokens)}')
  write('\n')
  n = sum(map(len, completions))
  return f'{n} tokens in {seconds:.2f} s: {n / seconds:.1f} tokens/s'


def settings_of(g: Generator, options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings that completions depend on, as JSON values."""
  template = 'chat' if g.template else options.get('template') or 'none'
  return {
    'model': g.name,
    'version': g.version,
    'template': template,
    **{key: options.get(key) or '' for key in OF_CHAT},
    **(chat.settings_of(g.template) if g.template else {}),
    **g.sampling,
    **g.forced,
    'logit_bias': dict(g.biases),
    'stop': list(g.stops),
    'expression': g.expression,
    'n': g.n_samples,
    'max_new': g.max_new,
    'seed': g.seed,
    'dtype': str(jax.tree.leaves(g.params)[0].dtype),
  }


def to_file(
  g: Generator, source, out, *, batch: int, **options: Any
) -> tuple[int, float]:
  """Appends the completions of a JSONL file of prompts to another file.

  Returns:
    (completion tokens, seconds of generation) of the new completions.

  Raises:
    ValueError: a line has no prompt, or `out` belongs to another file.
  """
  rows, done = records.prompts(source), records.finished(out)
  records.check_same(done, rows, g.n_samples, out)
  records.note(pathlib.Path(out), settings_of(g, options))
  records.cut_torn(out)
  if len(done) == len(rows) * g.n_samples:
    return 0, 0.0
  # A batch is sampled again as a whole: its longest prompt is that of the
  # program, and other shapes round differently.
  first, n, seconds = len(done) // g.n_samples // batch * batch, 0, 0.0
  skip = len(done) - first * g.n_samples
  with open(out, 'a', encoding='utf-8') as f:
    for start in range(first, len(rows), batch):
      part = rows[start : start + batch]
      # The last, smaller batch is filled up, so there is one program.
      filled = part + part[-1:] * (batch - len(part))
      ids = [_ids(g, row, options) for row in filled]
      drawn, s = g(ids, [start + i for i in range(len(filled))])
      lines = [
        line
        for i, (row, completions) in enumerate(zip(part, drawn))
        for line in _records(g, row, start + i, completions)
      ][skip if start == first else 0 :]
      f.writelines(map(records.line_of, lines))
      f.flush()
      n += sum(line['length'] for line in lines)
      seconds += s
  return n, seconds


def _records(
  g: Generator, row: dict, number: int, completions: list[list[int]]
) -> list[dict]:
  return [
    records.record(
      row,
      number=number,
      sample=i,
      completion=g.text(tokens),
      length=len(tokens),
      truncated=not g.stopped(tokens),
      model=g.name,
      temperature=g.sampling['temperature'],
    )
    for i, tokens in enumerate(completions)
  ]


def _ids(g: Generator, row: dict, options: dict) -> list[int]:
  """Returns the tokens of a line's prompt."""
  if g.template is None:
    if 'prompt' not in row:
      raise ValueError('"messages" need --chat')
    return g.ids(chat.plain(options.get('template') or 'none', row['prompt']))
  thinking = chat.THINKING[options.get('thinking') or '']
  said, system = row.get('messages'), options.get('system')
  if said is None:
    said = [{'role': 'user', 'content': row['prompt']}]
  if system and not any(m.get('role') == 'system' for m in said):
    said = [{'role': 'system', 'content': system}, *said]
  return g.ids(said, enable_thinking=thinking)


def run(a: argparse.Namespace) -> str:
  """Generates as the flags of `jaxrl generate` say; returns its speed.

  Raises:
    ValueError: names the flag.
  """
  if (a.prompt is None) == (a.file is None):
    raise ValueError('one of --prompt and --file is needed')
  if (a.file is None) != (a.out is None):
    raise ValueError('--file and --out go together')
  command.local_files({'--out': a.out})
  flags = {key: getattr(a, key) for key in ranges.SAMPLING}
  given = {k: v for k, v in flags.items() if v is not None}
  neutral = sampling_settings.NEUTRAL
  ranges.check(vars(a) | neutral | given, ARGUMENTS, '--')
  command.one_of('--thinking', a.thinking, chat.THINKING)
  command.one_of('--template', a.template, ('', *chat.PLAIN))
  _refuse_without_effect(a)
  command.one_of('--dtype', a.dtype, ('', 'float32', 'bfloat16'))
  forcing.refuse_alone(*(getattr(a, name) for name in FORCED))
  _refuse_together(a)
  command.input_files({'--file': a.file, '--json_schema': a.json_schema})
  expression = automaton.expression_of(a.regex, a.json_schema or '', '--')
  g = load(
    a.model,
    a.dtype or None,
    a.chat,
    n_samples=a.n,
    max_new=a.max_new,
    sampling=flags,
    seed=a.seed,
    forced={name: getattr(a, name) for name in FORCED},
    biases=command.json_object('--logit_bias', a.logit_bias),
    stops=a.stop,
    expression=expression,
  )
  options = {k: getattr(a, k) for k in (*OF_CHAT, 'template')}
  if a.prompt is not None:

    def write(text):
      return print(text, end='', flush=True)

    line = show(g, _ids(g, {'prompt': a.prompt}, options), write)
  else:
    n, s = to_file(g, a.file, a.out, batch=a.batch, **options)
    speed = f': {n / s:.1f} tokens/s' if n else ', nothing was left to do'
    line = f'{n} tokens in {s:.2f} s{speed}'
  neutral = sampling_settings.NEUTRAL
  used = ' '.join(
    f'{k}={v:g}'
    for k, v in g.sampling.items()
    if not k.endswith('_penalty') or v != neutral[k]
  )
  return f'{line} ({used})'


def _refuse_together(a: argparse.Namespace) -> None:
  """Refuses flags that each determine where a completion ends."""
  kinds = 'stop', 'regex', 'json_schema', 'least', 'most'
  given = [f'--{key}' for key in kinds if getattr(a, key)]
  if len(given) > 1 and given != ['--least', '--most']:
    raise ValueError(f'{" and ".join(given)} cannot be combined')
  if a.stop and not all(a.stop):
    raise ValueError('--stop= is empty: name the text that ends a completion')


def _refuse_without_effect(a: argparse.Namespace) -> None:
  """Refuses flags that the prompt does not depend on."""
  for key in ('template',) if a.chat else OF_CHAT:
    if getattr(a, key):
      other = 'has no effect with --chat' if a.chat else 'needs --chat'
      raise ValueError(f'--{key}={getattr(a, key)} {other}')
