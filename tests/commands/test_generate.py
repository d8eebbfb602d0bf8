"""Streamed text is the sampled text; a file goes on where it was stopped."""

import json
import subprocess
import sys

import pytest
from data import hf_folders
from small import ROOT, small_config, small_model

from jaxrl_reason import generate
from jaxrl_reason.checkpoints import hf
from jaxrl_reason.logits import Sampling

CHANGES = dict(qk_norm=False, vocab=312)
ROWS = [{'prompt': f'{i} apples', 'id': i} for i in range(5)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('model')
  params = small_model(**CHANGES)[2]
  hf.save(path, params, small_config(**CHANGES), dtype='float32')
  return hf_folders.byte_level(path)


def load(folder, chat=False, n=2):
  return generate.load(
    str(folder), 'float32', chat, n_samples=n, max_new=12,
    sampling=Sampling.make(1.0),
  )  # fmt: skip


@pytest.fixture(scope='module')
def generator(folder):
  return load(folder)


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.jsonl'
  path.write_text(''.join(json.dumps(r) + '\n' for r in ROWS))
  return path


def test_what_is_shown_is_what_is_sampled(folder):
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


def test_a_file_goes_on_where_it_was_stopped(generator, prompts, tmp_path):
  whole, parts = tmp_path / 'whole.jsonl', tmp_path / 'parts.jsonl'
  n, _ = generate.to_file(generator, prompts, whole, batch=2)
  lines = whole.read_text().splitlines(keepends=True)
  found = [json.loads(line) for line in lines]
  assert [{k: r[k] for k in ROWS[0]} for r in found] == ROWS
  assert n == sum(sum(r['n_tokens']) for r in found)
  assert all(len(r['completions']) == 2 for r in found)
  assert len({r['completions'][0] for r in found}) == len(ROWS)
  for r in found:
    for length, cut in zip(r['n_tokens'], r['truncated']):
      assert length == 12 or not cut
  # Killed inside the fourth line.
  parts.write_text(''.join(lines[:3]) + lines[3][:20])
  rest, _ = generate.to_file(generator, prompts, parts, batch=2)
  assert parts.read_text() == whole.read_text()
  assert rest == sum(sum(r['n_tokens']) for r in found[3:])
  assert generate.to_file(generator, prompts, parts, batch=2) == (0, 0.0)


def test_what_does_not_fit_is_refused(generator, prompts, tmp_path):
  out = tmp_path / 'out.jsonl'
  out.write_text('{"prompt": "another"}\n')
  with pytest.raises(ValueError, match='another --file'):
    generate.to_file(generator, prompts, out, batch=2)
  prompts.write_text('{"text": "x"}\n')
  with pytest.raises(ValueError, match='prompt 1: neither'):
    generate.to_file(generator, prompts, tmp_path / 'new', batch=2)
  prompts.write_text('{"messages": []}\n')
  with pytest.raises(ValueError, match='need --chat'):
    generate.to_file(generator, prompts, tmp_path / 'new', batch=2)


def test_the_command(folder):
  command = [sys.executable, '-m', 'jaxrl_reason.generate']
  say = lambda *more: subprocess.run(
    [*command, f'--model={folder}', *more],
    capture_output=True, text=True, cwd=ROOT,
  )  # fmt: skip
  done = say('--prompt=2+3', '--chat', '--max_new=4', '--temperature=0')
  assert done.returncode == 0 and 'tokens/s' in done.stderr, done.stderr
  failed = say('--file=x')
  assert failed.returncode == 1 and 'go together' in failed.stderr
