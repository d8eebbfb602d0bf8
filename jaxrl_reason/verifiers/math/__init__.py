r"""Verifies mathematical answers: equal to the gold answer, and evaluated.

```
verify('... so \\boxed{\\frac{1}{2}}', '0.5')      # True
grade('I do not know', '0.5')                     # Verdict(0.0, 'no_answer')
reward('\\boxed{7-3}', {'answer': '4'})            # Verdict(0.0, ...)
```
  completion -> extraction -> expr.answers.same -> expr.evaluated -> verdict

`verify` and `grade` compare values. `reward` is for training: if the gold
answer is numeric, the answer must be evaluated, and it must not be a formula of
the question. All three are total and take bounded time (well below a second).
Any thread may call them: they never evaluate text, and use no signals. Status
'unparsed' means that the answer could not be parsed, so only its text was
compared.
"""

from jaxrl_reason.verifiers import fields, thoughts
from jaxrl_reason.verifiers.math import extraction, prose
from jaxrl_reason.verifiers.math.expr import (
  answers,
  evaluated,
  restated,
  words,
)
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
  answer = extraction.extract(prediction, strict=strict)
  if answer is None:
    return Verdict(0.0, 'no_answer')
  try:
    outcome = answers.same(answer.text, gold)
    counted = None if outcome.parsed else prose.counted(answer.text)
    if counted is not None and not outcome.same:
      outcome = answers.same(counted, gold)
    value = None if '=' in gold else prose.without_case(answer.text)
    if value is not None and not outcome.same:
      outcome = answers.same(value, gold)
      answer = answer._replace(text=value) if outcome.same else answer
    if outcome.same and words.misspells(answer.text, gold):
      outcome = answers.Outcome(False, True)
    if not outcome.same and not answer.explicit:
      outcome = _as_it_stands(prediction, answer.text, gold, outcome)
  # The grammar handles its own limits. Other errors (a stack that the caller
  # has filled, memory) must not end a training run.
  except (ArithmeticError, RecursionError, MemoryError, ValueError) as e:
    detail = f'{type(e).__name__}: {e}'
    return Verdict(0.0, 'error', answer.text, detail)
  status = 'parsed' if outcome.parsed else 'unparsed'
  return Verdict(float(outcome.same), status, answer.text)


def _as_it_stands(prediction: str, answer: str, gold: str, outcome):
  """Compares a short text as a whole, because a guess may cut the answer."""
  body = prediction[slice(*thoughts.spoken(prediction))].strip()
  if len(body) > MAX_SHORT or body == answer:
    return outcome
  second = answers.same(body, gold)
  return second if second.same else outcome


def bare_gold(gold: str) -> str:
  """Returns the bare answer of a gold answer, which may be a solution."""
  if '\\boxed' in gold or '####' in gold:
    answer = extraction.extract(gold, strict=True)
    return gold if answer is None else answer.text
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
    evaluated: refuse an answer that is not evaluated although the gold answer
      is numeric, a formula of the question, and a copy of the question.
  """
  completion = thoughts.in_context(completion, example)
  verdict = grade(completion, example['answer'], strict=strict)
  return checked(verdict, completion, example) if evaluated else verdict


def checked(
  verdict: Verdict, completion: str, example: dict, *, numeric: bool = True
) -> Verdict:
  """Returns the verdict, or 0 if the answer only repeats the problem."""
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
  if isinstance(question, str) and restated.restates(answer, gold, question):
    return Verdict(0.0, 'parsed', answer, RESTATES)
  return verdict
