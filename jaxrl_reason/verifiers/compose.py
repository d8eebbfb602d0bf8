"""Composes a dict of parts to one reward: weights, gates, routing, schedules.

  score = sum over parts that apply of  weight * gate * part's score

```
spec = {
  'answer': 'math',                       # a name, a function, or a dict:
  'format': {
    'reward': 'my_module:has_think_tags',  # name or function
    'weight': 0.2,                         # default 1
    'needs': 'answer',                     # or a list: counts only if ...
    'threshold': 0.5,                      # ... each of them scores >= this
    'task': ['arithmetic', 'countdown'],   # only for these tasks; also
    'domain': 'math',                      #   'domain'; one or a list
    'kwargs': {'strict': True},            # further arguments of the function
  },
  'short': {'reward': 'my_module:brevity',
            'weight': {'by': 'step', 'at': [0, 1000], 'values': [0, 0.1]}},
}
```
A scheduled weight is piecewise linear in `example['state'][by]`, and constant
outside of `at`: by 'step', or by another number of the run (solve rate, mean
length). A part whose `needs` are not met is not run and counts 0. If a part
fails, the whole verdict is invalid.
"""

import bisect
import dataclasses
import functools
import numbers
from collections.abc import Collection, Mapping, Sequence

from jaxrl_reason.verifiers import resolve
from jaxrl_reason.verifiers.verdict import Reward, Verdict, judge

KEYS = frozenset(
  ('reward', 'weight', 'needs', 'threshold', 'task', 'domain', 'kwargs')
)
SINGLE = 'reward'  # the name of the only part of a plain function


@dataclasses.dataclass(frozen=True)
class Part:
  """One row of a spec, checked and with its function loaded."""

  name: str
  function: Reward
  weight: float | Mapping
  needs: tuple[str, ...]
  threshold: float
  route: Mapping[str, frozenset]  # 'task' / 'domain' -> allowed values

  def applies(self, example: dict) -> bool:
    return all(
      example.get(key) in allowed for key, allowed in self.route.items()
    )


@dataclasses.dataclass(frozen=True)
class Composed:
  """`compose`'s result: a reward whose verdicts carry `parts`."""

  parts: tuple[Part, ...]  # ordered so that needed parts come first

  def __call__(self, completion: str, example: dict) -> Verdict:
    done: dict[str, Verdict] = {}
    score = 0.0
    for part in self.parts:
      if not part.applies(example):
        continue
      verdict = self._run(part, done, completion, example)
      if not verdict.valid:
        return dataclasses.replace(verdict, parts=_scores(done))
      done[part.name] = verdict
      score += weight_at(part.weight, example) * verdict.score
    if not done:
      raise ValueError(
        f'no part of the reward applies to task {example.get("task")!r}, '
        f'domain {example.get("domain")!r}'
      )
    first = next(iter(done.values()))
    own = first.status, first.extracted, first.detail
    return Verdict(score, *own, parts=_scores(done))

  @staticmethod
  def _run(part, done, completion, example) -> Verdict:
    for needed in part.needs:
      if needed not in done or done[needed].score < part.threshold:
        return Verdict(0.0)
    return judge(part.function, completion, example)


def _scores(done: Mapping[str, Verdict]) -> dict[str, float]:
  return {name: verdict.score for name, verdict in done.items()}


def compose(spec: Mapping) -> Composed:
  """Builds the reward that a spec (see the module) describes."""
  if not spec:
    raise resolve.RewardError('a composed reward needs at least one part')
  parts = {name: _part(name, value) for name, value in spec.items()}
  return Composed(tuple(_gates_first(parts)))


def build(reward) -> Reward:
  """Turns a name, function or spec into the function to call."""
  if isinstance(reward, str):
    return resolve.load(reward)
  if isinstance(reward, Mapping):
    return compose(reward)
  return reward


def part_names(reward) -> tuple[str, ...]:
  """Names the columns of `reward_parts`, in the order of the spec."""
  return tuple(reward) if isinstance(reward, Mapping) else (SINGLE,)


def columns(
  verdicts: Sequence[Verdict], names: Sequence[str], missing: float = 0.0
) -> tuple[list[float], list[list[float]], list[bool]]:
  """Returns reward[N], reward_parts[N,R] and reward_valid[N] as lists.

  `missing` is the score of parts that do not apply to the row's task or domain.
  """
  reward = [v.score if v.valid else 0.0 for v in verdicts]
  parts = [
    [_named(v, names).get(name, missing) for name in names] for v in verdicts
  ]
  return reward, parts, [v.valid for v in verdicts]


def _named(verdict: Verdict, names: Sequence[str]) -> Mapping[str, float]:
  """Returns the parts of a verdict, unless a plain function returned them."""
  parts = verdict.parts
  if parts is None or (tuple(names) == (SINGLE,) and SINGLE not in parts):
    return {SINGLE: verdict.score}
  return parts


def weight_at(weight: float | Mapping, example: dict) -> float:
  """Returns a constant, or the schedule's value at the example's state."""
  if not isinstance(weight, Mapping):
    return weight
  by, at, values = weight['by'], weight['at'], weight['values']
  state = example.get('state') or {}
  if by not in state:
    raise ValueError(
      f'a weight follows {by!r}, but the example has '
      f"example['state'] = {state!r:.80}"
    )
  x = state[by]
  i = bisect.bisect_right(at, x)
  if i == 0 or i == len(at):
    return float(values[max(i - 1, 0)])
  share = (x - at[i - 1]) / (at[i] - at[i - 1])
  return values[i - 1] + share * (values[i] - values[i - 1])


def _part(name: str, value) -> Part:
  if not isinstance(value, Mapping):
    value = {'reward': value}
  unknown = set(value) - KEYS
  if unknown or 'reward' not in value:
    raise resolve.RewardError(
      f'part {name!r}: '
      + (f'unknown {sorted(unknown)}; ' if unknown else "'reward' is missing; ")
      + f'known are {sorted(KEYS)}'
    )
  return Part(
    name=name,
    function=functools.partial(
      build(value['reward']), **value.get('kwargs', {})
    ),
    weight=checked_weight(name, value.get('weight', 1.0)),
    needs=_as_tuple(name, 'needs', value.get('needs', ())),
    threshold=_number(name, 'threshold', value.get('threshold', 0.5)),
    route={
      key: frozenset(_as_tuple(name, key, value[key]))
      for key in ('task', 'domain')
      if key in value
    },
  )


def _as_tuple(part: str, key: str, value) -> tuple:
  names = (value,) if isinstance(value, str) else value
  if not isinstance(names, Collection) or isinstance(names, Mapping):
    raise resolve.RewardError(
      f'part {part!r}: {key}={value!r}: must be a name, or a list of names'
    )
  return tuple(names)


def _number(part: str, key: str, value) -> float:
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise resolve.RewardError(
      f'part {part!r}: {key}={value!r}: must be a number'
    )
  return float(value)


def checked_weight(name: str, weight):
  if not isinstance(weight, Mapping):
    return _number(name, 'weight', weight)
  points = [weight.get(key) for key in ('at', 'values')]
  lists = all(isinstance(x, Sequence) and x for x in points)
  at, values = map(list, points) if lists else ([], [])
  if set(weight) != {'by', 'at', 'values'} or not at or len(at) != len(values):
    raise resolve.RewardError(
      f"part {name!r}: a scheduled weight is {{'by': 'step', 'at': [...], "
      f"'values': [...]}} with as many values as points, not {dict(weight)!r}"
    )
  for key, x in [('at', x) for x in at] + [('values', x) for x in values]:
    _number(name, f'weight.{key}', x)
  if sorted(set(at)) != at:
    raise resolve.RewardError(f"part {name!r}: 'at' must increase: {at}")
  return {'by': weight['by'], 'at': at, 'values': values}


def _gates_first(parts: dict[str, Part]):
  """Sorts parts in the order of the spec, with needed parts before their
  users.
  """
  placed: dict[str, Part] = {}

  def place(name: str, path: tuple[str, ...]):
    if name not in parts:
      raise resolve.RewardError(
        f'part {path[-1]!r} needs {name!r}, which is not one of {list(parts)}'
      )
    if name in path:
      raise resolve.RewardError(f'gates form a ring: {[*path, name]}')
    for needed in parts[name].needs:
      place(needed, (*path, name))
    placed.setdefault(name, parts[name])

  for name in parts:
    place(name, ())
  return placed.values()
