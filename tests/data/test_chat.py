"""Conversations are rendered as by the models' own templates."""

import re
import time

import hf_folders
import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import chat, hf_tokenizers, pipeline, problems, templates
from jaxrl_reason.verifiers.pool import limited

transformers = pytest.importorskip('transformers')

pytestmark = pytest.mark.parity

USER = {'role': 'user', 'content': ' What is <2 + 3>?\n'}
SYSTEM = {'role': 'system', 'content': 'Count.'}
SAID = {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\n5'}
AGAIN = {'role': 'user', 'content': 'Sure? caf\u00e9'}
TOOL = {'type': 'function', 'function': {'name': 'add', 'text': '<\u00e9>'}}
CONVERSATIONS = [
  [USER],
  [SYSTEM, USER],
  [USER, SAID],
  [USER, SAID, AGAIN],
]
TEMPLATES = {
  'qwen': hf_folders.QWEN,
  'llama': hf_folders.LLAMA,
  'gemma': hf_folders.GEMMA,
}
DAY = '2024-07-26'


@pytest.fixture(params=TEMPLATES)
def folder(request, tmp_path):
  make = {
    'qwen': lambda: hf_folders.byte_level(tmp_path),
    'llama': lambda: hf_folders.pieces(tmp_path, 'bpe', True),
    'gemma': lambda: hf_folders.fallback_json(tmp_path, 'bpe', False),
  }
  make[request.param]()
  (tmp_path / 'chat_template.jinja').write_text(TEMPLATES[request.param])
  return tmp_path


@pytest.mark.parametrize('speak', [True, False])
def test_texts_and_ids_are_those_of_transformers(folder, speak):
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  ours, tokenizer = chat.load(folder), hf_tokenizers.load(folder)
  for messages in CONVERSATIONS:
    for options in ({}, {'enable_thinking': False}, {'tools': [TOOL]}):
      options = options | {'add_generation_prompt': speak}
      try:
        wanted = theirs.apply_chat_template(messages, tokenize=False, **options)
      except Exception as e:  # their jinja2 error: ours must refuse it as well
        with pytest.raises(ValueError, match=str(e)):
          ours.render(messages, **options)
        continue
      assert ours.render(messages, **options) == wanted
      ids = theirs.apply_chat_template(messages, return_dict=False, **options)
      assert tokenizer.encode(ours.render(messages, **options)) == ids


REASONED = [
  {'reasoning_content': 'hm'},
  {'thinking': 'hm'},
  {'reasoning': 'hm'},
  {'reasoning': 'hm', 'thinking': None},
  {'content': None, 'reasoning': 'hm'},
  {'reasoning': 'a', 'thinking': 'b', 'reasoning_content': 'c'},
  {'reasoning': 'a', 'thinking': ''},
]


@pytest.mark.parametrize('fields', REASONED)
def test_reasoning_has_the_names_that_transformers_gives_it(fields, tmp_path):
  text = (
    '{% for m in messages %}<{{ m.reasoning_content }}|{{ m.thinking }}|'
    '{{ m.reasoning }}|{{ m.content }}>{% endfor %}'
  )
  hf_folders.byte_level(tmp_path, text)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  said = [USER, {'role': 'assistant', 'content': '5', **fields}]
  wanted = theirs.apply_chat_template(said, tokenize=False)
  assert chat.load(tmp_path).render(said) == wanted


def test_named_templates_and_tools(tmp_path):
  named = [
    {'name': 'default', 'template': 'plain'},
    {'name': 'tool_use', 'template': 'tools'},
  ]
  hf_folders.byte_level(tmp_path, named)
  ours = chat.load(tmp_path)
  assert ours.render([USER]) == 'plain'
  assert ours.render([USER], tools=[TOOL]) == 'tools'
  assert ours.render([USER], name='tool_use') == 'tools'
  extra = tmp_path / 'additional_chat_templates'
  extra.mkdir()
  (extra / 'brief.jinja').write_text('brief')
  assert chat.load(tmp_path).render([USER], name='brief') == 'brief'
  with pytest.raises(ValueError, match="'rag'.*default"):
    ours.render([USER], name='rag')


@pytest.mark.parametrize(
  'attack',
  [
    '{{ messages.append(1) }}',
    '{{ "".__class__.__mro__ }}',
    '{{ raise_exception.__globals__.keys() }}',
    '{{ "{0.__class__.__mro__}".format(1) }}',
    '{{ range(10**9) | list }}',
    '{% include "/etc/passwd" %}',
  ],
)
def test_templates_run_in_a_sandbox(attack):
  with pytest.raises((ValueError, OverflowError, TypeError)):
    chat.ChatTemplate({'default': attack}, {}).render([USER])


def test_the_date_is_that_of_the_config():
  text = '{{ strftime_now("%d %b %Y") }}'
  assert chat.ChatTemplate({'default': text}, {}, DAY).render([]) == (
    '26 Jul 2024'
  )


def test_a_folder_without_a_template_is_an_error(tmp_path):
  with pytest.raises(ValueError, match='chat_template.jinja.*tokenizer_config'):
    chat.load(tmp_path)


def sampled(tokenizer, text: str) -> list[int]:
  """Returns one token per byte or character, unlike any tokenizer."""
  table = {data: i for i, data in enumerate(tokenizer.token_bytes())}
  return [table[bytes([b])] for b in text.encode()]


def test_the_next_turn_is_appended_without_drift(folder):
  tokenizer, template = hf_tokenizers.load(folder), chat.load(folder, DAY)
  end = chat.turn_end(template, tokenizer)
  assert end in tokenizer.eos_ids
  messages = [USER]
  ids = tokenizer.encode(template.render(messages))
  for text in ('12 apples', 'in total'):
    tokens = sampled(tokenizer, text)
    assert tokenizer.encode('x' + text)[1:] != tokens  # a sampler may differ
    stopped, cut = (
      chat.next_turn(tokenizer, template, ids, out, messages, [AGAIN])
      for out in ([*tokens, end], tokens)
    )
    assert stopped == cut  # the end of the turn is there once
    assert stopped[: len(ids) + len(tokens)] == [*ids, *tokens]
    # The appended text equals that of the template.
    messages = [*messages, {'role': 'assistant', 'content': text}, AGAIN]
    assert tokenizer.decode(stopped) == tokenizer.decode(
      tokenizer.encode(template.render(messages))
    )
    assert stopped != tokenizer.encode(template.render(messages))
    ids = stopped


@pytest.mark.parametrize('before', ['', 'x'])
def test_a_turn_ends_once_whichever_token_is_the_end_of_text(folder, before):
  """Gemma's tokenizer ends a text with <eos>, and its template a turn with
  another token. A template may write text before that token.
  """
  file = folder / 'chat_template.jinja'
  for mark in '<|im_end|>', '<|eot|>':
    file.write_text(file.read_text().replace(mark, before + mark))
  tokenizer, template = hf_tokenizers.load(folder), chat.load(folder, DAY)
  messages = [USER]
  end = chat._end_of_turn(template, tokenizer, messages)[-1]
  other = next(i for i in tokenizer.special_ids if i != end)
  ids = tokenizer.encode(template.render(messages))
  words = sampled(tokenizer, 'apples')
  for eos in (end,), (other,), (other, end):
    tokenizer.eos_ids = eos
    cut = chat.next_turn(tokenizer, template, ids, words, messages, [AGAIN])
    after = cut[len(ids) + len(words) :]
    assert after.count(end) == 2  # of this turn and of the user's
    for stop in {end, *eos}:
      whole = chat.next_turn(
        tokenizer, template, ids, [*words, stop], messages, [AGAIN]
      )
      assert whole[len(ids) + len(words) :] == [
        stop,
        *after[after.index(end) + 1 :],
      ]


def test_the_sampled_turn_is_kept_where_a_template_would_shorten_it(tmp_path):
  """Qwen3's template removes earlier thoughts when it renders a
  conversation.
  """
  tokenizer = hf_tokenizers.load(hf_folders.byte_level(tmp_path))
  template = chat.load(tmp_path)
  ids = tokenizer.encode(template.render([USER]))
  out = tokenizer.encode(SAID['content'] + '<|im_end|>')
  whole = chat.next_turn(tokenizer, template, ids, out, [USER], [AGAIN])
  assert 'hm' in tokenizer.decode(whole)
  assert 'hm' not in template.render([USER, SAID, AGAIN])


def test_plain_templates():
  assert chat.plain('none', '1+1=') == '1+1='
  assert chat.plain('r1_zero', 'Q{}').endswith('User: Q{} Assistant:')
  assert '\\boxed{}' in chat.plain('boxed', 'Q')
  with pytest.raises(ValueError, match="'r2'.*r1_zero"):
    chat.plain('r2', '')
  text = chat.few_shot('qa', [('1+1?', '2')], '2+2?')
  assert text == 'Question: 1+1?\nAnswer: 2\n\nQuestion: 2+2?\nAnswer:'


def section(folder, **changes):
  c = config_lib.default().data
  c.update(tokenizer='hf', tokenizer_dir=str(folder), **changes)
  found = problems.load(c, 0)
  tokenizer = problems.make_tokenizer(c, found, None)
  return tokenizer, problems.rendered(found, c, tokenizer)


def test_problems_are_written_out_by_the_chat_template(folder):
  tokenizer, found = section(folder, template='chat')
  example = found.train[0]
  ids = pipeline.prompt_ids(example, tokenizer)
  question = {'role': 'user', 'content': example['prompt']}
  wanted = chat.load(folder, DAY).render([question])
  assert ids == tokenizer.encode(wanted)
  row = pipeline.solution_row(0, example, tokenizer, 200, 200)
  last = row['tokens'][row['valid']][-1]
  assert last == chat.turn_end(chat.load(folder), tokenizer)
  assert len(found.harder) == len(found.train) == pipeline.ENDLESS


def test_plain_prompts_begin_with_the_models_first_token(folder):
  tokenizer, found = section(folder, template='r1_zero', shots=1)
  ids = pipeline.prompt_ids(found.heldout[3], tokenizer)
  n = len(tokenizer.prefix_ids)
  assert tuple(ids[:n]) == tokenizer.prefix_ids
  assert tokenizer.bos_id not in ids[n:]
  text = tokenizer.decode(ids)
  shown = problems.load(config_lib.default().data, 0).train[0]
  assert text.count('Assistant:') == 2 and shown['solution'] in text
  assert all(found.train[i]['prompt'] != shown['prompt'] for i in range(9))


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'template': 'poem'}, 'poem.*r1_zero'),
    ({'thinking': 'maybe'}, 'data.thinking'),
    ({'system': 'x'}, 'data.system'),
    ({'template': 'chat', 'shots': 1}, 'data.shots=1'),
    ({'template': 'chat', 'tokenizer': 'char'}, 'data.tokenizer=hf'),
    ({'tokenizer_dir': ''}, 'set model_dir'),
  ],
)
def test_incompatible_templates_are_refused(tmp_path, changes, words):
  hf_folders.byte_level(tmp_path)
  with pytest.raises(ValueError, match=words):
    c = config_lib.default().data
    c.update({'tokenizer': 'hf', 'tokenizer_dir': str(tmp_path)} | changes)
    found = problems.load(c, 0)
    problems.rendered(found, c, problems.make_tokenizer(c, found, None))


@pytest.fixture
def quick(monkeypatch):
  """Sets a limit of CPU seconds that is short enough for tests."""
  monkeypatch.setattr(templates, 'SECONDS', 0.4)
  return templates.SECONDS


LOOPS = (
  '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}'
  '{% endfor %}'
)
DOUBLES = (
  "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
  '{% set ns.x = @ %}{% endfor %}'
)


@pytest.mark.parametrize(
  'text, words',
  [
    ('{{ 1 / 0 }}', 'ZeroDivisionError'),
    ('{{ messages[0] + 1 }}', 'TypeError'),
    ('{{ messages.a.b }}', 'UndefinedError'),
    ('{% if %}', 'TemplateSyntaxError'),
    ("{{ raise_exception('no systems') }}", 'no systems'),
    ('{{ range(10**7) | list }}', 'OverflowError'),
    ("{{ 'x' * 10**12 }}", 'MemoryError'),
    ("{{ 10**12 * 'x' }}", 'MemoryError'),
    ('{{ [1] * 10**9 }}', 'MemoryError'),
    ('{{ 10 ** (10 ** 8) }}', 'still running'),
    ("{{ 'x'.ljust(10**11) }}", 'MemoryError'),
    ("{{ 'x' | center(10**11) }}", 'MemoryError'),
    ("{{ '%099999999999d' % 3 }}", 'Error'),
    ("{{ '{:>2000000000}'.format(1) }}", 'MemoryError'),
    ("{{ 'x' * 11 * 10**6 }}", 'OverflowError'),
    (DOUBLES.replace('@', 'ns.x ~ ns.x'), 'still running|MemoryError'),
    (DOUBLES.replace('@', 'ns.x + ns.x'), 'still running|MemoryError'),
    (DOUBLES.replace('@', '[ns.x, ns.x] | join'), 'still running|MemoryError'),
    ('{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}', 'RecursionError'),
    (LOOPS, 'still running'),
    # Names that an earlier version kept its clock under.
    ('{% set _jaxrl_reason_tick = namespace %}' + LOOPS, 'still running'),
    (
      "{% set x = ([{'a': 1}] * 9000000) | groupby('a') %}{{ x | length }}",
      'still running|MemoryError',
    ),
    (
      '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}'
      '{% endmacro %}{{ f(60) }}',
      'still running',
    ),
  ],
)
def test_a_failure_of_a_template_is_an_error_with_its_name(text, words, quick):
  template = chat.ChatTemplate({'default': text}, {})
  with pytest.raises(ValueError, match=f"chat template 'default': .*{words}"):
    template.render([USER])
  text = '{{ messages[0].content }}'
  assert chat.ChatTemplate({'default': text}, {}).render([USER])


def test_a_template_takes_neither_time_nor_memory_of_this_process(quick):
  """The kernel bounds time and memory of the template's own process."""
  start = time.process_time()
  for text in (LOOPS, "{{ '{:>2000000000}'.format(1) }}"):
    with pytest.raises(ValueError, match='chat template'):
      chat.ChatTemplate({'default': text}, {}).render([USER])
  assert time.process_time() - start < quick
  pid = limited._process(templates.RENDER).pid
  with open(f'/proc/{pid}/status') as f:
    peak_kb = int(re.search(r'VmHWM:\s+(\d+) kB', f.read())[1])
  assert peak_kb < 2 * templates.MEMORY_MB << 10


def test_bounds_are_far_from_real_conversations():
  text = (
    '{% for m in messages %}{{ m.role ~ ": " + m.content }}{% endfor %}'
    "{{ '%5.2f' % 1.5 }}{{ 'ab' * 3 }}{{ 2 ** 10 }}"
  )
  said = [{'role': 'user', 'content': 'word ' * 1000}] * 500
  out = chat.ChatTemplate({'default': text}, {}).render(said)
  assert out == ('user: ' + 'word ' * 1000) * 500 + ' 1.50ababab1024'
