"""A server with the OpenAI interface for the judge's tests, in a thread.

The question, `example['prompt']`, names how the server behaves. The server
stores all requests with their times and headers, and the largest number of
simultaneous requests.
"""

import base64
import codecs
import http.server
import json
import re
import threading
import time
import urllib.parse

ENCODINGS = {
  'plain': lambda key: f'the key {key}.',
  'long': lambda key: 'x' * 295 + key,
  'json': lambda key: json.dumps(''.join(f'\\u{ord(c):04x}' for c in key)),
  'twice': lambda key: json.dumps(json.dumps(_mixed(key))),
  'url': lambda key: urllib.parse.quote(key, safe=''),
  'percent': lambda key: ''.join(f'%{ord(c):02X}' for c in key),
  'html': lambda key: ''.join(f'&#{ord(c)};' for c in key),
  'htmlx': lambda key: ''.join(f'&#x{ord(c):X};' for c in key),
  'hex': lambda key: key.encode().hex(),
  'dump': lambda key: key.encode().hex(' '),
  'base64': lambda key: base64.b64encode(key.encode()).decode(),
  'basic': lambda key: base64.b64encode(f'Bearer {key}'.encode()).decode(),
  'basic2': lambda key: base64.b64encode(f'a:{key}:b'.encode()).decode(),
  'upper': lambda key: key.upper(),
  'reversed': lambda key: key[::-1],
  'base64-reversed': lambda key: ENCODINGS['base64'](key)[::-1],
  'base64-of-reversed': lambda key: ENCODINGS['base64'](key[::-1]),
  'base32': lambda key: base64.b32encode(key.encode()).decode(),
  'rot13': lambda key: codecs.encode(key, 'rot13'),
  'base85': lambda key: base64.b85encode(f'a: {key}'.encode()).decode(),
  'ascii85': lambda key: base64.a85encode(f'key {key}'.encode()).decode(),
  'utf16': lambda key: base64.b64encode(key.encode('utf-16')).decode(),
  'utf16-be': lambda key: base64.b64encode(key.encode('utf-16-be')).decode(),
  'utf16-hex': lambda key: key.encode('utf-16').hex(),
  'utf16-base85': lambda key: base64.b85encode(key.encode('utf-16')).decode(),
  'url-twice': lambda key: urllib.parse.quote(ENCODINGS['percent'](key)),
  'numbers': lambda key: str(list(key.encode())),
  'octal': lambda key: ''.join(f'\\{ord(c):03o}' for c in key),
  'letters': lambda key: str(list(key)),
  'lines': lambda key: '\n'.join(key),
  'shortened': lambda key: f'the key {key[1:-1]}...',
  'two-lines': lambda key: f'{key[:9]}\n{key[9:]}',
}


def _mixed(key: str) -> str:
  return ''.join(c if i % 2 else f'\\u{ord(c):04x}' for i, c in enumerate(key))


class JudgeServer(http.server.ThreadingHTTPServer):
  """A context manager; `url` is the address of its API."""

  daemon_threads = True
  request_queue_size = 64

  def __init__(self):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.lock = threading.Lock()
    self.requests = []  # (time, question, payload, headers)
    self.targets = []  # paths and queries
    self.busy = self.most_busy = 0
    self.released = threading.Event()  # ends the wait of slow replies
    self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
    self.thread.start()

  @property
  def url(self) -> str:
    return f'http://127.0.0.1:{self.server_port}/v1'

  def count(self, question: str) -> int:
    with self.lock:
      return sum(q == question for _, q, _, _ in self.requests)

  def times(self, question: str) -> list[float]:
    with self.lock:
      return [t for t, q, _, _ in self.requests if q == question]

  def __exit__(self, *exc):
    self.released.set()
    self.shutdown()
    self.thread.join()
    super().__exit__(*exc)

  def handle_error(self, request, client_address):
    pass  # in some tests, clients close the connection


class _Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *args):
    pass

  def do_POST(self):
    server = self.server
    size = int(self.headers['Content-Length'])
    payload = json.loads(self.rfile.read(size))
    prompt = payload['messages'][0]['content']
    question = re.search(r'Question:\n(.*)\n', prompt)[1]
    with server.lock:
      server.requests.append(
        (time.monotonic(), question, payload, dict(self.headers))
      )
      server.targets.append(self.path)
    self._answer(question, prompt, server.count(question))

  def _answer(self, question: str, prompt: str, nth: int):
    answer = re.search(r'<<<(\w+)\n(.*?)\n\1>>>', prompt, re.DOTALL)[2]
    match question.split():
      case ['right', *_]:
        self._say('It is.\n' + ('yes' if answer == 'right' else '**No.**'))
      case ['score']:
        self._say(f'Hm.\nScore: {answer}/10')
      case ['logprobs']:
        self._say(
          'Yes', [(' yes', -0.5), ('Yes', -2.0), ('no', -1.5), ('x', 0)]
        )
      case ['criterion']:
        self._say(
          'yes' if re.search(r'criterion: (\w+)', prompt)[1] in answer else 'no'
        )
      case ['say', *words]:
        self._say(' '.join(words))
      case ['slow']:
        self.server.released.wait(100)
        self._say('yes')
      case ['drip']:
        self._drip()
      case ['wait', seconds]:
        self._wait(float(seconds))
        self._say('yes')
      case ['busy', after]:
        self._fail_first(nth, 429, {'Retry-After': after})
      case ['broken']:
        self._fail_first(nth, 500, {})
      case ['status', status]:
        self._send(int(status), f'key {self.headers["Authorization"]}'.encode())
      case ['echo', form]:
        key = self.headers['Authorization'].removeprefix('Bearer ')
        self._send(401, ENCODINGS[form](key).encode())
      case ['deep']:
        self._send(200, b'[' * 200_000)
      case ['garbage']:
        self._send(200, b'<html>no json</html>')
      case ['foreign']:
        self._send(200, b'{"choices": []}')
      case ['closed']:
        self.close_connection = True
      case ['short']:
        self._send(200, b'{"choices"', {'Content-Length': '999'})

  def _fail_first(self, nth: int, status: int, headers: dict):
    if nth == 1:
      self._send(status, b'later', headers)
    else:
      self._say('yes')

  def _say(self, text: str, logprobs=None):
    choice = {'message': {'role': 'assistant', 'content': text}}
    if logprobs:
      top = [{'token': t, 'logprob': p} for t, p in logprobs]
      choice['logprobs'] = {'content': [{'top_logprobs': top}]}
    self._send(200, json.dumps({'choices': [choice]}).encode())

  def _send(self, status: int, body: bytes, headers=None):
    self.send_response(status)
    headers = {'Content-Length': str(len(body)), **(headers or {})}
    for item in headers.items():
      self.send_header(*item)
    self.end_headers()
    self.wfile.write(body)

  def _wait(self, seconds: float):
    server = self.server
    with server.lock:
      server.busy += 1
      server.most_busy = max(server.most_busy, server.busy)
    time.sleep(seconds)
    with server.lock:  # before the reply: the next request may follow at once
      server.busy -= 1

  def _drip(self):
    """Sends a byte from time to time without end, so that no single read is
    slow.
    """
    self.send_response(200)
    self.end_headers()
    while not self.server.released.wait(0.02):
      self.wfile.write(b' ')
      self.wfile.flush()
