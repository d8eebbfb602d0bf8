"""Writes prompts in a model's chat template, or in a plain one for base models.

  messages --template (Jinja, sandboxed)--> text --tokenizer--> ids
  turns:    ids + sampled ids + ids of the text between turns

Sampled ids are never tokenised again. Chat templates are not trusted:
`templates` renders them in a process with limits.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from etils import epath

from jaxrl_reason.data import hf_tokenizers, templates
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import choice

Messages = Sequence[dict[str, Any]]  # {'role': ..., 'content': ...}

# DeepSeek-R1, table 1 (https://arxiv.org/abs/2501.12948).
R1_ZERO = (
  'A conversation between User and Assistant. The user asks a question, and '
  'the Assistant solves it. The assistant first thinks about the reasoning '
  'process in the mind and then provides the user with the answer. The '
  'reasoning process and answer are enclosed within <think> </think> and '
  '<answer> </answer> tags, respectively, i.e., <think> reasoning process '
  'here </think> <answer> answer here </answer>. User: {question} Assistant:'
)
BOXED = (
  '{question}\nPlease reason step by step, and put your final answer within '
  '\\boxed{{}}.\n'
)
QA = 'Question: {question}\nAnswer:'
# Plain templates by name; '{question}' is the problem's text.
PLAIN = {'none': '{question}', 'r1_zero': R1_ZERO, 'boxed': BOXED, 'qa': QA}
ADDITIONAL = 'additional_chat_templates'  # a folder of them, by name
# Values of the setting `thinking` -> argument of `ChatTemplate.render`.
THINKING = {'': None, 'on': True, 'off': False}
THINKING |= {effort: effort for effort in ('low', 'medium', 'high')}
# The ends of a message of gpt-oss: of the last message, and of others.
RETURN, END = '<|return|>', '<|end|>'
# Names of a message's reasoning, as in `transformers`: templates read the
# first, those of gpt-oss the second.
REASONING = 'reasoning_content', 'thinking', 'reasoning'
# Replaces an assistant's text while the text around it is rendered.
MARK = 'jaxrl-reason-assistant-text'


def plain(name: str, question: str) -> str:
  """Returns a question in a plain template.

  Raises:
    ValueError: no such template.
  """
  if name not in PLAIN:
    raise ValueError(choice('template', name, ('chat', *PLAIN)))
  return PLAIN[name].format(question=question)


def few_shot(name: str, shots: Sequence[tuple[str, str]], question: str) -> str:
  """Returns solved examples (question, solution) and a question, separated by
  blank lines.
  """

  def join(before, after):
    return before + (after if before[-1:].isspace() else ' ' + after)

  solved = [join(plain(name, q), a) for q, a in shots]
  return '\n\n'.join([*solved, plain(name, question)])


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """A model's chat templates.

  Attributes:
    templates: Jinja by name; 'default' is used unless another is named.
    tokens: variables of templates: bos_token, eos_token, ...
    day: the result of `strftime_now`, 'YYYY-MM-DD'; '': today. With today, a
      resumed run may render other prompts than it began with.
  """

  templates: dict[str, str]
  tokens: dict[str, str]
  day: str = ''

  def render(
    self,
    messages: Messages,
    *,
    add_generation_prompt: bool = True,
    enable_thinking: bool | str | None = None,
    name: str | None = None,
    **variables: Any,
  ) -> str:
    """Returns the text of a conversation.

    Args:
      add_generation_prompt: end with the beginning of the assistant's turn.
      enable_thinking: a switch of templates that have it, as `enable_thinking`
        or `thinking`; or the `reasoning_effort` of those that have that; None:
        not given.
      name: of the template; None: 'tool_use' if there are tools and such a
        template, else 'default'.
      variables: others that the template reads (`tools`, `documents`, ...).

    Raises:
      ValueError: there is no such template, it refuses the messages, or it
        fails.
    """
    if name is None:
      with_tools = variables.get('tools') and 'tool_use' in self.templates
      name = 'tool_use' if with_tools else 'default'
    if name not in self.templates:
      raise ValueError(f'no chat template {name!r}: {list(self.templates)}')
    if isinstance(enable_thinking, str):
      variables['reasoning_effort'] = enable_thinking
    elif enable_thinking is not None:
      names = 'enable_thinking', 'thinking'
      variables |= dict.fromkeys(names, enable_thinking)
    values = {'tools': None, 'documents': None, **self.tokens, **variables}
    values |= {
      'messages': list(map(_with_reasoning, messages)),
      'add_generation_prompt': add_generation_prompt,
    }
    return templates.render(name, self.templates[name], self.day, values)

  def after_assistant(self, messages: Messages, following: Messages) -> str:
    """Returns the text between the assistant's completion and its next turn.

    It begins with the end of the assistant's turn.

    Args:
      messages: the conversation up to the assistant's turn.
      following: messages after it (a user's, a tool's). Without any, only the
        end of the turn is returned.
    """
    answer = {'role': 'assistant', 'content': MARK}
    text = self.render(
      [*messages, answer, *following], add_generation_prompt=bool(following)
    )
    _, mark, after = text.rpartition(MARK)
    if not mark:
      raise ValueError(
        f"the chat template does not write the assistant's text: {text!r}"
      )
    return after


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
  """Returns a message without keys of None, as `transformers` renders it, whose
  reasoning has the names that templates read.
  """
  message = {k: v for k, v in message.items() if v is not None}
  found = [message[key] for key in REASONING if key in message][:1]
  if not found:
    return message
  return {REASONING[1]: found[0], **message, REASONING[0]: found[0]}


def load(folder, day: str = '') -> ChatTemplate:
  """Returns the chat templates of a Hugging Face folder.

  Raises:
    ValueError: the folder has no chat template.
  """
  folder = epath.Path(folder)
  c = hf_tokenizers.read_json(folder / hf_tokenizers.CONFIG)
  found = c.get('chat_template') or {}
  with reading.explained(folder / hf_tokenizers.CONFIG):
    if isinstance(found, list):
      found = {t['name']: t['template'] for t in found}
    elif not isinstance(found, dict):
      found = {'default': found}
    if not all(isinstance(text, str) for text in found.values()):
      raise TypeError('chat_template is no text')
  file = folder / 'chat_template.jinja'
  files = [file] if file.exists() else []
  for path in [*files, *sorted(folder.glob(f'{ADDITIONAL}/*.jinja'))]:
    with reading.explained(path):
      name = 'default' if path.name == file.name else path.stem
      found = found | {name: path.read_text()}
  if not found:
    raise ValueError(
      f'{folder} has no chat template: no {file.name}, and no chat_template in '
      f'{hf_tokenizers.CONFIG}'
    )
  tokens = {
    k: hf_tokenizers.text_of(v)
    for k, v in c.items()
    if k.endswith('_token') and isinstance(v, str | dict)
  }
  return ChatTemplate(found, tokens, day)


def settings_of(template: ChatTemplate) -> dict[str, str]:
  """Returns the settings that prompts depend on, as JSON values."""
  text = json.dumps([template.templates, template.tokens], sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:16]
  return {'chat_template': digest, 'day': template.day}


def _end_of_turn(
  template: ChatTemplate, tokenizer, messages: Messages
) -> list[int]:
  """Returns the ids of the end of the assistant's turn, up to its first special
  token; [] if it has none.
  """
  ids = encode_after(tokenizer, template.after_assistant(messages, []))
  special = {*tokenizer.special_ids, *tokenizer.eos_ids}
  at = [i for i, token in enumerate(ids) if token in special]
  return ids[: at[0] + 1] if at else []


def turn_end(template: ChatTemplate, tokenizer) -> int | None:
  """Returns the special token that ends the assistant's turn, or None."""
  end = template.after_assistant([{'role': 'user', 'content': 'x'}], [])
  ids = encode_after(tokenizer, end)
  return ids[0] if ids and ids[0] in tokenizer.special_ids else None


def encode_after(tokenizer, text: str) -> list[int]:
  """Returns the ids of a text that follows other tokens.

  No space is put before it, also by tokenizers that put one before a text.
  """
  if not hasattr(tokenizer, 'token_text'):  # not read from a folder
    return tokenizer.encode(text)
  anchor = tokenizer.eos_ids[0]
  ids = tokenizer.encode(tokenizer.token_text(anchor) + text)
  if ids[:1] != [anchor]:
    raise ValueError(
      f'token {anchor} is written {tokenizer.token_text(anchor)!r} and read '
      f'back as {ids[:1]}'
    )
  return ids[1:]


def next_turn(
  tokenizer,
  template: ChatTemplate,
  ids: Sequence[int],
  sampled: Sequence[int],
  messages: Messages,
  following: Messages,
) -> list[int]:
  """Returns the ids of the prompt of the assistant's next turn.

  It begins with `ids` and `sampled` unchanged: other tokens may have the same
  text, and a policy must be trained on the tokens that it sampled.

  Args:
    ids: of the prompt.
    sampled: ids of the completion, with its stop token if it has one.
    messages: the conversation before the sampled turn.
    following: messages after the sampled turn.
  """
  between = encode_after(
    tokenizer, template.after_assistant(messages, following)
  )
  # The template's end of a turn may differ from the tokenizer's (Gemma).
  end = _end_of_turn(template, tokenizer, messages)
  stops = {*tokenizer.eos_ids, *end[-1:]}
  if len(sampled) > 0 and sampled[-1] in stops:
    between = between[_n_sampled(tokenizer, end, sampled[-1], between) :]
  return [*ids, *sampled, *between]


def _n_sampled(tokenizer, end: list[int], stop: int, between: list[int]) -> int:
  """Counts the ids of `between` that the sampled stop token replaces."""
  if end and between[: len(end)] == end:
    return len(end)
  # The token of the next role may be the end (GLM). gpt-oss ends the last
  # message differently from other messages.
  texts = [tokenizer.token_text(i) for i in (stop, *between[:1])]
  return int(between[:1] == [stop] or texts == [RETURN, END])
