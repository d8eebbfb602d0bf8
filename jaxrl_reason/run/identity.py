"""What a run is, so that two of them can be told apart.

of_run(...)      data, tokenizer, stages, code: kept with every checkpoint
of_start(...)    config, code, jax: compared by processes that start together
"""

import functools
import hashlib
import json
import pathlib
from typing import Any

import jax
import ml_collections

import jaxrl_reason
from jaxrl_reason import trees
from jaxrl_reason.data import pipeline

# Examples hashed of each split: of an endless source the first few, of more
# than MOST every n-th, so that a start takes no more than seconds.
SAMPLED, MOST = 16, 20_000
# What any tokenizer must encode as it did.
PROBE = 'The answer is \\boxed{-12.5}. Añb 数学 <|im_end|>\n  x\t~!@#$%^&*()'


def digest(value: Any) -> str:
  """Digests a value to sixteen hexadecimal digits."""
  text = json.dumps(value, sort_keys=True, default=str)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_source(source) -> str:
  """Computes the digest of a split's examples."""
  if source is None:
    return 'none'
  n = len(source)
  if n >= pipeline.ENDLESS:
    rows = range(SAMPLED)
  else:
    rows = range(0, n, -(-n // MOST) or 1)
  return digest([n, *(dict(source[i]) for i in rows)])


def of_tokenizer(tokenizer, source) -> str:
  """Computes the digest of what a tokenizer makes of the first problems."""
  texts = [source[i]['prompt'] for i in range(min(SAMPLED, len(source)))]
  ids = [list(map(int, tokenizer.encode(text))) for text in texts]
  try:
    ids.append(list(map(int, tokenizer.encode(PROBE))))
  except (KeyError, ValueError):
    ids.append([])  # characters that it does not have
  return digest([tokenizer.vocab_size, list(tokenizer.eos_ids), *ids])


@functools.cache
def of_code() -> str:
  """Returns the version, and the digest of the package's files."""
  folder = pathlib.Path(jaxrl_reason.__file__).parent
  paths = sorted(folder.rglob('*.py'), key=str)
  texts = {str(p.relative_to(folder)): p.read_text() for p in paths}
  return f'{jaxrl_reason.__version__}+{digest(texts)}'


def of_run(problems, tokenizer, stages) -> dict[str, Any]:
  """Returns the origin of a run, as its checkpoints keep it."""
  splits = ('train', 'heldout', 'harder')
  data = {split: of_source(getattr(problems, split)) for split in splits}
  return {
    'data': data,
    'tokenizer': of_tokenizer(tokenizer, problems.train),
    'stages': list(stages),
    'code': of_code(),
  }


def of_start(config: ml_collections.ConfigDict, workdir) -> dict[str, Any]:
  """Tells what every process of a run must have been started with."""
  flat = trees.flatten(json.loads(config.to_json_best_effort()))
  keys = {f'config.{k.replace("/", ".")}': v for k, v in flat.items()}
  return keys | {
    '--workdir': str(workdir),
    'the code of jaxrl_reason': of_code(),
    'jax': jax.__version__,
  }
