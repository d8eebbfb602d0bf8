"""Published suites by name: the place of their rows, the conversion of a row to
a problem, the prompt, the number of samples, and the verifier.

docs/evaluating.md cites the definition of each metric.
"""

import dataclasses
import hashlib
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from jaxrl_reason.data import example_files as files
from jaxrl_reason.data import hub, row_fields

STEPS = (
  '{question}\nPlease reason step by step, and put your final answer within '
  '\\boxed{{}}.'
)
LETTER = (
  '{question}\n\nThink step by step. Finish with the line "The answer is '
  '(X).", where X is the letter of the right option.'
)
PROGRAM = '{question}\n\nAnswer with the program in one ```python block.'
TAGGED = (
  '{question}\n\nThink step by step. Then write the final answer alone, as the '
  'question words it, between <answer> and </answer>.'
)
BBH = (
  'boolean_expressions', 'causal_judgement', 'date_understanding',
  'disambiguation_qa', 'dyck_languages', 'formal_fallacies',
  'geometric_shapes', 'hyperbaton', 'logical_deduction_five_objects',
  'logical_deduction_seven_objects', 'logical_deduction_three_objects',
  'movie_recommendation', 'multistep_arithmetic_two', 'navigate',
  'object_counting', 'penguins_in_a_table',
  'reasoning_about_colored_objects', 'ruin_names',
  'salient_translation_error_detection', 'snarks', 'sports_understanding',
  'temporal_sequences', 'tracking_shuffled_objects_five_objects',
  'tracking_shuffled_objects_seven_objects',
  'tracking_shuffled_objects_three_objects', 'web_of_lies', 'word_sorting',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Published:
  """A suite that people report.

  Attributes:
    source: the data set on the Hub; '': the rows must be brought (`?dir=`).
    split: of the data set.
    example: converts a row to (prompt, answer, worked solution); None: the row
      is not part of the suite.
    asks: a prompt's text with {question}, for models that follow instructions.
    reward: the verifier, by name.
    samples: of a problem, as the metric is usually reported.
    configs: configurations of the data set that make up the suite; (): one.
  """

  source: str
  split: str
  example: Callable[[Mapping], tuple[str, str, str] | None]
  asks: str = STEPS
  reward: str = 'math'
  samples: int = 1
  configs: tuple[str, ...] = ()

  def examples(self, place: str) -> list[dict]:
    """Returns the problems as verifiers read them.

    Args:
      place: a file, a folder or hf:...; '': the source.

    Raises:
      ValueError: names what is missing, or the file and the row.
    """
    out = []
    for path in self._paths(place or self.source):
      for number, row in files.rows(path):
        try:
          found = self.example(row)
        except (KeyError, TypeError, ValueError) as e:
          raise ValueError(
            f'{path}, row {number}: not a row of this suite '
            f'({type(e).__name__}: {e})'
          ) from e
        if found:
          names = 'prompt', 'answer', 'solution'
          out.append(dict(zip(names, found)) | {'meta': row, 'task': 'suite'})
    return out

  def _paths(self, place: str) -> Iterator[epath.Path]:
    """Yields the files of rows."""
    if place.startswith(hub.PREFIX):
      for config in self.configs or ('',):
        name = f'{place}:{config}' if config else place
        splits = hub.files(name)
        if self.split not in splits:
          raise ValueError(f'{name} has no split {self.split}: {[*splits]}')
        yield from map(epath.Path, splits[self.split])
      return
    if not place:
      raise ValueError(
        'its rows are not downloaded, because the right to copy them is '
        'disputed: name your copy with ?dir=FILE, or ?dir=hf:owner/name'
      )
    path = epath.Path(place)
    kinds = tuple(f'.{kind}' for kind in files.KINDS)
    found = [path]
    if path.is_dir():
      found = [p for p in sorted(path.iterdir()) if p.suffix in kinds]
    if not found or not all(p.is_file() and p.suffix in kinds for p in found):
      raise ValueError(f'{place} is no file ({" or ".join(kinds)}) or folder')
    yield from found


def _by_usual_names(row: Mapping) -> tuple[str, str, str]:
  """Reads the fields that published problems of mathematics have."""
  fields = {key: row_fields.usual_name(row, key) for key in row_fields.USUAL}
  answer = str(row[fields['answer']])
  return row[fields['question']], answer, str(row.get('solution') or answer)


def _olympiad(row: Mapping) -> tuple[str, str, str]:
  answer = ', '.join(row['final_answer'])
  return row['question'], answer, '\n'.join(row['solution'])


def options(question: str, texts: list[str]) -> str:
  """Returns a question with lettered options."""
  lines = (f'({a}) {t}' for a, t in zip(string.ascii_uppercase, texts))
  return '\n'.join([question.strip(), '', *lines])


def _gpqa(row: Mapping) -> tuple[str, str, str]:
  """Orders the options by a hash of the question and the option."""
  question, right = row['Question'], row['Correct Answer'].strip()
  wrong = [row[f'Incorrect Answer {i}'].strip() for i in (1, 2, 3)]

  def place(text: str) -> bytes:
    return hashlib.sha256(f'{question}\n{text}'.encode()).digest()

  texts = sorted([right, *wrong], key=place)
  letter = string.ascii_uppercase[texts.index(right)]
  solution = row.get('Explanation') or letter
  return options(question, texts), letter, solution


def _mmlu_pro(row: Mapping) -> tuple[str, str, str]:
  solution = row.get('cot_content') or row['answer']
  return options(row['question'], row['options']), row['answer'], solution


def _humaneval(row: Mapping) -> tuple[str, str, str]:
  solution = row['prompt'] + row['canonical_solution']
  return row['prompt'], solution, solution


def _mbpp(row: Mapping) -> tuple[str, str, str] | None:
  """Reads the problems 11 to 510, which are the test split."""
  if not 11 <= row['task_id'] <= 510:
    return None
  tests = '\n'.join(row['test_list'])
  prompt = f'{row["text"]} Your code should pass these tests:\n\n{tests}'
  return prompt, row['code'], row['code']


def _livecodebench(row: Mapping) -> tuple[str, str, str]:
  prompt = row['question_content']
  if row['starter_code']:
    prompt += f'\n\nComplete this code:\n```python\n{row["starter_code"]}\n```'
  else:
    prompt += '\n\nRead the input from stdin, and print the output.'
  return prompt, row['question_title'], ''


def _bbh(row: Mapping) -> tuple[str, str, str]:
  return row['input'], row['target'], row['target']


def _ifeval(row: Mapping) -> tuple[str, str, str]:
  row['instruction_id_list'], row['kwargs']  # what its verifier reads
  return row['prompt'], row['prompt'], ''


SUITES: dict[str, Published] = {
  'math500': Published('', 'test', _by_usual_names, samples=4),
  'aime24': Published(
    'hf:HuggingFaceH4/aime_2024', 'train', _by_usual_names, samples=32
  ),
  'aime25': Published(
    'hf:math-ai/aime25', 'test', _by_usual_names, samples=32
  ),
  'amc23': Published('hf:math-ai/amc23', 'test', _by_usual_names, samples=32),
  'minerva': Published(
    'hf:math-ai/minervamath', 'test', _by_usual_names, samples=4
  ),
  'olympiadbench': Published(
    'hf:Hothan/OlympiadBench:OE_TO_maths_en_COMP', 'train', _olympiad, samples=4
  ),
  'gpqa': Published(
    'hf:Idavidrein/gpqa:gpqa_diamond', 'train', _gpqa, LETTER, 'choices', 8
  ),
  'mmlu_pro': Published(
    'hf:TIGER-Lab/MMLU-Pro', 'test', _mmlu_pro, LETTER, 'choices'
  ),
  'humaneval': Published(
    'hf:openai/openai_humaneval', 'test', _humaneval, PROGRAM, 'code', 10
  ),
  'mbpp': Published(
    'hf:google-research-datasets/mbpp:full', 'test', _mbpp, PROGRAM, 'code', 10
  ),
  'livecodebench-lite': Published(
    'hf:livecodebench/code_generation_lite', 'test', _livecodebench, PROGRAM,
    'jaxrl_reason.verifiers.code.livecodebench:reward', 10,
  ),
  'ifeval': Published(
    'hf:google/IFEval', 'train', _ifeval, '{question}', 'instructions'
  ),
  'bbh': Published(
    'hf:lukaemon/bbh', 'test', _bbh, TAGGED, 'exact', configs=BBH
  ),
}  # fmt: skip


def load(name: str, place: str) -> dict[str, Any]:
  """Returns the arguments of `suites.Suite` for a published suite."""
  suite = SUITES[name]
  return {
    'examples': suite.examples(place),
    'reward': suite.reward,
    'asks': suite.asks,
    'samples': suite.samples,
  }
