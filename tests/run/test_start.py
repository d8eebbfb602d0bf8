"""Processes that were not started alike are refused by name, at once."""

import os

import pytest
from small import ROOT
from test_hosts import finish, free_address, log_file, start

from jaxrl_reason import hosts
from jaxrl_reason.run import identity


@pytest.fixture(scope='module')
def env(tmp_path_factory):
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  cache = tmp_path_factory.mktemp('cache')
  return os.environ | {'XDG_CACHE_HOME': str(cache), 'XLA_FLAGS': flags}


@pytest.mark.parametrize(
  'flags, words',
  [
    ('--config.seed=7', 'process 1 was started with config.seed=7 where'),
    ('--config.model.width=32', 'config.model.width=32 where process 0 has 16'),
    ('--num_processes=3', '--num_processes=3 where process 0 has 2'),
  ],
)
def test_a_process_started_with_something_else_is_named(
  env, tmp_path, flags, words
):
  address, workdir = free_address(), tmp_path / 'run'
  commands = [
    [
      'SIGKILL@-1',
      f'--config={ROOT}/tests/tiny_recipe.py',
      f'--workdir={workdir}',
      f'--coordinator={address}',
      '--num_processes=2',
      f'--process_id={i}',
      '--join_timeout_s=100',
      '--heartbeat_s=10',
      *([flags] if i else []),
    ]
    for i in range(2)
  ]
  logs = finish(start(env, workdir, commands), workdir, codes=(1,))
  for i, log in enumerate(logs):
    assert words in log, f'process {i}: {log[-3000:]}'
    assert 'Traceback' not in log
  assert not (workdir / 'checkpoints').exists()
  assert log_file(workdir, 0).exists()


def test_every_difference_counts_and_three_are_shown():
  first = {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'same': 5}
  other = {'a': 2, 'b': 3, 'd': 9, 'e': 1, 'same': 5}
  with pytest.raises(ValueError) as e:
    hosts._refuse_differing(3, first, other)
  text = str(e.value)
  assert 'process 3 was started with a=2 where process 0 has 1' in text
  assert "c='missing' where process 0 has 3 and 2 more" in text
  hosts._refuse_differing(3, first, dict(first))


class Source(list):
  """Examples of a split."""


class Tokenizer:
  vocab_size, eos_ids = 3, (1,)

  def __init__(self, shift=0):
    self._shift = shift

  def encode(self, text):
    return [ord(c) + self._shift for c in text]


class Splits:
  def __init__(self, n, change=None):
    rows = [{'prompt': f'{i}', 'answer': i} for i in range(n)]
    if change is not None:
      rows[change]['answer'] = -1
    self.train, self.heldout, self.harder = Source(rows), Source(rows[:2]), None


def test_another_row_or_token_is_another_run():
  one = identity.of_run(Splits(50), Tokenizer(), ('rl',))
  assert one == identity.of_run(Splits(50), Tokenizer(), ('rl',))
  row = identity.of_run(Splits(50, 31), Tokenizer(), ('rl',))
  assert row['data']['train'] != one['data']['train']
  assert row['data']['heldout'] == one['data']['heldout']
  token = identity.of_run(Splits(50), Tokenizer(1), ('rl',))
  assert token['tokenizer'] != one['tokenizer'] and token['data'] == one['data']
  fewer = identity.of_run(Splits(49), Tokenizer(), ('rl',))
  assert fewer['data'] != one['data']
