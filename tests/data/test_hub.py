"""Data sets on the Hub, from a local server with its interface: configurations,
splits, the cache, an interrupted download, no network.
"""

import json
import os
import subprocess
import sys

import fake_hub
import pytest
from paths import ROOT

from jaxrl_reason.data import hub as hub_lib

pytest.importorskip('huggingface_hub')
pytest.importorskip('pyarrow')

LOAD = """
import json, sys
from jaxrl_reason.data import example_files, hub
fields = {k: float(v) for k, v in (f.split('=') for f in sys.argv[2:])}
try:
  found = example_files.load(sys.argv[1], **fields)
except ValueError as e:
  print(f'error: {e}')
else:
  print(json.dumps({k: [[e['prompt'], e['answer']] for e in v]
                    for k, v in found.items()}))
"""


@pytest.fixture
def hub():
  server = fake_hub.FakeHub()
  yield server
  server.close()


def load(hub, tmp_path, name, *fields):
  """Loads a data set in a new process; returns (splits or error, log)."""
  env = os.environ | {
    'HF_ENDPOINT': hub.address,
    'HF_HOME': str(tmp_path / 'hf'),
    'XDG_CACHE_HOME': str(tmp_path / 'cache'),
    'HF_HUB_DISABLE_XET': '1',
  }
  done = subprocess.run(
    [sys.executable, '-c', LOAD, name, *fields],
    env=env, cwd=ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-2000:]
  out = done.stdout.strip()
  return out if out.startswith('error') else json.loads(out), done.stderr


def rows(first, last, question='problem', answer='solution'):
  return [
    {question: f'What is {i}+1?', answer: f'It is #### {i + 1}'}
    for i in range(first, last)
  ]


def pairs(first, last):
  return [
    [f'What is {i}+1?', f'It is #### {i + 1}'] for i in range(first, last)
  ]


def test_a_data_set_by_name_with_its_fields_guessed(hub, tmp_path):
  card = {
    'configs': [
      {
        'config_name': name,
        'data_files': [
          {'split': 'train', 'path': f'{name}/train-*'},
          {'split': 'test', 'path': f'{name}/test-*'},
        ],
      }
      for name in ('main', 'socratic')
    ]
  }
  files = {
    'README.md': b'x',
    'main/train-00000-of-00002.parquet': fake_hub.parquet(rows(0, 6)),
    'main/train-00001-of-00002.parquet': fake_hub.parquet(rows(6, 9)),
    'main/test-00000-of-00001.parquet': fake_hub.parquet(rows(9, 12)),
    'socratic/train-0.parquet': fake_hub.parquet(rows(20, 24)),
    'socratic/test-0.parquet': fake_hub.parquet(rows(24, 27)),
  }
  hub.add('openai/gsm8k', files, card)
  found, log = load(hub, tmp_path, 'hf:openai/gsm8k')
  assert found == {'train': pairs(0, 9), 'test': pairs(9, 12)}
  assert "data.files.question='problem', data.files.answer='solution'" in log
  # Without a network: only downloaded files are available.
  hub.close()
  again, _ = load(hub, tmp_path, 'hf:openai/gsm8k')
  assert again == found
  other, _ = load(hub, tmp_path, 'hf:openai/gsm8k:socratic')
  assert 'socratic/train-0.parquet cannot be downloaded' in other
  none, _ = load(hub, tmp_path, 'hf:openai/other')
  assert 'cannot be reached' in none and 'name a file' in none


def test_an_interrupted_download_is_continued(hub, tmp_path):
  """The completed pieces of 10 MB are not downloaded again."""
  text = 'x' * 2**20
  data = '\n'.join(json.dumps(r | {'x': text}) for r in rows(0, 24)).encode()
  hub.add('a/b', {'train.jsonl': data})
  hub.cut = {'train.jsonl'}
  found, _ = load(hub, tmp_path, 'hf:a/b', 'heldout=0.5')
  assert sorted(found['train'] + found['test']) == sorted(pairs(0, 24))
  gets = [r for r in hub.requests if r[0] == 'GET' and 'train' in r[1]]
  assert [r[2] for r in gets] == [None, f'bytes={10 * 2**20}-']


def test_revisions_and_the_hubs_own_parquet(hub, tmp_path):
  hub.add('a/b', {'train.jsonl': b'{"question": "old", "answer": 1}'}, {}, 'v1')
  hub.add('a/b', {'gpqa.csv': b'x'})
  at = 'default/train/0000.parquet'
  converted = {at: fake_hub.parquet(rows(0, 50, 'Question', 'Answer'))}
  hub.add('a/b', converted, revision='refs/convert/parquet')
  found, _ = load(hub, tmp_path, 'hf:a/b')
  both = found['train'] + found['test']
  assert sorted(both) == sorted(pairs(0, 50))
  old, _ = load(hub, tmp_path, 'hf:a/b@v1')
  assert '1 problems to train on and 0 held out' in old
  wrong, _ = load(hub, tmp_path, 'hf:a/b@v9')
  assert 'no such data set' in wrong and 'v9' in wrong


def test_files_by_their_names():
  """The card declares no files, so names of folders and files determine
  splits.
  """
  listed = [
    'README.md', 'data/train-00000-of-00001.parquet', 'data/test-0.parquet',
    'trainer/notes.txt',
  ]  # fmt: skip
  assert hub_lib.configurations(listed, []) == {
    'default': {
      'train': ['data/train-00000-of-00001.parquet'],
      'test': ['data/test-0.parquet'],
    }
  }
  listed = ['boolean/test-0.parquet', 'dyck/test-0.parquet', 'all.jsonl']
  assert hub_lib.configurations(listed, []) == {
    'boolean': {'test': ['boolean/test-0.parquet']},
    'dyck': {'test': ['dyck/test-0.parquet']},
    'default': {'train': ['all.jsonl']},
  }
  listed = ['test.jsonl', 'test2.jsonl', 'code.py']
  assert hub_lib.configurations(listed, []) == {
    'default': {'test': ['test.jsonl', 'test2.jsonl']}
  }


@pytest.mark.parametrize(
  'train, test',
  [
    ('gsm_train.jsonl', 'gsm_test.jsonl'),
    ('Train.jsonl', 'Test.jsonl'),
    ('training.jsonl', 'testing.jsonl'),
    ('gsmTrain.jsonl', 'gsmTest.jsonl'),
    ('math-train-0.parquet', 'math-eval-0.parquet'),
    ('train_data/part.jsonl', 'math_test/part.jsonl'),
    ('train/test_me.jsonl/train-0.jsonl', 'test/test-0.jsonl'),
  ],
)
def test_files_to_test_on_are_never_trained_on(train, test):
  found = hub_lib.configurations([train, test], [])
  assert found == {'default': {'train': [train], 'test': [test]}}


@pytest.mark.parametrize(
  'listed',
  [
    ['trainset.jsonl', 'testset.jsonl'],
    ['gsm8ktest.jsonl', 'train.jsonl'],
    ['train-test.jsonl'],
  ],
)
def test_files_of_an_unclear_split_are_refused(listed):
  with pytest.raises(ValueError, match='does not show whether its rows are he'):
    hub_lib.configurations(listed, [])
  for clear in (['latest.jsonl', 'strained.jsonl'], ['testset.jsonl']):
    found = hub_lib.configurations(clear, [])
    assert found == {'default': {'train': clear}}


def test_configurations_may_have_the_name_of_a_split():
  listed = ['algebra/train-0.parquet', 'auxiliary_train/train-0.parquet']
  assert [*hub_lib.configurations(listed, [])] == ['algebra', 'auxiliary_train']


@pytest.mark.parametrize(
  'path, matched',
  [
    ('*.jsonl', ['a.jsonl', 'b-1.jsonl']),
    ('./a.jsonl', ['a.jsonl']),
    ('**/a.jsonl', ['a.jsonl', 'old/a.jsonl', 'old/x/a.jsonl']),
    ('old/**/a.jsonl', ['old/a.jsonl', 'old/x/a.jsonl']),
    ('old/**', ['old/a.jsonl', 'old/x/a.jsonl']),
    ('*/a.jsonl', ['old/a.jsonl']),
    ('?.jsonl', ['a.jsonl']),
    ('b-[0-4].jsonl', ['b-1.jsonl']),
    ('b-[!0].jsonl', ['b-1.jsonl']),
    ('a?jsonl', ['a.jsonl']),
    ('b+1.jsonl', []),
  ],
)
def test_patterns_of_cards_are_those_of_the_hub(path, matched):
  listed = ['a.jsonl', 'b-1.jsonl', 'old/a.jsonl', 'old/x/a.jsonl', 'a.csv']
  card = [{'config_name': 'default', 'data_files': path}]
  want = {'default': {'train': matched}} if matched else {}
  assert hub_lib.configurations(listed, card) == want


def test_a_declared_split_without_files_is_refused(hub, tmp_path):
  files = {'train.jsonl': b'{"question": "a", "answer": 1}', 'test.csv': b'x'}
  entries = [{'split': s, 'path': f'{s}.*'} for s in ('train', 'test')]
  hub.add('a/b', files, {'configs': [
    {'config_name': 'main', 'data_files': entries}
  ]})  # fmt: skip
  found, _ = load(hub, tmp_path, 'hf:a/b')
  assert "hf:a/b: the card declares the split 'test' of 'main'" in found


def test_a_configuration_must_be_named_if_none_is_usual(hub, tmp_path):
  files = {f'{name}/test-0.parquet': b'' for name in ('boolean', 'dyck')}
  hub.add('a/bbh', files)
  found, _ = load(hub, tmp_path, 'hf:a/bbh')
  assert 'configurations boolean, dyck: write hf:a/bbh:boolean' in found
  found, _ = load(hub, tmp_path, 'hf:a/bbh:bolean')
  assert "Did you mean 'boolean'?" in found
  found, _ = load(hub, tmp_path, 'hf:a')
  assert 'hf:owner/name[:configuration][@revision]' in found
