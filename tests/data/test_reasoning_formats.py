"""Formats of reasoning models are rendered as by `transformers`, and thoughts
are separated from responses.
"""

import hf_folders
import pytest

from jaxrl_reason.data import chat, hf_tokenizers
from jaxrl_reason.verifiers import code, compose, fields, thoughts, verdict
from jaxrl_reason.verifiers.math import extraction

USER = {'role': 'user', 'content': 'How many apples?'}
AGAIN = {'role': 'user', 'content': 'And pears?'}
# In the style of gpt-oss: a system message of its own with an effort, channels.
HARMONY = """{%- set effort = reasoning_effort|default('medium') -%}
{{- '<|start|>system<|message|>Reasoning: ' + effort + '<|end|>' -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- if message.thinking is defined and loop.last -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' -}}
{{- message.thinking + '<|end|>' -}}
{%- endif -%}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content -}}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' -}}
{%- else -%}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
# In the style of GLM-4.5: the next speaker's token ends a turn.
GLM = """{{- '[gMASK]<sop>' -}}
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content -}}
{%- if message.role == 'user' and enable_thinking is defined
    and not enable_thinking -%}{{- '/nothink' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""
HARMONY_TOKENS = [
  f'<|{x}|>' for x in 'return start channel message end call'.split()
]
GLM_TOKENS = ['<|user|>', '<|assistant|>', '<sop>', '[gMASK]']


def folder_of(path, template: str, special: list[str], stops: int):
  """Returns a tokenizer with special tokens, the first of which end a turn."""
  hf_folders.byte_level(path, template)
  model = hf_folders.tokenizers.Tokenizer.from_file(
    str(path / 'tokenizer.json')
  )
  model.add_special_tokens(special)
  model.save(str(path / 'tokenizer.json'))
  ends = [model.token_to_id(special[i]) for i in range(stops)]
  hf_folders.write(
    path,
    dict(
      tokenizer_class='PreTrainedTokenizerFast',
      eos_token=special[0],
      pad_token='<|endoftext|>',
      clean_up_tokenization_spaces=False,
      chat_template=template,
    ),
    generation_config={'eos_token_id': ends},
  )
  return path


@pytest.fixture
def harmony(tmp_path):
  folder = folder_of(tmp_path, HARMONY, HARMONY_TOKENS, 1)
  return hf_tokenizers.load(folder), chat.load(folder)


@pytest.mark.parametrize(
  'thinking, variables',
  [
    ('', {}),
    ('high', {'reasoning_effort': 'high'}),
    ('low', {'reasoning_effort': 'low'}),
    ('on', {'enable_thinking': True}),
    ('off', {'enable_thinking': False}),
  ],
)
@pytest.mark.parity
@pytest.mark.parametrize('template', [HARMONY, GLM, hf_folders.QWEN])
def test_thinking_is_rendered_as_transformers_does(
  tmp_path, template, thinking, variables
):
  transformers = pytest.importorskip('transformers')
  special = HARMONY_TOKENS if template is HARMONY else GLM_TOKENS
  folder = folder_of(tmp_path, template, special, 1)
  ours = chat.load(folder).render(
    [USER], enable_thinking=chat.THINKING[thinking]
  )
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  want = theirs.apply_chat_template(
    [USER], tokenize=False, add_generation_prompt=True, **variables
  )
  assert ours == want
  ids = theirs(want, add_special_tokens=False)['input_ids']
  assert hf_tokenizers.load(folder).encode(ours) == ids


def test_texts_contain_channels_but_no_end_tokens(harmony):
  tokenizer, template = harmony
  text = (
    '<|channel|>analysis<|message|>400 or 407?<|end|><|start|>assistant'
    '<|channel|>final<|message|>400 apples'
  )
  ids = tokenizer.encode(text + '<|return|>')
  assert tokenizer.decode(ids) == text
  assert tokenizer.eos_ids[0] == ids[-1] == chat.turn_end(template, tokenizer)
  assert tokenizer.token_bytes()[ids[0]] == b'<|channel|>'
  assert set(ids) & set(tokenizer.special_ids) >= {ids[0], ids[-1]}


def test_a_turn_of_channels_ends_once(harmony):
  """Its last message ends differently from one within a conversation."""
  tokenizer, template = harmony
  ids = tokenizer.encode(template.render([USER]))
  out = tokenizer.encode('<|channel|>final<|message|>400')
  end = tokenizer.eos_ids[0]
  args = tokenizer, template, ids
  stopped = chat.next_turn(*args, [*out, end], [USER], [AGAIN])
  cut = chat.next_turn(*args, out, [USER], [AGAIN])
  between = tokenizer.encode(
    '<|end|><|start|>user<|message|>And pears?<|end|><|start|>assistant'
  )
  assert cut == [*ids, *out, *between]
  assert stopped == [*ids, *out, end, *between[1:]]


def test_a_turn_ended_by_the_next_speaker_has_one_end(tmp_path):
  folder = folder_of(tmp_path, GLM, GLM_TOKENS, 1)
  tokenizer, template = hf_tokenizers.load(folder), chat.load(folder)
  ids = tokenizer.encode(template.render([USER]))
  out = tokenizer.encode('\n<think></think>\n400')
  args = tokenizer, template, ids
  stopped = chat.next_turn(*args, [*out, tokenizer.eos_ids[0]], [USER], [AGAIN])
  assert stopped == chat.next_turn(*args, out, [USER], [AGAIN])


THOUGHT = '<|channel|>analysis<|message|>It is \\boxed{1}.<|end|>'
SAID = '<|start|>assistant<|channel|>final<|message|>'
FORMATTED = SAID.replace('final', 'final <|constrain|>json')
DECODED = SAID.replace('final', 'final json')  # not all marks are shown
# Names of thoughts in a text that open none.
NAMED = [
  'The <think> tag is there.\n\\boxed{2}',
  'Write `<think>`, then\n\\boxed{2}',
  'A "<Thinking>" begins it.\n\\boxed{2}',
  'Each <think> block ends.\n\\boxed{2}',
  'List<Thought> is the type.\n\\boxed{2}',
  'I am absent because of [reason].\n\\boxed{2}',
  '[Reasoning] 1 + 1 is\n\\boxed{2}',
]
FORMATS = {
  # completion -> its response, None while it thinks
  f'{THOUGHT}{SAID}\\boxed{{2}}': '\\boxed{2}',
  f'{THOUGHT}{SAID}\\boxed{{2}}<|end|><|start|>user': '\\boxed{2}',
  f'{SAID}\\boxed{{1}}<|end|>{THOUGHT}{SAID}\\boxed{{2}}': '\\boxed{2}',
  f'{THOUGHT}<|start|>assistant<|channel|>commentary<|message|>x': None,
  THOUGHT: None,
  '<|channel|>ana': None,
  f'{THOUGHT}{FORMATTED}\\boxed{{2}}': '\\boxed{2}',
  f'{THOUGHT}{DECODED}\\boxed{{2}}': '\\boxed{2}',
  f'{SAID}\\boxed{{2}}<|end|>{THOUGHT}': '\\boxed{2}',  # said before
  f'{THOUGHT}<|start|>assistant<|channel|>finally<|message|>\\boxed{{1}}': None,
  f'{THOUGHT}<|start|>assistant<|channel|>commentary to=functions.add '
  '<|constrain|>json<|message|>{"a": 1}<|call|>': None,
  '<think>\\boxed{1}</think>\\boxed{2}': '\\boxed{2}',
  '\\boxed{1}</think>\\boxed{2}': '\\boxed{2}',
  '<think>\\boxed{1}': None,
  '<think>\\boxed{1}<think>\\boxed{1}</think>\\boxed{1}</think>\\boxed{2}': (
    '\\boxed{2}'
  ),
  '<Thinking>\\boxed{1}</Thinking>\\boxed{2}': '\\boxed{2}',
  '<thinking>\\boxed{1}': None,
  'Sure. <think>\\boxed{1}': None,
  'Sure <think>\\boxed{1}': None,
  'User<think>\\boxed{1}': None,
  '"<think>\\boxed{1}': None,
  'the <think>\\boxed{1}': None,
  '<think>x</think> <think>\\boxed{1}': None,
  '[THINK]\\boxed{1}[/THINK]\\boxed{2}': '\\boxed{2}',
  **{text: text for text in NAMED},
  '\\boxed{2}': '\\boxed{2}',
}


@pytest.mark.parametrize('completion', FORMATS)
def test_responses_are_separated_from_thoughts(completion):
  want = FORMATS[completion]
  assert thoughts.response(completion) == want
  assert fields.final(completion, 'response') == want
  found = extraction.extract(completion, strict=True)
  assert (found and found.text) == (want and '2')
  program = '```python\nx = {}\n```'
  for box, n in ('\\boxed{1}', 1), ('\\boxed{2}', 2):
    completion = completion.replace(box, program.format(n))
  assert code.extract(completion) == (want and 'x = 2\n')


@pytest.mark.parametrize(
  'prompt, completion, score',
  [
    ('<|assistant|><think>\n', 'it is \\boxed{2}', 0.0),  # cut off
    ('<|assistant|><think>\n', '2?</think>\\boxed{2}', 1.0),
    ('<|assistant|><think>\n', '\\boxed{2}</think>', 0.0),
    ('<|assistant|><think>\n\n</think>\n', '\\boxed{2}', 1.0),
    ('what does <think> mean? <|assistant|>', '\\boxed{2}', 1.0),
    ('Use 2 for [reason]', '\\boxed{2}', 1.0),
    ('Use 2. [THINK]', '\\boxed{2}', 0.0),
    ('', '\\boxed{2}', 1.0),
  ],
)
def test_a_thought_that_the_prompt_begins_is_ignored(prompt, completion, score):
  """Checks a reward, and a part of a reward, in pool workers."""
  example = {'answer': '2', 'task': 'x', 'prompt': 'q', 'rendered': prompt}
  for reward in ('math', {'answer': 'math'}):
    found = verdict.judge(compose.build(reward), completion, example)
    assert (found.score, found.valid) == (score, True)


def test_a_program_may_contain_thought_tags():
  program = "x = '<think>'\n"
  for before in ('', '<think>400?</think>', 'So:\n'):
    said = f'{before}```python\n{program}```'
    assert code.extract(said) == program
