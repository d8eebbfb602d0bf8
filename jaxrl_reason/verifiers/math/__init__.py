r"""Verifies mathematical answers: equal to the gold answer, and worked out.

```
verify('... so \\boxed{\\frac{1}{2}}', '0.5')      # True
grade('I do not know', '0.5')                     # Verdict(0.0, 'no_answer')
reward('\\boxed{7-3}', {'answer': '4'})            # Verdict(0.0, ...)
```
  completion -> extraction -> expr.answers.same -> expr.evaluated -> verdict

`verify` and `grade` compare values. `reward` is for training: a numeric gold
answer wants an evaluated answer, and a formula of the question is no answer.
All three are total, take bounded time (well below a second) and may be called
from any thread: they never evaluate text, and use no signals. Status
'unparsed' means that an answer was found but not understood, so that only its
text was compared.
"""

from jaxrl_reason.verifiers import fields, thoughts
from jaxrl_reason.verifiers.math import extraction, prose
from jaxrl_reason.verifiers.math.expr import answers, evaluated, words
from jaxrl_reason.verifiers.verdict import Verdict

__all__ = ['grade', 'reward', 'verify']

MAX_SHORT = 200  # characters of a text that is also compared as a whole
NOT_EVALUATED = 'equal to the gold answer, but not evaluated'
COPIES = 'the response is a copy of the question'
RESTATES = 'equal to the gold answer, but a formula of the question'


def verify(prediction: str, gold: str, *, strict: bool = False) -> bool:
  """Returns whether a completion's answer equals the gold answer."""
  return grade(prediction, gold, strict=strict).score == 1.0


def grade(prediction: str, gold: str, *, strict: bool = False) -> Verdict:
  """Compares a completion's answer with the gold answer.

  Args:
    prediction: a completion, or an answer alone.
    gold: an answer, or a solution that marks its answer.
    strict: reads marked answers only (a box, <answer>, ####, "the answer is").
  """
  gold = bare_gold(gold)
  if prediction.strip() == gold.strip() != '':
    return Verdict(1.0, 'parsed', gold)
  found = extraction.extract(prediction, strict=strict)
  if found is None:
    return Verdict(0.0, 'no_answer')
  try:
    outcome = answers.same(found.text, gold)
    counted = None if outcome.parsed else prose.counted(found.text)
    if counted is not None and not outcome.same:
      outcome = answers.same(counted, gold)
    value = None if '=' in gold else prose.without_case(found.text)
    if value is not None and not outcome.same:
      outcome = answers.same(value, gold)
      found = found._replace(text=value) if outcome.same else found
    if outcome.same and words.misspells(found.text, gold):
      outcome = answers.Outcome(False, True)
    if not outcome.same and not found.explicit:
      outcome = _as_it_stands(prediction, found.text, gold, outcome)
  # The grammar's own limits are handled below this; what is left (a stack
  # used up by the caller, memory) must not end a training run.
  except (ArithmeticError, RecursionError, MemoryError, ValueError) as e:
    detail = f'{type(e).__name__}: {e}'
    return Verdict(0.0, 'error', found.text, detail)
  status = 'parsed' if outcome.parsed else 'unparsed'
  return Verdict(float(outcome.same), status, found.text)


def _as_it_stands(prediction: str, found: str, gold: str, outcome):
  """Compares a short text as it stands: a guess may have cut the answer."""
  body = prediction[slice(*thoughts.spoken(prediction))].strip()
  if len(body) > MAX_SHORT or body == found:
    return outcome
  second = answers.same(body, gold)
  return second if second.same else outcome


def bare_gold(gold: str) -> str:
  """Returns the bare answer of a gold that may be a whole solution."""
  if '\\boxed' in gold or '####' in gold:
    found = extraction.extract(gold, strict=True)
    return gold if found is None else found.text
  return gold


def reward(
  completion: str,
  example: dict,
  *,
  strict: bool = False,
  evaluated: bool = True,
) -> Verdict:
  """Scores 1 if the completion's answer is example['answer'], else 0.

  Args:
    completion: the text of the policy.
    example: has 'answer'; its 'prompt' is the question, if it is there.
    strict: reads marked answers only.
    evaluated: refuses an answer that a numeric gold answer still has to be
      computed from, one that is a formula of the question, and a response that
      copies the question.
  """
  completion = thoughts.in_context(completion, example)
  verdict = grade(completion, example['answer'], strict=strict)
  return checked(verdict, completion, example) if evaluated else verdict


def checked(
  verdict: Verdict, completion: str, example: dict, *, numeric: bool = True
) -> Verdict:
  """Returns a verdict that is 0 if the answer is only the problem again."""
  if verdict.score != 1.0:
    return verdict
  response = completion[slice(*thoughts.spoken(completion))]
  unmarked = extraction.extract(completion, strict=True) is None
  if unmarked and fields.is_passage(response, example):
    return Verdict(0.0, 'no_answer', detail=COPIES)
  if verdict.status != 'parsed':
    return verdict
  answer, gold = verdict.extracted, bare_gold(example['answer'])
  if numeric and not evaluated.is_evaluated(answer, gold):
    return Verdict(0.0, 'parsed', answer, NOT_EVALUATED)
  question = example.get('prompt')
  if isinstance(question, str) and evaluated.restates(answer, gold, question):
    return Verdict(0.0, 'parsed', answer, RESTATES)
  return verdict
