"""Computes digests of data and code, to compare two runs or two processes.

of_run(...)      data, tokenizer, stages, code: part of every checkpoint
of_start(...)    config, code, jax: compared by processes that start together
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

import jaxrl_reason
from jaxrl_reason.config import changes
from jaxrl_reason.data import pipeline
from jaxrl_reason.verifiers.named_code import digest, of_named_code

# Of an endless source the first SAMPLED examples are hashed, of a source with
# more than MOST every n-th, so that a start takes no more than seconds.
SAMPLED, MOST = 16, 20_000
# A text whose encoding identifies a tokenizer.
PROBE = 'The answer is \\boxed{-12.5}. Añb 数学 <|im_end|>\n  x\t~!@#$%^&*()'


def of_source(source) -> str:
  """Computes the digest of a split's examples."""
  if source is None:
    return 'none'
  n = len(source)
  if n >= pipeline.ENDLESS:
    rows = range(SAMPLED)
  else:
    rows = range(0, n, -(-n // MOST) or 1)
  examples = [dict(source[i]) for i in rows]
  for example in examples:
    example.pop('place', None)  # a file may be moved
  return digest([n, *examples])


def of_tokenizer(tokenizer, source) -> str:
  """Computes the digest of the tokens of the first problems and of PROBE."""
  texts = [source[i]['prompt'] for i in range(min(SAMPLED, len(source)))]
  ids = [list(map(int, tokenizer.encode(text))) for text in texts]
  try:
    ids.append(list(map(int, tokenizer.encode(PROBE))))
  except (KeyError, ValueError):
    ids.append([])  # it lacks some of the characters
  return digest([tokenizer.vocab_size, list(tokenizer.eos_ids), *ids])


@functools.cache
def of_code() -> str:
  """Returns the version, and the digest of the package's files."""
  folder = pathlib.Path(jaxrl_reason.__file__).parent
  paths = sorted(folder.rglob('*.py'), key=str)
  texts = {str(p.relative_to(folder)): p.read_text() for p in paths}
  return f'{jaxrl_reason.__version__}+{digest(texts)}'


def of_run(problems, tokenizer, stages) -> dict[str, Any]:
  """Returns the origin of a run, which its checkpoints contain."""
  splits = ('train', 'heldout', 'harder')
  data = {split: of_source(getattr(problems, split)) for split in splits}
  if problems.pairs:
    # Those of an earlier stage do not exist at the start.
    known = [x for x in problems.pairs.values() if not callable(x)]
    data['pairs'] = [of_source(pairs) for pairs in known]
  return {
    'data': data,
    'tokenizer': of_tokenizer(tokenizer, problems.train),
    'stages': list(stages),
    'code': of_code(),
  }


def of_start(values: Mapping, workdir) -> dict[str, Any]:
  """Returns the facts that all processes of a run must agree on.

  Args:
    values: of the config (`Record.json_values`).
  """
  flat = changes.flat(values)
  keys = {f'config.{k.replace("/", ".")}': v for k, v in flat.items()}
  code = {f'the code of {k}': v for k, v in of_named_code(values).items()}
  return (
    keys
    | code
    | {
      '--workdir': str(workdir),
      'the code of jaxrl_reason': of_code(),
      'jax': jax.__version__,
    }
  )
