"""Mathematical answers: is the answer of a completion the gold answer?

```
verify('... so \\boxed{\\frac{1}{2}}', '0.5')      # True
grade('I do not know', '0.5')                     # Verdict(0.0, 'no_answer')
```
  completion -> extraction -> expr.answers.same -> verdict

`verify` and `grade` are total, take bounded time (well below a second) and
may be called from any thread: they never evaluate text, and use no signals.
Status 'unparsed' means that the answer was found but not understood, so only
its text was compared.
"""

from jaxrl_reason.rewards.math import extraction
from jaxrl_reason.rewards.math.expr import answers
from jaxrl_reason.rewards.verdict import Verdict

MAX_SHORT = 200  # characters of a text that is also compared as a whole


def verify(prediction: str, gold: str, *, strict: bool = False) -> bool:
  """Tells whether `prediction`, a completion or an answer, is `gold`."""
  return grade(prediction, gold, strict=strict).score == 1.0


def grade(prediction: str, gold: str, *, strict: bool = False) -> Verdict:
  """Returns the verdict, with what was extracted; `strict` wants a marked
  answer.
  """
  gold = bare_gold(gold)
  if prediction.strip() == gold.strip() != '':
    return Verdict(1.0, 'parsed', gold)
  if extraction.unfinished(prediction):
    return Verdict(0.0, 'no_answer')
  found = extraction.extract(prediction, strict=strict)
  if found is None:
    return Verdict(0.0, 'no_answer')
  try:
    outcome = answers.same(found.text, gold)
    number = None if outcome.parsed else extraction.counted(found.text)
    if number is not None and not outcome.same:
      outcome = answers.same(number, gold)
    if not outcome.same and not found.explicit:
      outcome = _whole(prediction, found.text, gold, outcome)
  # The grammar's own limits are handled below this; what is left (a stack
  # used up by the caller, memory) must not end a training run.
  except (ArithmeticError, RecursionError, MemoryError, ValueError) as e:
    detail = f'{type(e).__name__}: {e}'
    return Verdict(0.0, 'error', found.text, detail)
  status = 'parsed' if outcome.parsed else 'unparsed'
  return Verdict(float(outcome.same), status, found.text)


def _whole(prediction: str, found: str, gold: str, outcome):
  """A guess at a part of a short text may have cut the answer itself."""
  whole = prediction.strip()
  if len(whole) > MAX_SHORT or whole == found:
    return outcome
  second = answers.same(whole, gold)
  return second if second.same else outcome


def bare_gold(gold: str) -> str:
  """Returns the bare answer of a gold that may be a whole solution."""
  if '\\boxed' in gold or '####' in gold:
    found = extraction.extract(gold, strict=True)
    return gold if found is None else found.text
  return gold


def reward(completion: str, example: dict, *, strict: bool = False) -> Verdict:
  """Gives 1 if the completion's answer is example['answer'], else 0."""
  return grade(completion, example['answer'], strict=strict)
