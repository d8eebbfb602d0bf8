"""Renders questions in the template of a `data` section, after `data.shots`
solved problems.
"""

from collections.abc import Callable

from jaxrl_reason.config import Data
from jaxrl_reason.data import chat, mixture, pipeline

Render = Callable[[str], str]


def folder_of(c: Data, folder):
  """Returns the folder with the tokenizer and its templates.

  Args:
    folder: the model's folder, or None.
  """
  if c.tokenizer_dir or folder:
    return c.tokenizer_dir or folder
  raise ValueError(
    f'data.tokenizer={c.tokenizer!r} and data.template={c.template!r} need a '
    'folder: set model_dir or data.tokenizer_dir'
  )


def renderer(c: Data, train, tokenizer, folder, tools=None) -> Render | None:
  """Returns a function question -> prompt text for a `data` section; None if
  prompts are unchanged.

  Args:
    train: source that begins with the solved examples of `data.shots`.
    folder: the model's folder, or None.
    tools: schemas of tools for the chat template; None: none.
  """
  if c.template == 'chat':
    if c.tokenizer != 'hf':
      raise ValueError('data.template=chat needs data.tokenizer=hf')
    if c.shots:
      raise ValueError(
        f'data.shots={c.shots} needs a plain data.template, not chat'
      )
    template = chat.load(folder_of(c, folder), c.day)
    system = [{'role': 'system', 'content': c.system}] if c.system else []
    thinking = chat.THINKING[c.thinking]
    return lambda question: template.render(
      [*system, {'role': 'user', 'content': question}],
      enable_thinking=thinking,
      tools=tools,
    )
  if c.system or c.thinking:
    raise ValueError('data.system and data.thinking need data.template=chat')
  ids = tokenizer.prefix_ids if c.tokenizer == 'hf' else ()
  prefix = ''.join(tokenizer.token_text(i) for i in ids)
  if c.template == 'none' and not prefix and not c.shots:
    return None
  chat.plain(c.template, '')  # raises on an unknown name
  shots = solved(train, c.shots, 'data.shots=')
  return lambda question: prefix + chat.few_shot(c.template, shots, question)


def common_renderer(
  c: Data, train, tokenizer, folder, tools=None
) -> Render | None:
  """Returns the `renderer` of questions that are of no source of a mixture.

  Raises:
    ValueError: the sources have different prompts.
  """
  sections = mixture.prompted(c)
  prompts = {(section.template, section.system) for section in sections}
  if len(prompts) > 1 or (c.shots and len(sections) > 1):
    raise ValueError(
      'data.sources have different prompts (template, system, or solved '
      'problems of data.shots), and these questions belong to no source: set '
      'equal prompts for all sources, or in evaluate choose another --prompt'
    )
  return renderer(sections[0], train, tokenizer, folder, tools)


def solved(train, n: int, key: str) -> list[tuple[str, str]]:
  """Returns the first n problems of a source, as (question, solution).

  Args:
    key: that sets n, for the error.

  Raises:
    ValueError: the source has no problem besides.
  """
  if n and n >= len(train):
    raise ValueError(
      f'{key}{n}: must be below the number of train problems, {len(train)}'
    )
  return [
    (e['prompt'], e['solution']) for e in map(train.__getitem__, range(n))
  ]


def without_solved(train, n: int):
  """Returns a source without its first n problems, which are `solved` in every
  prompt: a prompt must not contain its own answer.
  """
  if not n:
    return train
  if len(train) < pipeline.ENDLESS:
    return pipeline.Subset(train, range(n, len(train)))
  shown = {train[i]['prompt'] for i in range(n)}
  return pipeline.Redrawn(
    train,
    lambda e: e['prompt'] not in shown,
    f'are those that data.shots={n} shows solved; reduce it',
  )
