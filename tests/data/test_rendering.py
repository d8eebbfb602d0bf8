"""Prompts of mixtures, of rows beside problems, and with solved problems."""

import json
import types

import hf_folders
import pytest
import tiny_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import chat, hf_tokenizers, pipeline, problems, rendering
from jaxrl_reason.evals import prompts
from jaxrl_reason.run import prepare
from jaxrl_reason.verifiers.tools import toolbox

pytestmark = pytest.mark.one_device


def of_folder(folder, **changes):
  """Returns a run with the tokenizer of a small folder, and the folder."""
  folder.mkdir(exist_ok=True)
  hf_folders.byte_level(folder)
  c = tiny_recipe.get_config()
  c.data.update(tokenizer='hf', tokenizer_dir=str(folder))
  c.data.update(prompt_len=300, completion_len=200, **changes)
  return c


def evaluated(run, tokenizer, folder, examples, variant=prompts.OWN):
  """Returns the texts and the stop tokens of an evaluation's prompts."""
  found = types.SimpleNamespace(
    name='m', run=run, texts=folder, tokenizer=tokenizer
  )
  suite = types.SimpleNamespace(name='s', examples=examples, asks='')
  return prompts.write(prompts.parse(variant), found, suite)


def test_the_prompts_of_a_mixture_are_those_of_its_sources(tmp_path):
  c = of_folder(tmp_path)
  c.data.sources = {
    'a': dict(template='chat', system='Add.'),
    'b': dict(template='chat', system='Count.'),
  }
  data = config_lib.read(c).data
  loaded = problems.load(data, 0)
  tokenizer = problems.make_tokenizer(data, loaded, tmp_path)
  end = chat.turn_end(chat.load(tmp_path), tokenizer)
  assert tokenizer.eos_ids[0] == end  # ends worked solutions
  assert hasattr(tokenizer, 'template')  # of the turns of tools
  found = problems.rendered(loaded, data, tokenizer)
  examples = [dict(loaded.heldout[i]) for i in range(4)]
  written = evaluated(c, tokenizer, tmp_path, examples)
  want = [found.heldout[i]['rendered'] for i in range(4)]
  assert 'Add.' in want[0] and 'Count.' in want[1]
  assert written.ids == [tokenizer.encode(text) for text in want]
  assert end in written.stop
  # A question of another suite has no source.
  with pytest.raises(ValueError, match='data.sources have different prompts'):
    evaluated(c, tokenizer, tmp_path, [{'prompt': '1+1='}])


def test_a_date_in_a_template_is_not_that_of_the_call(tmp_path):
  """Training renders `data.day`; evaluations render the same."""
  template = "{{ strftime_now('%Y-%m-%d') }}"
  template += '{% for m in messages %} {{ m.content }}{% endfor %}'
  folder = hf_folders.byte_level(tmp_path, template)
  tokenizer, own = hf_tokenizers.load(folder), config_lib.Data().day
  c = of_folder(tmp_path / 'other', day='2020-01-02')
  chats = prompts.parse(prompts.CHAT)
  for run, want in ((None, own), (c, '2020-01-02')):
    written = evaluated(run, tokenizer, folder, [{'prompt': '1+1='}], 'chat')
    assert tokenizer.decode(written.ids[0]) == f'{want} 1+1='
    settings = prompts.template_of(chats, str(folder), run)
    assert settings == chat.settings_of(chat.load(folder, want))
    assert settings['day'] == want
  settings = prompts.template_of(prompts.parse(prompts.OWN), str(folder), None)
  assert settings['day'] == own
  plain = prompts.parse('none'), prompts.parse(prompts.OWN)
  shown = [prompts.template_of(v, str(folder), c) for v in plain]
  assert shown == [{}, {}]


def pairs_of(c, folder):
  """Returns the only pair of a run that learns from the pair 1+1=."""
  path = folder / 'pairs.jsonl'
  row = {'prompt': '1+1=', 'chosen': '2', 'rejected': '3'}
  path.write_text(json.dumps(row) + '\n')
  c.stages = ('rl', 'preference')
  c.preference.pairs = str(path)
  parts = prepare.prepare(c, folder / 'run')
  ((pair,),) = parts.problems.pairs.values()
  return pair, parts


def test_pairs_have_the_prompts_of_problems(tmp_path):
  """Prompts are those of a mixture's source, with the schemas of tools."""
  c = of_folder(tmp_path / 'model')
  c.data.sources = {'a': dict(name='products', template='chat')}
  c.rl.update(path='host', rewards={'task': dict(reward='numbers')})
  c.rl.update(steps_per_dispatch=1)
  c.rl.turns.update(env='tools', calls='hermes', observation=40)
  c.rl.turns.tools = {'sums': {'tool': 'calculate'}}
  pair, parts = pairs_of(c, tmp_path)
  example = parts.problems.train[0]
  want = example['rendered'].replace(example['prompt'], '1+1=')
  assert pair['rendered'] == want
  assert toolbox.prompted(parts.config.rl)[0]['function']['name'] in want


def test_pairs_have_the_solved_problems_of_the_others(tmp_path):
  c = tiny_recipe.get_config()
  c.data.knobs, c.data.harder = {}, {}
  c.data.update(template='qa', shots=1, tokenizer='byte', prompt_len=150)
  c.data.update(name='files', dir=str(tmp_path / 'rows'), completion_len=20)
  c.data.update(too_long='drop', files=dict(heldout=0.25))
  (tmp_path / 'rows').mkdir()
  rows = [{'question': f'{i}+1=', 'answer': str(i + 1)} for i in range(8)]
  rows[0]['question'] += ' ' * 50  # too long after a solved problem
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (tmp_path / 'rows' / 'train.jsonl').write_text(text)
  pair, parts = pairs_of(c, tmp_path)
  example = parts.problems.heldout[0]
  assert pair['rendered'] == example['rendered'].replace(
    example['prompt'], '1+1='
  )


def rows_of(n):
  return [
    {'prompt': f'{i}+{i}=', 'solution': str(2 * i), 'task': 'x'}
    for i in range(n)
  ]


def test_solved_problems_are_not_trained_on():
  """A prompt would contain its own answer."""
  c = config_lib.Data().changed({'template': 'qa', 'shots': 2})
  rows = rows_of(5)
  source = problems.Problems(rows, rows[:1], None, None, '', None)
  found = problems.rendered(source, c, None)
  assert [e['prompt'] for e in found.train] == ['2+2=', '3+3=', '4+4=']
  assert '0+0=\nAnswer: 0\n\n' in found.train[0]['rendered']
  endless = problems.load(c, 0)
  shown = [endless.train[i]['prompt'] for i in range(2)]
  found = problems.rendered(endless, c, None)
  first = [found.train[i] for i in range(3)]
  assert len(found.train) == pipeline.ENDLESS
  assert all(e['prompt'] not in shown for e in first)
  assert first[2]['prompt'] == endless.train[2]['prompt']
  assert all(x in first[2]['rendered'] for x in shown)


@pytest.mark.parametrize('n', [2, 3])
def test_too_many_solved_problems_are_refused(n):
  with pytest.raises(ValueError, match=f'shots={n}: must be below .*, 2'):
    rendering.solved(rows_of(2), n, 'data.shots=')
