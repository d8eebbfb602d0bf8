"""Takes the first problems of a source, without repeats.

Intervals assume that problems are independent. Splits of files have no repeats,
but a generator can draw one problem many times.
"""

from collections.abc import Hashable

from absl import logging

from jaxrl_reason.verifiers import tasks

# Most draws, in multiples of the problems that are asked for.
DRAWS = 10


def first(source, n: int) -> list[dict]:
  """Returns the first n different problems of a source.

  There are fewer if the source is shorter, or if DRAWS * n draws have fewer;
  then a warning has their number. Games are never repeats: the prompt of many
  is the same, and the environment deals.
  """
  found, draws = {}, min(DRAWS * n, len(source))
  for i in range(draws):
    example = source[i]
    found.setdefault(_identity(example, i), example)
    if len(found) == n:
      break
  problems = [dict(example) for example in found.values()]
  if len(problems) < min(n, len(source)):
    logging.warning(
      '%s: %d draws have only %d different problems, and %d were asked for. '
      'The evaluation uses these. Harder knobs of the task have more.',
      problems[0]['task'],
      draws,
      len(problems),
      n,
    )
  return problems


def _identity(example: dict, index: int) -> Hashable:
  """Returns a value that is equal for repeats of a problem. Sources of a
  mixture may ask the same problem in other ways.
  """
  name = example['task']
  if name in tasks.GAMES or not tasks.is_known(name):
    return index
  return example.get('source'), name, tasks.get(name).identity(example)
