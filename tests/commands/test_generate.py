"""Streamed text is the sampled text, and interrupted files are continued."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest
from data import hf_folders
from paths import ROOT
from small import small_config, small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import generate as generate_command
from jaxrl_reason.checkpoints import hf
from jaxrl_reason.evals import generation as generate
from jaxrl_reason.evals import sampling_settings
from jaxrl_reason.verifiers import grading as grade
from jaxrl_reason.verifiers import records

library = pytest.importorskip('safetensors.numpy')
CHANGES = dict(qk_norm=False, vocab=312)
ROWS = [{'prompt': f'{i} apples', 'id': i} for i in range(5)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('model')
  params = small_model(**CHANGES)[2]
  hf.save(path, params, small_config(**CHANGES), dtype='float32')
  return hf_folders.byte_level(path)


def load(folder, chat=False, n=2, **settings):
  return generate.load(
    str(folder), 'float32', chat, n_samples=n, max_new=12,
    sampling={}, **settings,
  )  # fmt: skip


@pytest.fixture(scope='module')
def generator(folder):
  return load(folder)


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.jsonl'
  path.write_text(''.join(json.dumps(r) + '\n' for r in ROWS))
  return path


def test_streamed_text_is_the_sampled_text(folder):
  g, written = load(folder, chat=True), []
  ids = generate._ids(g, {'prompt': 'How many?'}, {'system': 'Count.'})
  assert g.tokenizer.decode(ids).endswith('user\nHow many?\nassistant\n')
  line = generate.show(g, ids, written.append)
  assert len(written) > 5  # token by token
  shown = ''.join(written)
  ((first, second),), _ = g([ids], [0])
  text = g.tokenizer.decode
  assert shown == f'{text(first)}\n--- 2 of 2\n{text(second)}\n'
  assert line.startswith(f'{len(first) + len(second)} tokens in ')
  assert 'tokens/s' in line


def test_a_stop_cuts_the_same_completion(generator, folder, prompts, tmp_path):
  """The tokens before the stop are equal, also in the stream, and no further
  tokens are decoded.
  """
  ids = generate._ids(generator, {'prompt': 'apples'}, {})
  ((first, second),), _ = generator([ids], [0])
  text = generator.tokenizer.decode
  # Weights are random, so only some characters are complete.
  known = [c for c in text(first) if c.isascii()]
  stop = known[len(known) // 2]
  g, written = load(folder, stops=[stop]), []
  generate.show(g, ids, written.append)
  shown = ''.join(written)
  ((a, b),), _ = g([ids], [0])
  assert a == first[: len(a)] and len(a) < len(first) and g.stopped(a)
  assert g.text(a) == text(first).partition(stop)[0]
  assert g.text(b) == text(second).partition(stop)[0]
  assert shown == f'{g.text(a)}\n--- 2 of 2\n{g.text(b)}\n'
  out = tmp_path / 'out.jsonl'
  generate.to_file(g, prompts, out, batch=2)
  assert stop not in ''.join(json.loads(x)['completion'] for x in open(out))


def test_a_special_token_is_a_stop(folder, prompts, tmp_path):
  """Special tokens are in no decoded text, so the token itself ends it."""
  plain = load(folder)
  (start,) = plain.tokenizer.encode('<|im_start|>')
  likely = dict(biases={f'id:{start}': 3.0})
  ids = generate._ids(plain, {'prompt': 'apples'}, {})
  (whole,), _ = load(folder, **likely)([ids], [0])
  for stops in (['<|im_start|>'], ['<|im_start|>', 'never in it']):
    g = load(folder, stops=stops, **likely)
    (cut,), _ = g([ids], [0])
    for a, b in zip(cut, whole):
      assert a == b[: b.index(start) + 1] and len(a) < len(b) and g.stopped(a)
      assert g.text(a) == g.tokenizer.decode(b[: b.index(start)])
  for text in ('x<|im_start|>', '<|im_end|>\n'):
    with pytest.raises(ValueError, match='is a special token.*on its own'):
      load(folder, stops=[text])


def test_the_system_message_is_also_that_of_conversations(folder):
  """Unless a conversation has its own."""
  g, said = load(folder, chat=True), [{'role': 'user', 'content': 'How many?'}]
  given = {'system': 'Count.'}
  want = generate._ids(g, {'prompt': 'How many?'}, given)
  assert generate._ids(g, {'messages': said}, given) == want
  own = [{'role': 'system', 'content': 'Guess.'}, *said]
  kept = generate._ids(g, {'messages': own}, {})
  assert generate._ids(g, {'messages': own}, given) == kept != want


def test_completions_match_an_expression(folder, prompts, tmp_path):
  """The end token is sampled only if the expression may end there."""
  pytest.importorskip('outlines_core')
  g, out = load(folder, expression='(yes|no), [0-9]{1,3}'), tmp_path / 'o.jsonl'
  generate.to_file(g, prompts, out, batch=5)
  rows = [json.loads(line) for line in open(out)]
  assert len({row['completion'] for row in rows}) > 5
  for row in rows:
    assert re.fullmatch('(yes|no), [0-9]{1,3}', row['completion'])
    assert not row['truncated']


def test_an_interrupted_file_is_continued(generator, prompts, tmp_path):
  whole, parts = tmp_path / 'whole.jsonl', tmp_path / 'parts.jsonl'
  n, _ = generate.to_file(generator, prompts, whole, batch=2)
  lines = whole.read_text().splitlines(keepends=True)
  found = [json.loads(line) for line in lines]
  own = [{k: r[k] for k in ROWS[0]} for r in found]
  assert own == [r for r in ROWS for _ in range(2)]
  at = [(r['problem'], r['sample']) for r in found]
  assert at == [(i, g) for i in range(len(ROWS)) for g in range(2)]
  assert n == sum(r['length'] for r in found)
  assert len({r['completion'] for r in found}) == 2 * len(ROWS)
  assert all(r['length'] == 12 or not r['truncated'] for r in found)
  shutil.copy(whole.with_suffix('.json'), parts.with_suffix('.json'))
  # Killed inside the fourth prompt's first line, and between its two.
  for kept in (6, 7):
    parts.write_text(''.join(lines[:kept]) + lines[kept][:20])
    rest, _ = generate.to_file(generator, prompts, parts, batch=2)
    assert parts.read_text() == whole.read_text()
    assert rest == sum(r['length'] for r in found[kept:])
  assert generate.to_file(generator, prompts, parts, batch=2) == (0, 0.0)


def test_rows_may_have_the_fields_of_a_line(generator, tmp_path):
  rows, out = tmp_path / 'rows.jsonl', tmp_path / 'out.jsonl'
  rows.write_text('{"prompt": "1+1=", "model": "other", "temperature": 3}\n')
  generate.to_file(generator, rows, out, batch=1)
  assert generate.to_file(generator, rows, out, batch=1) == (0, 0.0)


def test_a_file_of_other_settings_is_refused(generator, prompts, tmp_path):
  out = tmp_path / 'out.jsonl'
  generate.to_file(generator, prompts, out, batch=2, template='qa')
  assert {r['temperature'] for r in records.finished(out)} == {1.0}
  before, neutral = out.read_bytes(), sampling_settings.NEUTRAL
  others = [
    (dict(name='another'), {}, 'model'),
    (dict(version='another'), {}, 'version'),
    (
      dict(sampling=neutral | {'temperature': 0.5}),
      {},
      'temperature',
    ),
    (dict(sampling=neutral | {'top_k': 5}), {}, 'top_k'),
    (dict(biases={'7': 1.0}), {}, 'logit_bias'),
    (dict(seed=1), {}, 'seed'),
    (dict(max_new=11), {}, 'max_new'),
    ({}, dict(template='boxed'), 'template'),
    ({}, dict(template='qa', system='Count.'), 'system'),
  ]
  for changes, options, key in others:
    other = dataclasses.replace(generator, **changes)
    options = {'template': 'qa'} | options
    with pytest.raises(ValueError, match=f'was begun with {key}='):
      generate.to_file(other, prompts, out, batch=2, **options)
  assert out.read_bytes() == before
  out.with_suffix('.json').unlink()
  with pytest.raises(ValueError, match='exists without out.json'):
    generate.to_file(generator, prompts, out, batch=2, template='qa')


def test_other_weights_or_templates_at_the_same_path_are_noticed(
  folder, tmp_path
):
  model = shutil.copytree(folder, tmp_path / 'model')

  def settings():
    return generate.settings_of(load(model, chat=True), {})

  before = settings()
  (model / 'README.md').write_text('Another text.')
  assert settings() == before
  (model / hf.SINGLE).unlink()
  hf.save(
    model, small_model(1, **CHANGES)[2], small_config(**CHANGES),
    dtype='float32',
  )  # fmt: skip
  other = settings()
  assert {k for k in other if other[k] != before[k]} == {'version'}
  (model / 'chat_template.jinja').write_text(
    '{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}'
  )
  last = settings()
  assert {k for k in last if last[k] != other[k]} == {'chat_template'}


def test_sampling_is_the_models_unless_flags_set_it(folder, tmp_path):
  def found(text, **flags):
    (tmp_path / 'generation_config.json').write_text(json.dumps(text))
    return sampling_settings.of_model(tmp_path, flags)

  of_model = {'temperature': 0.6, 'top_k': 20, 'top_p': 0.95, 'do_sample': True}
  own = sampling_settings.NEUTRAL | {
    'temperature': 0.6, 'top_k': 20, 'top_p': 0.95,
  }  # fmt: skip
  assert found(of_model) == own
  # Greedy decoding in transformers has this penalty too.
  penalty = {'repetition_penalty': 1.1}
  greedy = found(of_model | penalty | {'do_sample': False})
  assert greedy == sampling_settings.NEUTRAL | penalty
  assert found(of_model, temperature=0.0, top_k=0) == own | {
    'temperature': 0.0, 'top_k': 0,
  }  # fmt: skip
  assert found(of_model | {'do_sample': False}) == sampling_settings.NEUTRAL
  assert sampling_settings.of_model(None, {'top_p': 0.5})['top_p'] == 0.5
  with pytest.raises(
    ValueError, match='^generation_config.json: top_p=7: must'
  ):
    found({'top_p': 7})
  with pytest.raises(ValueError, match='^--top_p=7: must be'):
    found({}, top_p=7)
  model = shutil.copytree(folder, tmp_path / 'model')
  path = model / 'generation_config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | of_model))
  given = [f'--model={model}', '--prompt=2', '--max_new=2', '--min_p=0.1']
  line = generate.run(generate_command.parser().parse(given))
  assert line.endswith('(temperature=0.6 top_k=20 top_p=0.95 min_p=0.1)')


def test_grade_reads_the_output_of_generate(generator, tmp_path):
  """Texts may contain line ends."""
  rows = [{'prompt': f'{i}\u2028x', 'answer': '5'} for i in range(2)]
  prompts, out = tmp_path / 'p.jsonl', tmp_path / 'out.jsonl'
  prompts.write_text(
    ''.join(json.dumps(r, ensure_ascii=False) + '\n' for r in rows)
  )
  generate.to_file(generator, prompts, out, batch=2)
  limits = dict(workers=1, timeout_s=5.0, memory_mb=1024)
  keys = 'completion', 'answer'
  graded = tmp_path / 'graded.jsonl'
  verdicts = grade.run(str(out), str(graded), 'math', keys, **limits)
  assert len(verdicts) == 4
  written, given = records.finished(graded), records.finished(out)
  assert [r.pop('verdict')['score'] for r in written] == [
    v.score for v in verdicts
  ]
  assert written == given and written[0]['prompt'] == '0\u2028x'
  # A graded file has prompts too, and is generated again.
  again = tmp_path / 'again.jsonl'
  generate.to_file(generator, graded, again, batch=2)
  assert not any('verdict' in r for r in records.finished(again))


def test_incompatible_arguments_are_refused(generator, prompts, tmp_path):
  out = tmp_path / 'out.jsonl'
  out.write_text('{"prompt": "another"}\n')
  with pytest.raises(ValueError, match='another --file'):
    generate.to_file(generator, prompts, out, batch=2)
  prompts.write_text('{"text": "x"}\n')
  with pytest.raises(ValueError, match='prompt 1: neither'):
    generate.to_file(generator, prompts, tmp_path / 'new', batch=2)
  for bad in ('[1]', '{"prompt": 5}', '{"prompt": "x"'):
    prompts.write_text(bad + '\n')
    with pytest.raises(ValueError, match='prompts.jsonl(:1: not|, prompt 1)'):
      generate.to_file(generator, prompts, tmp_path / 'new', batch=2)
  prompts.write_text('{"prompt": ""}\n')
  with pytest.raises(ValueError, match='the prompt is empty'):
    generate.to_file(generator, prompts, tmp_path / 'new', batch=2)
  prompts.write_text('{"messages": []}\n')
  with pytest.raises(ValueError, match='need --chat'):
    generate.to_file(generator, prompts, tmp_path / 'new', batch=2)
  prompts.write_text('\n')
  with pytest.raises(ValueError, match='prompts.jsonl has no prompts'):
    generate.to_file(generator, prompts, tmp_path / 'new', batch=2)


def test_the_command(folder):
  command = [sys.executable, '-m', 'jaxrl_reason', 'generate']

  def say(*more):
    return subprocess.run(
      [*command, f'--model={folder}', *more],
      capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip

  done = say('--prompt=2+3', '--chat', '--max_new=4', '--temperature=0')
  assert done.returncode == 0 and 'tokens/s' in done.stderr, done.stderr
  failed = say('--file=x')
  assert failed.returncode == 1 and 'go together' in failed.stderr


@pytest.mark.parametrize(
  'flag, words',
  [
    ('--n=0', '--n=0: must be a whole number of at least 1'),
    ('--max_new=0', '--max_new=0: must be'),
    ('--temperature=-1', '--temperature=-1.0: must be a number of at least 0'),
    ('--top_p=1.7', '--top_p=1.7: must be'),
    ('--top_k=-3', '--top_k=-3: must be'),
    ('--min_p=-1', '--min_p=-1.0: must be'),
    ('--seed=-1', '--seed=-1: must be'),
    ('--temperature=nan', '--temperature=nan: must be'),
    ('--prompt=', 'the prompt is empty'),
    ('--system=x', '--system=x needs --chat'),
    ('--thinking=on', '--thinking=on needs --chat'),
    ('--stop=', '--stop= is empty'),
    ('--json_schema=none.json', '--json_schema=none.json does not exist'),
    ('--repetition_penalty=0', '--repetition_penalty=0.0: must be a number ab'),
    ('--presence_penalty=2.5', '--presence_penalty=2.5: must be a number of'),
    ('--frequency_penalty=-3', '--frequency_penalty=-3.0: must be'),
    ('--logit_bias=[1]', '--logit_bias=.1.: must be a JSON object'),
    ('--logit_bias={"": 1}', "--logit_bias: '' is the text of 0 tokens"),
    ('--logit_bias={"id:9999": 1}', 'id:9999: the tokenizer has 305 tokens'),
    ('--logit_bias={"id:9": "x"}', "'id:9': 'x': must be a finite number"),
  ],
)
def test_arguments_are_checked_as_a_config_is(folder, flag, words):
  given = [f'--model={folder}', '--prompt=2+3', '--max_new=2', flag]
  with pytest.raises(ValueError, match=words):
    generate.run(generate_command.parser().parse(given))


@pytest.mark.parametrize('flag', ['--regex=a(', '--regex=[', '--regex=a{2,1}'])
def test_a_wrong_expression_is_refused_before_the_model_is_loaded(flag):
  given = ['--model=nowhere', '--prompt=2', flag]
  with pytest.raises(ValueError, match=f'{re.escape(flag[8:])}.*: Failed'):
    generate.run(generate_command.parser().parse(given))


def test_penalties_and_biases_change_completions(folder):
  """With a bias of 100, a completion repeats one token; a penalty ends this."""

  def run(*flags):
    given = [f'--model={folder}', '--prompt=2+3', '--max_new=6', *flags]
    a = generate_command.parser().parse([*given, '--temperature=0'])
    words = []
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr('builtins.print', lambda text, **_: words.append(text))
      line = generate.run(a)
    return ''.join(words).strip(), line

  text, line = run('--logit_bias={"7": 100}')
  assert text == '777777' and 'penalty' not in line
  text, line = run('--logit_bias={"7": 100}', '--frequency_penalty=2')
  assert text == '777777' and 'frequency_penalty=2' in line
  text, _ = run('--logit_bias={"7": 30}', '--repetition_penalty=50')
  assert text.startswith('7') and text != '777777'


def test_two_ends_of_a_completion_are_refused(folder):
  given = [f'--model={folder}', '--prompt=2', '--stop=x', '--regex=y']
  with pytest.raises(ValueError, match='--stop and --regex cannot be combined'):
    generate.run(generate_command.parser().parse(given))


def test_the_date_of_a_template_is_a_setting(folder):
  g = load(folder, chat=True)
  assert g.template.day == config_lib.Data().day
  assert generate.settings_of(g, {})['day'] == g.template.day
  assert 'day' not in generate.settings_of(load(folder), {})


def test_a_template_beside_chat_is_refused(folder):
  given = [f'--model={folder}', '--prompt=2', '--chat', '--template=qa']
  with pytest.raises(ValueError, match='--template=qa has no effect with --ch'):
    generate.run(generate_command.parser().parse(given))


def test_a_model_with_too_few_embeddings_is_refused(folder, tmp_path):
  """Otherwise jax would clamp the indices of the missing tokens."""
  small = shutil.copytree(folder, tmp_path / 'small')
  for path in small.glob('*.safetensors'):
    path.unlink()
  config = small_config(**CHANGES | {'vocab': 300})
  params = small_model(**CHANGES | {'vocab': 300})[2]
  hf.save(small, params, config, dtype='float32')
  with pytest.raises(ValueError, match='305 tokens and the model embeds 300'):
    load(small)
  broken = shutil.copytree(folder, tmp_path / 'nan')
  tensors = library.load_file(broken / hf.SINGLE)
  name = 'model.layers.1.self_attn.q_proj.weight'
  tensors[name][0, 0] = float('nan')
  library.save_file(tensors, broken / hf.SINGLE, metadata={'format': 'pt'})
  with pytest.raises(ValueError, match=f'{name} has values that are not fin'):
    load(broken)


def cut(path):
  data = path.read_bytes()
  path.write_bytes(data[: len(data) * 2 // 3])


@pytest.mark.parametrize(
  'name',
  ['tokenizer.json', 'config.json', 'tokenizer_config.json', hf.SINGLE]
  + ['generation_config.json'],
)
def test_a_file_that_was_cut_short_is_named(folder, name, tmp_path):
  broken = shutil.copytree(folder, tmp_path / 'broken')
  cut(broken / name)
  with pytest.raises(ValueError) as error:
    load(broken, chat=True)
  said = str(error.value)
  assert f'{broken / name} cannot be read' in said and '\n' not in said


def test_a_shard_or_index_that_was_cut_short_is_named(tmp_path):
  params = small_model(**CHANGES)[2]
  hf.save(tmp_path, params, small_config(**CHANGES), shard_bytes=8000)
  kept = (tmp_path / hf.INDEX).read_bytes()
  for text in (kept[:100], b'[]', b'{"weight_map": [1]}', b'{}'):
    (tmp_path / hf.INDEX).write_bytes(text)
    with pytest.raises(ValueError, match=hf.INDEX):
      hf.load(tmp_path, small_config(**CHANGES))
  (tmp_path / hf.INDEX).write_bytes(kept)
  shard = sorted(tmp_path.glob('*.safetensors'))[1]
  cut(shard)
  with pytest.raises(ValueError, match=f'{shard} cannot be read'):
    hf.load(tmp_path, small_config(**CHANGES))
