"""Defines verdicts, the results of rewards, and their exchange as JSON.

A reward is a plain function `(completion: str, example: dict) -> float |
Verdict`; `example` has 'answer' (the gold answer), 'prompt', 'task', 'meta'.
A number becomes a verdict with status 'parsed'. If a verifier fails (timeout,
exception, killed worker), its verdict is not `valid`, and the trainer masks the
sample. It is not a score of 0.

`plain_of` and `read_plain` turn verdicts into JSON values and back. The process
that runs a reward is not trusted, so every field is checked when it is read.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from jaxrl_reason.verifiers import thoughts

# parsed: compared by meaning; unparsed: the answer was not parsed, so it was
# compared as text; no_answer: the completion has no answer.
STATUSES = ('parsed', 'unparsed', 'no_answer', 'timeout', 'error')
FAILED = ('timeout', 'error')  # the score is none of the completion


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
  """The result of verifying one completion."""

  score: float
  status: str = 'parsed'
  extracted: str | None = None  # the completion's answer
  detail: str | None = None  # reason: timeout, error, refusal, failed test
  parts: Mapping[str, float] | None = None  # composed rewards: unweighted

  def __post_init__(self):
    if self.status not in STATUSES:
      raise ValueError(
        f'status {self.status!r}: must be one of {", ".join(STATUSES)}'
      )

  @property
  def valid(self) -> bool:
    return self.status not in FAILED


def plain_of(verdict: Verdict) -> dict:
  """Returns the fields of a verdict as JSON values, of exact built-in types."""
  fields = {
    f.name: getattr(verdict, f.name) for f in dataclasses.fields(verdict)
  }
  parts = fields.pop('parts')
  plain = {k: None if x is None else f'{x}' for k, x in fields.items()}
  plain['score'] = float(verdict.score)
  if parts is not None:
    plain['parts'] = {f'{k}': float(v) for k, v in parts.items()}
  return plain


def read_plain(fields, kind: type[Verdict] = Verdict) -> Verdict:
  """Returns the verdict of `plain_of`'s fields.

  Raises:
    TypeError, ValueError: the fields are not those of a verdict.
  """
  if type(fields) is not dict:
    raise TypeError(f'not the fields of a verdict: {fields!r:.80}')
  verdict = kind(**fields)
  texts = dict(fields)
  score, parts = texts.pop('score'), texts.pop('parts', None)
  if type(parts) not in (dict, type(None)):
    raise TypeError(f'parts are not an object: {parts!r:.80}')
  numbers = [score, *(parts or {}).values()]
  if not all(type(x) in (int, float) for x in numbers):
    raise TypeError(f'not numbers: {numbers!r:.80}')
  if not all(x is None or type(x) is str for x in texts.values()):
    raise TypeError(f'not texts: {texts!r:.80}')
  if not math.isfinite(verdict.score):
    raise ValueError(f'the score is not finite: {verdict.score}')
  return verdict


Reward = Callable[[str, dict], 'float | Verdict']


def as_verdict(value) -> Verdict:
  """Converts a reward's return value to a Verdict; raises TypeError or
  ValueError for other values.
  """
  if isinstance(value, Verdict):
    verdict = value
  elif isinstance(value, (bool, int, float)) or hasattr(value, '__float__'):
    verdict = Verdict(float(value))
  else:
    raise TypeError(
      'a reward returns a number or a Verdict, not '
      f'{type(value).__name__}: {value!r:.80}'
    )
  if not math.isfinite(verdict.score):
    raise ValueError(f'the score is not finite: {verdict.score}')
  return verdict


def judge(reward: Reward, completion: str, example: dict) -> Verdict:
  """Calls a reward; an exception becomes a verdict of status 'error'.

  If the prompt began a thought, the completion gets its opening tag.
  """
  try:
    completion = thoughts.begun(completion, example.get('rendered', ''))
    return as_verdict(reward(completion, example))
  # Exceptions of a user's function become verdicts. The pool counts them, and
  # `all_failed` reports them.
  except Exception as e:
    return Verdict(0.0, 'error', detail=_describe(reward, e))


def _describe(reward: Reward, error: Exception) -> str:
  reward = getattr(reward, 'func', reward)  # of a functools.partial
  module = getattr(reward, '__module__', None)
  name = getattr(reward, '__qualname__', type(reward).__qualname__)
  trace = error.__traceback__
  while trace is not None and trace.tb_next is not None:
    trace = trace.tb_next
  where = ''
  if trace is not None:
    code = trace.tb_frame.f_code
    where = f' ({code.co_filename}:{trace.tb_lineno})'
  message = f'{error}'[:500]
  return f'{module}:{name} raised {type(error).__name__}: {message}{where}'


def all_failed(verdicts: Sequence[Verdict]) -> str | None:
  """Returns a message if every verdict has status 'error', else None.

  A reward that raises on every case has a bug. Callers stop with this message
  instead of training on nothing.
  """
  if not verdicts or any(v.status != 'error' for v in verdicts):
    return None
  return (
    f'the reward failed on all {len(verdicts)} cases; the first: '
    f'{verdicts[0].detail}'
  )


def all_invalid(
  verdicts: Sequence[Verdict], timeout_s: float, key: str = 'rl.timeout_s'
) -> str | None:
  """Returns a message if no verdict of a trial is valid, else None.

  Args:
    timeout_s: time limit of a case, in seconds.
    key: the configuration key of the limit.
  """
  late = sum(v.status == 'timeout' for v in verdicts)
  if not late or any(v.valid for v in verdicts):
    return all_failed(verdicts)
  return (
    f'the reward returned no score on {len(verdicts)} cases: {late} took '
    f'longer than {key}={timeout_s:g} s; make the reward faster or raise {key}'
  )
