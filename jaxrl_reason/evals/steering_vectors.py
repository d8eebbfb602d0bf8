"""Steering vectors from right minus wrong answers.

  v = mean over problems of (mean state of right - mean state of wrong answers)

The state is that after one layer, at the last token of an answer or the mean
over its tokens. Only problems with both kinds of answers count, so the prompt
has no part in v. The file has the array `steering` f32 [L,D], 0 in all other
layers, in the form of the vectors of `models.adapters.steering`. A model

  steered:MODEL+FILE*strength

adds strength * v to the residual stream after the layer, at every token, as one
direction is added in Efficiency Steering (https://arxiv.org/abs/2506.15647).
"""

import dataclasses
import io
import itertools
import operator
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Rows
from jaxrl_reason.checkpoints import files
from jaxrl_reason.evals import loading
from jaxrl_reason.models.adapters import steering
from jaxrl_reason.names import program
from jaxrl_reason.rollouts.hidden_states import HiddenStates, wrong_layers
from jaxrl_reason.verifiers import records
from jaxrl_reason.verifiers.verdict import FAILED


@dataclasses.dataclass(frozen=True)
class Options:
  """Settings of `jaxrl steer`.

  Attributes:
    model: name of the model (`loading`); answers: files of records with
      verdicts, of this model.
    out: file to write, .npz.
    layer: number of the layer; negative numbers count from the end.
    token: last or mean (`rollouts.hidden_states.TOKENS`).
    batch: answers at a time; dtype: of weights and computation, or None.
  """

  model: str
  answers: tuple[str, ...]
  out: pathlib.Path
  layer: int
  token: str
  batch: int = 32
  dtype: str | None = None


def pairs_of(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping]]:
  """Returns the verified answers of every problem that has right and wrong
  ones.

  Raises:
    ValueError: there is no such problem, or a line lacks a prompt.
  """
  seen: dict[Any, list[Mapping]] = {}
  for row in rows:
    verdict = row.get('verdict') or {'status': 'error'}
    if verdict['status'] in FAILED:
      continue
    if not isinstance(row.get('prompt'), str):
      raise ValueError('--answers: a line has no text as its prompt')
    key = row['prompt'], row.get('problem')
    seen.setdefault(key, []).append(row)
  groups = [g for g in seen.values() if len({*map(is_right, g)}) == 2]
  if not groups:
    raise ValueError(
      '--answers: no problem has both a right and a wrong answer; sample '
      f'several answers of each, such as with {program()} evaluate --k=8'
    )
  return groups


def is_right(row: Mapping[str, Any]) -> bool:
  """Returns whether an answer has a score above 0.5."""
  return row['verdict']['score'] > 0.5


def direction(
  states: np.ndarray, groups: Sequence[Sequence[Mapping]]
) -> np.ndarray:
  """Computes the vector f64 [D] of states [answers,D], in the order of the
  groups.
  """
  differences, first = [], 0
  for group in groups:
    own = np.asarray(states[first : first + len(group)], np.float64)
    right = np.array([is_right(row) for row in group])
    differences.append(own[right].mean(axis=0) - own[~right].mean(axis=0))
    first += len(group)
  return np.mean(differences, axis=0)


def run(o: Options, say: Callable[[str], Any], bar: Callable) -> str:
  """Computes the vector and writes the file; returns a line about it.

  Raises:
    ValueError: names the flag.
  """
  rows = itertools.chain.from_iterable(map(records.read, o.answers))
  groups = pairs_of(map(operator.itemgetter(1), rows))
  found = loading.load(o.model, dtype=o.dtype)
  layers = found.shape.layers
  if found.model.hidden_after is None:
    raise ValueError(f'--model={o.model}: a sum of models has no layers')
  steering.spec_of(found.model.specs)  # refuses models that it cannot steer
  if wrong := wrong_layers((o.layer,), layers):
    raise ValueError(f'--layer={o.layer}: {wrong}')
  answers = [row for group in groups for row in group]
  states = _states(o, found, answers, bar)
  vectors = np.zeros((layers, states.shape[1]), np.float32)
  vectors[o.layer] = direction(states, groups)
  say(f'{len(answers)} answers of {len(groups)} problems with both kinds.')
  o.out.parent.mkdir(parents=True, exist_ok=True)
  data = io.BytesIO()
  np.savez(data, **{steering.KEY: vectors})
  files.write_whole(o.out, data.getvalue())
  length = np.linalg.norm(vectors[o.layer])
  typical = np.linalg.norm(states, axis=1).mean()
  return (
    f'{o.out}: a vector after layer {o.layer % layers} of {layers}, of length '
    f'{length:.3g}; states have {typical:.3g}\n'
    f'model: steered:{found.name}+{o.out}*1'
  )


def _states(o: Options, found: loading.Loaded, answers, bar) -> np.ndarray:
  """Computes the states [answers,D], `o.batch` answers at a time."""
  encoded = [_encoded(found.tokenizer, row) for row in answers]
  width = max(len(tokens) for tokens, _ in encoded)
  of_batch = jax.jit(HiddenStates(found.model, (o.layer,), o.token))
  out = []
  with bar('states', len(encoded), 0, unit='answer') as shown:
    for first in range(0, len(encoded), o.batch):
      part = encoded[first : first + o.batch]
      shown.update(len(part))
      part += [part[-1]] * (o.batch - len(part))  # one shape for all
      out.append(np.asarray(of_batch(found.params, *_rows(part, width))))
  return np.concatenate(out)[: len(encoded)]


def _encoded(tokenizer, row: Mapping[str, Any]) -> tuple[list[int], int]:
  """Returns the tokens of an answer after its prompt, and the prompt's
  length. A whole answer ends with the stop token.
  """
  prefix = getattr(tokenizer, 'prefix_ids', ())
  prompt = [*prefix, *tokenizer.encode(row['prompt'])]
  stop = [] if row.get('truncated') else [tokenizer.eos_ids[0]]
  return [*prompt, *tokenizer.encode(row['completion']), *stop], len(prompt)


def _rows(part, width: int) -> tuple[Rows, jax.Array]:
  """Returns right-padded rows [n,width] and their sampled tokens."""
  tokens = [np.pad(x, (0, width - len(x))) for x, _ in part]
  length, start = np.array([(len(x), n) for x, n in part]).T[..., None]
  at = np.arange(width)
  tokens = np.asarray(tokens, np.int32)
  valid = at < length
  return Rows(jnp.asarray(tokens), jnp.asarray(valid)), valid & (at >= start)
