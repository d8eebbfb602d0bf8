"""Controls a page in a headless Chromium by its debugging protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request

import pytest

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
WAIT_S = 60.0


def binary() -> str:
  """Returns the browser's program, or skips the test."""
  pytest.importorskip('websocket', reason='websocket-client is not installed')
  for name in NAMES:
    if path := shutil.which(name):
      return path
  pytest.skip(f'none of {", ".join(NAMES)} is installed')


class Page:
  """A page that is open.

  Attributes:
    errors: errors in its console and its scripts.
    requests: addresses that the page requested from the network.
  """

  def __init__(self, address: str, size: tuple[int, int] = (1440, 1000)):
    import websocket

    self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    self._process = subprocess.Popen(
      [
        binary(), '--headless=new', '--no-sandbox', '--disable-gpu',
        '--disable-dev-shm-usage', '--no-first-run', '--mute-audio',
        '--remote-debugging-port=0', '--remote-allow-origins=*',
        f'--user-data-dir={self._folder.name}',
        f'--window-size={size[0]},{size[1]}', 'about:blank',
      ],
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    self.errors, self.requests, self._n = [], [], 0
    self._socket = websocket.create_connection(self._target(), timeout=WAIT_S)
    for domain in ('Page', 'Runtime', 'Network', 'Log'):
      self.call(f'{domain}.enable')
    self.call('Page.navigate', url=address)

  def _target(self) -> str:
    """Returns the address of the only tab, when the browser has started."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
      try:
        with open(f'{self._folder.name}/DevToolsActivePort') as f:
          port = f.read().split()[0]
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/json') as r:
          tabs = [t for t in json.load(r) if t['type'] == 'page']
        if tabs:
          return tabs[0]['webSocketDebuggerUrl']
      except (OSError, IndexError):
        pass  # not yet
      time.sleep(0.1)
    raise TimeoutError('the browser did not start')

  def call(self, method: str, **params):
    """Returns the reply of the browser, and records events before it."""
    self._n += 1
    message = {'id': self._n, 'method': method, 'params': params}
    self._socket.send(json.dumps(message))
    while True:
      got = json.loads(self._socket.recv())
      if got.get('id') == self._n:
        assert 'error' not in got, got
        return got['result']
      self._note(got.get('method'), got.get('params', {}))

  def _note(self, method: str, params: dict) -> None:
    if method == 'Runtime.exceptionThrown':
      self.errors.append(params['exceptionDetails'])
    elif method == 'Runtime.consoleAPICalled' and params['type'] == 'error':
      self.errors.append(params['args'])
    elif method == 'Log.entryAdded' and params['entry']['level'] == 'error':
      self.errors.append(params['entry'])
    elif method == 'Network.requestWillBeSent':
      self.requests.append(params['request']['url'])

  def js(self, expression: str):
    """Returns the awaited value of an expression."""
    got = self.call(
      'Runtime.evaluate',
      expression=expression,
      awaitPromise=True,
      returnByValue=True,
    )
    assert 'exceptionDetails' not in got, got['exceptionDetails']
    return got['result'].get('value')

  def until(self, condition: str, seconds: float = WAIT_S) -> None:
    """Waits until an expression is true."""
    deadline = time.monotonic() + seconds
    while not self.js(condition):
      assert time.monotonic() < deadline, f'{condition} never held'
      time.sleep(0.05)

  def picture(self) -> bytes:
    """Returns the visible part of the page as a PNG file."""
    return base64.b64decode(self.call('Page.captureScreenshot')['data'])

  def close(self) -> None:
    self._socket.close()
    self._process.kill()
    self._process.wait()
    self._folder.cleanup()
