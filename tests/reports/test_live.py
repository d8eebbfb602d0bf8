"""The page of --live follows a run, and only this machine can read it."""

import http.client
import json
import socket
import threading
import urllib.request

import chromium
import pytest
from test_report import jsonl, record, set_field, workdir

from jaxrl_reason import report
from jaxrl_reason.reports import answer_pages as answers
from jaxrl_reason.reports import live, workdirs

pytest.importorskip('plotly', reason='the extra report is not installed')


@pytest.fixture
def served(tmp_path):
  """Returns (workdirs of two runs, the server of their page)."""
  paths = [workdir(tmp_path / 'a'), workdir(tmp_path / 'b', kl=0.5)]
  args = report.parser().parse([*map(str, paths), '--live'])
  server = report.serve(args)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield paths, server
  server.shutdown()
  server.server_close()


def grow(path, step):
  """Adds a line of metrics and a file of rollouts."""
  row = {'step': step, 'stage': 'rl', 'train/reward_mean': 0.9}
  with (path / 'metrics.jsonl').open('a') as f:
    f.write(json.dumps(row) + '\n')
  rows = [record(step, 7, i, True, 'a new answer') for i in range(3)]
  jsonl(path / 'rollouts' / f'{step:08d}.jsonl', rows)


def get(server, path, host=None):
  connection = http.client.HTTPConnection('127.0.0.1', server.server_port, 9)
  connection.request('GET', path, headers={'Host': host} if host else {})
  return connection.getresponse()


def test_an_event_says_that_a_run_has_grown(served):
  (path, _), server = served
  assert server.server_address[0] == '127.0.0.1'
  with urllib.request.urlopen(server.address + 'events', timeout=9) as events:
    assert events.headers['Content-Type'] == 'text/event-stream'
    assert events.readline() == b'data: 1\n'
    server.live.look()  # nothing has changed
    grow(path, 100)
    server.live.look()
    assert [events.readline(), events.readline()] == [b'\n', b'data: 2\n']
  page = get(server, '/').read().decode()
  index = json.loads(
    page.partition('type="application/json">')[2].partition('</script>')[0]
  )
  assert (index['version'], index['rows']) == (2, 2 * 9 * 12 + 3)
  assert 'src="plotly.js"' in page and 'id="texts-0"' not in page
  assert b'Plotly' in get(server, '/plotly.js').read()


def test_the_uncertain_tokens_of_a_growing_run_are_of_its_last_third(tmp_path):
  """Also if most files were among the newest when they were read."""
  path = workdir(tmp_path / 'a', steps=[0])
  grown, again = (answers.Reader(0, answers.Blocks()) for _ in range(2))
  for step in range(10, 130, 10):
    grow(path, step)
    run = workdirs.read(path)
    found = grown.read(run)
  assert len(run.rollouts) == 13
  assert found.top == again.read(run).top


def test_other_hosts_and_files_are_refused(served):
  _, server = served
  assert get(server, '/').status == 200
  assert get(server, '/', f'localhost:{server.server_port}').status == 200
  assert get(server, '/', 'evil.example').status == 403
  for path in ('/metrics.jsonl', '/../a/config.json', '//etc/passwd'):
    assert get(server, path).status == 404


@pytest.mark.parametrize(
  'flags, said',
  [
    (['--live', '--out=x.html'], 'leave out --out'),
    (['--live', '--port=1000000'], '--port=1000000'),
    (['--port=80'], '--port=80 is of --live'),
  ],
)
def test_flags_that_do_not_go_together(tmp_path, flags, said, capsys):
  with pytest.raises(SystemExit):
    report.main([str(workdir(tmp_path / 'run')), *flags])
  assert said in capsys.readouterr().err


def test_a_port_in_use_is_refused_before_files_are_read(tmp_path, monkeypatch):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    monkeypatch.setattr(live, 'Live', lambda *a: pytest.fail('files are read'))
    args = report.parser().parse([str(tmp_path), '--live', f'--port={port}'])
    with pytest.raises(ValueError, match=f'--port={port}: .*in use; 0 chooses'):
      report.serve(args)


def many(path, n=100_000, steps=100):
  """Writes rollouts of 500 problems without texts of tokens."""
  path = workdir(path, steps=range(1, steps + 1))
  fields = {'tokens': {}, 'length': 40, 'answer': None}
  for step in range(1, steps + 1):
    rows = [
      record(step, i // 4 % 500, i % 4, i % 4 < 1, 'four', **fields)
      for i in range(n // steps)
    ]
    jsonl(path / 'rollouts' / f'{step:08d}.jsonl', rows)
  return path


def test_100_000_answers_come_in_parts_and_are_filtered(tmp_path):
  """Only rows in sight are part of the page, and numbers open no texts."""
  args = report.parser().parse([str(many(tmp_path / 'run')), '--live'])
  server = report.serve(args)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  page = chromium.Page(server.address)
  page.until('window.report && report.ready')
  count = "document.getElementById('unread')"
  # The first page has a part of the answers, and the curves of all steps.
  assert page.js('report.shown') == 5000 and server.live.unread == 95
  assert page.js(f'{count}.textContent').startswith('95 more files')
  versions = 1
  while server.live.unread:
    server.live.look()
    versions += 1
  assert versions < 10
  page.until(f'report.version === {versions} && report.shown === 100000')
  assert page.js(f'{count} === null')
  rows = "[...document.querySelectorAll('#list .row')]"
  for field, value, n in (
    ('step-from', 21, 80_000),
    ('reward-from', 0.5, 20_000),
    ('step-to', 21, 250),
  ):
    set_field(page, field, value)
    page.until(f'report.shown === {n}')
    assert 0 < page.js(f'{rows}.length') < 100
  # The open answer's two blocks, and those of the rows in sight.
  assert page.js('report.opened.size') <= 2 + 3
  marks = page.js(f"{rows}.map(x => x.querySelector('.mark').textContent)")
  names = page.js(f"{rows}.map(x => x.querySelector('.what').textContent)")
  assert {*marks} == {'✓'} and {*names} == {'step 21'}
  set_field(page, 'f-prompt', 'question 7?')
  page.until(f'report.shown === 1 && {rows}.length === 1')
  page.until(f"{rows}[0].textContent.includes('question 7? ▸ four')")
  assert page.errors == []
  page.close()
  server.shutdown()
  server.server_close()


def test_new_points_and_answers_appear_without_reloading(served):
  (_, path), server = served
  page = chromium.Page(server.address)
  page.until('window.report && report.ready')
  page.js('window.marker = 1')
  page.until("document.querySelectorAll('#overview .main-svg').length > 1")
  page.js("document.querySelector('#overview details').open = false")
  page.js("document.querySelector('#overview .js-plotly-plot').kept = true")
  shown, verdict = 2 * 9 * 12, "document.querySelector('#overview').textContent"
  assert page.js('report.shown') == shown
  grow(path, 100)
  server.live.look()
  page.until(f'report.shown === {shown + 3}')
  page.until('report.version === 2')
  assert page.js('window.marker') == 1 and '100' in page.js(verdict)
  # Drawn figures stay, with the new point, and details stay closed.
  figures = "[...document.querySelectorAll('#overview .js-plotly-plot')]"
  assert page.js(f'{figures}[0].kept') is True
  steps = page.js(f'Math.max(...{figures}[1].data.flatMap(x => x.x))')
  assert steps == 95  # since the stage began
  assert page.js("document.querySelector('#overview details').open") is False
  page.js(f'report.choose({shown})')
  answer = "document.querySelector('.tokens').textContent"
  page.until(f"{answer} === 'a new answer'")
  assert page.errors == []
  assert all(x.startswith(server.address) for x in page.requests)
  page.close()
