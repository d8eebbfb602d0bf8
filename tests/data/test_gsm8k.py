"""GSM8K by index, from a folder or a download, with errors that help."""

import contextlib
import functools
import hashlib
import http.server
import json
import pathlib
import pickle
import socket
import subprocess
import sys
import threading

import pytest
import tensorflow_datasets as tfds

from jaxrl_reason.data import gsm8k

GSM8K = pathlib.Path(__file__).parents[3] / 'shared' / 'data' / 'gsm8k'
ROWS = [
  {
    'question': f'{i} and {i}\u2019s?',
    'answer': f'It is {i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}.\n#### {2 * i:,}',
  }
  for i in range(400, 1400, 100)
]


def write(folder, rows, split='train'):
  folder.mkdir(parents=True, exist_ok=True)
  text = ''.join(
    (row if isinstance(row, str) else json.dumps(row)) + '\n' for row in rows
  )
  (folder / f'{split}.jsonl').write_text(text)


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / 'in put', ROWS, 'train')
  write(tmp_path / 'in put', ROWS[:3], 'test')
  return tmp_path / 'in put'


def test_rows_become_examples_in_order(folder, tmp_path):
  sources = gsm8k.load(folder, tmp_path / 'cache')
  assert {s: len(x) for s, x in sources.items()} == {'train': 10, 'test': 3}
  assert list(sources['train']) == [
    {
      'prompt': row['question'],
      'solution': f'It is {i}+{i}={2 * i}.\n#### {2 * i:,}',
      'answer': str(2 * i),
      'meta': {},
      'task': 'gsm8k',
    }
    for row, i in zip(ROWS, range(400, 1400, 100))
  ]
  source = pickle.loads(pickle.dumps(sources['test']))
  assert source[2] == sources['test'][2]
  for index in (-1, 3):
    with pytest.raises(IndexError):
      source[index]


def test_annotations_are_kept_on_request(folder, tmp_path):
  sources = gsm8k.load(folder, tmp_path / 'cache', keep_annotations=True)
  assert sources['train'][0]['solution'] == ROWS[0]['answer']


def test_an_edited_folder_is_read_again(folder, tmp_path):
  assert len(gsm8k.load(folder, tmp_path / 'cache')['train']) == 10
  write(folder, ROWS[:4])
  assert len(gsm8k.load(folder, tmp_path / 'cache')['train']) == 4


GOOD = json.dumps(ROWS[0])


@pytest.mark.parametrize(
  ('rows', 'words'),
  [
    ([], ('train.jsonl', 'no rows')),
    ([''], ('train.jsonl', 'no rows')),
    ([GOOD, '{"question": '], ('train.jsonl, row 2', 'not JSON')),
    ([GOOD, '', '[1]'], ('train.jsonl, row 3', 'not a JSON object')),
    (['{"question": "x"}'], ('row 1', "'answer'")),
    (['{"question": 1, "answer": "#### 2"}'], ('row 1', "'question'")),
    (['{"question": "x", "answer": "2"}'], ('row 1', '#### ')),
    (['{"question": "x", "answer": "2 #### "}'], ('row 1', '#### ')),
  ],
)
def test_an_error_names_file_and_row(folder, tmp_path, rows, words):
  write(folder, rows)
  for _ in range(2):  # a failure leaves no data
    with pytest.raises(ValueError) as error:
      gsm8k.load(folder, tmp_path / 'cache')
    assert all(word in str(error.value) for word in words)


def test_bytes_that_are_not_utf8_name_the_row(folder, tmp_path):
  (folder / 'train.jsonl').write_bytes(GOOD.encode() + b'\n{"\xff": 1}\n')
  with pytest.raises(ValueError, match='train.jsonl, row 2'):
    gsm8k.load(folder, tmp_path / 'cache')


def test_a_missing_file_is_named(folder, tmp_path):
  (folder / 'test.jsonl').unlink()
  with pytest.raises(FileNotFoundError, match='test.jsonl is missing'):
    gsm8k.load(folder, tmp_path / 'cache')


@contextlib.contextmanager
def serve(folder):
  class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
      pass

  handler = functools.partial(Handler, directory=str(folder))
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f'http://127.0.0.1:{server.server_port}/'
  finally:
    server.shutdown()
    server.server_close()


def publish(monkeypatch, folder, site):
  """Sets the builder's address to `site`, with the checksums of `folder`."""
  infos = {}
  for split in gsm8k.SPLITS:
    data = (folder / f'{split}.jsonl').read_bytes()
    infos[f'{site}{split}.jsonl'] = tfds.download.checksums.UrlInfo(
      size=len(data),
      checksum=hashlib.sha256(data).hexdigest(),
      filename=f'{split}.jsonl',
    )
  monkeypatch.setattr(gsm8k, 'URLS', dict(zip(gsm8k.SPLITS, infos)))
  monkeypatch.setattr(gsm8k.Gsm8k, 'url_infos', infos)


def test_a_download_is_checked_and_cached(folder, tmp_path, monkeypatch):
  with serve(folder) as site:
    publish(monkeypatch, folder, site)
    first = gsm8k.load(None, tmp_path / 'cache')
    write(folder, ROWS[:4])  # does not match the checksums
    with pytest.raises(tfds.download.download_manager.NonMatchingChecksumError):
      gsm8k.load(None, tmp_path / 'other')
  # Without the server, the data is read from the cache.
  assert gsm8k.load(None, tmp_path / 'cache')['train'][5] == first['train'][5]


def test_a_failed_download_names_the_remedy(folder, tmp_path, monkeypatch):
  """TFDS, which retries for minutes, is not called."""
  manager = tfds.download.DownloadManager
  monkeypatch.setattr(manager, 'download', lambda *_: pytest.fail('called'))
  with socket.socket() as closed:  # a port on which no server listens
    closed.bind(('127.0.0.1', 0))
    publish(monkeypatch, folder, f'http://127.0.0.1:{closed.getsockname()[1]}/')
    words = 'refused.*train.jsonl and test.jsonl.*hf:openai/gsm8k'
    with pytest.raises(OSError, match=words):
      gsm8k.load(None, tmp_path / 'cache')


@pytest.mark.skipif(not GSM8K.exists(), reason=f'{GSM8K} is absent')
def test_the_published_files(tmp_path):
  sources = gsm8k.load(GSM8K, tmp_path)
  assert (len(sources['train']), len(sources['test'])) == (7473, 1319)
  assert sources['test'][0]['answer'] == '18'
  assert sources['train'][0]['answer'] == '72'
  for source in sources.values():
    for i in range(0, len(source), 5):
      ex = source[i]
      assert ex['answer'].lstrip('-').isdigit() and '<<' not in ex['solution']
      assert (
        ex['solution'].rpartition('#### ')[2].replace(',', '') == (ex['answer'])
      )
  for split in gsm8k.SPLITS:
    data = (GSM8K / f'{split}.jsonl').read_bytes()
    info = gsm8k.Gsm8k.url_infos[gsm8k.URLS[split]]
    assert len(data) == info.size
    assert hashlib.sha256(data).hexdigest() == info.checksum


def test_no_tensorflow_and_no_jax(folder, tmp_path):
  code = (
    'import sys; from jaxrl_reason.data import gsm8k\n'
    f'gsm8k.load({str(folder)!r}, {str(tmp_path / "cache")!r})["test"][0]\n'
    'assert not {"tensorflow", "jax"} & set(sys.modules)'
  )
  subprocess.run([sys.executable, '-c', code], check=True)


def test_a_run_without_it_imports_no_tfds():
  """The import would take half a second of every other run."""
  code = (
    'import sys, jaxrl_reason.run.train, jaxrl_reason.evals.suites;'
    'sys.exit("tensorflow_datasets" in sys.modules)'
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0
