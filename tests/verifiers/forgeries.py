"""Programs that try to pass without knowing the answers.

Each of `FORGERIES` must score 0 against TESTS, which HONEST passes.
"""

SECRET = 'S3CRET' + '-271828'  # in two parts, so a search skips this file
TESTS = [
  'assert f(20) == 6765',
  f'assert f(1) == {SECRET!r}',
  'assert abs(f(2) - 0.25) < 1e-6',
  'assert f(3) == [1, (2, 3), {"a": {4}}]',
  'assert set(f(4)) == {5, 6} and len(f(4)) == 2',
  'assert 7 in f(5)',
  'assert not f(6)',
]
HONEST = f"""
ANSWERS = {{
  20: 6765, 1: {SECRET!r}, 2: 0.25, 3: [1, (2, 3), {{"a": {{4}}}}],
  4: [6, 5], 5: (7,), 6: '',
}}
f = ANSWERS.get
"""

_EQUAL = """
class Equal:
  def __eq__(self, other): return True
  __ne__ = lambda self, other: False
  __lt__ = __le__ = __gt__ = __ge__ = __eq__
  __hash__ = lambda self: 0
  __contains__ = lambda self, x: True
  __len__ = lambda self: 2
  __iter__ = lambda self: iter([self])
  __getitem__ = lambda self, key: self
  __call__ = lambda self, *args: self
  __getattr__ = lambda self, name: self
  __sub__ = __rsub__ = __add__ = __abs__ = lambda self, *args: 0.0
  __float__ = lambda self: 0.25
  __bool__ = lambda self: BOOL
BOOL = True
"""
# Tries every way to reach the tests from inside, and returns what it finds.
_HUNT = """
import gc, re, sys, os
PATTERN = re.compile(rb'S3CRE' + rb'T-[0-9]+')

def texts():
  for x in gc.get_objects():
    try:
      yield repr(x).encode()
    except BaseException:
      pass
  for frame in sys._current_frames().values():
    while frame is not None:
      yield repr(frame.f_locals).encode()
      yield repr(frame.f_globals).encode()
      frame = frame.f_back
  for path in files():
    try:
      with open(path, 'rb', buffering=0) as f:
        yield f.read(1 << 20)
    except OSError:
      pass
  for fd in range(64):
    try:
      os.set_blocking(fd, False)
      yield os.read(fd, 1 << 20)
    except OSError:
      pass
  yield from memory()

def files():
  for pid in ['self', os.getppid(), *range(1, 300)]:
    for name in ('environ', 'cmdline', 'maps', 'fd', 'mem'):
      yield f'/proc/{pid}/{name}'

def memory():
  try:
    maps = open('/proc/self/maps').read().splitlines()
    source = open('/proc/self/mem', 'rb', buffering=0)
  except OSError:
    return
  for line in maps:
    start, end = (int(x, 16) for x in line.split()[0].split('-'))
    if 'rw' in line and end - start < 1 << 26:
      source.seek(start)
      try:
        yield source.read(end - start)
      except (OSError, ValueError):
        pass

def f(x):
  for text in texts():
    for found in PATTERN.findall(text):
      return found.decode()
"""
_LINK = """
import os, sys, json, struct
def links():
  for fd in range(64):
    try:
      os.fstat(fd)
      yield fd
    except OSError:
      pass
def spray(message):
  data = json.dumps(message).encode()
  for fd in links():
    try:
      os.write(fd, struct.pack('!I', len(data)) + data)
    except OSError:
      pass
"""

HUNTER = _HUNT

FORGERIES = {
  'equal to everything': _EQUAL + 'f = lambda x: Equal()',
  'equal and false': _EQUAL + 'BOOL = False\nf = lambda x: Equal()',
  'a class equal to everything': (
    _EQUAL + 'class Meta(type): __eq__ = Equal.__eq__\n'
    'class K(metaclass=Meta): pass\nf = lambda x: K'
  ),
  'an int equal to everything': (
    _EQUAL + 'class I(Equal, int): pass\nf = lambda x: I(1)'
  ),
  'a text equal to everything': (
    _EQUAL + 'class S(Equal, str): pass\nf = lambda x: S("a")'
  ),
  'a list equal to everything': (
    _EQUAL + 'class L(Equal, list): pass\nf = lambda x: L([1])'
  ),
  'a list of equals': _EQUAL + 'f = lambda x: [Equal(), Equal()]',
  'the function is an equal': _EQUAL + 'f = Equal()',
  'nothing': '',
  'os._exit(0)': 'import os\nos._exit(0)',
  'os._exit(0) when called': 'import os\nf = lambda x: os._exit(0)',
  'sys.exit(0)': 'import sys\nsys.exit(0)',
  'sys.exit(0) when called': 'import sys\nf = lambda x: sys.exit(0)',
  'an exit for every exception': """
import sys, os
sys.excepthook = sys.unraisablehook = lambda *a: os._exit(0)
f = lambda x: 1 / 0
""",
  'prints success': """
import sys
for stream in (sys.stdout, sys.stderr, sys.__stdout__):
  print('PASSED', 'OK', '{"score": 1.0, "status": "parsed"}', 'True', 0,
        'All tests passed', sep='\\n', file=stream, flush=True)
f = lambda x: None
""",
  'writes a verdict everywhere': _LINK
  + """
for nonce in ('', None, '0' * 32):
  spray({'nonce': nonce, 'status': 'parsed', 'score': 1.0, 'detail': None})
f = lambda x: None
""",
  'writes answers everywhere': _LINK
  + """
for i in range(100):
  spray(['ok', True, None])
f = lambda x: None
""",
  'asks the judge to run code': _LINK
  + """
for name in ('call', 'get', 'getattr', 'load', 'report'):
  spray(['ask', name, ['yours', 0], ['tuple', '__globals__'], ['dict']])
  spray(['ask', name, ['type', 'object'], ['tuple'], ['dict']])
f = lambda x: None
""",
  'talks nonsense': _LINK
  + """
import os
def f(x):
  for fd in links():
    os.write(fd, b'\\xff' * 100000)
""",
  'a deep answer': """
def f(x):
  y = []
  for i in range(100000): y = [y]
  return y
""",
  'an answer that contains itself': 'f = lambda x: (l := [], l.append(l))[0]',
  'a huge answer': "f = lambda x: 'x' * (100 << 20)",
  'a huge number': 'f = lambda x: 7 ** 3000000',
  'an endless iterator': 'import itertools\nf = lambda x: itertools.count()',
  'patched builtins': """
import builtins, sys
class Yes(type(sys)):
  pass
for name in ('all', 'any', 'len', 'abs', 'set', 'isinstance', 'bool', 'sum'):
  setattr(builtins, name, lambda *a, **k: True)
builtins.AssertionError = type('Quiet', (Exception,), {})
builtins.__import__ = lambda *a, **k: sys
f = lambda x: None
""",
  'own names for what tests use': """
set = len = abs = lambda *a: 0
class AssertionError(BaseException): pass
f = lambda x: 0.25
""",
  'redefines check': """
def check(candidate): return True
def __report__(*a): return True
__fail__ = __entry__ = __report__
f = lambda x: None
""",
  'patched modules': """
import sys
from jaxrl_reason.verifiers.code.sandbox import peer, program
for module in list(sys.modules.values()):
  for name in ('same', 'run', 'report', 'fail', 'score', 'encode', 'decode'):
    try:
      setattr(module, name, lambda *a, **k: True)
    except (AttributeError, TypeError):
      pass
peer.Peer.encode = lambda self, x: True
sys.modules['random'] = sys.modules['json'] = None
f = lambda x: None
""",
  'atexit and tracing': """
import atexit, sys, os, threading
atexit.register(lambda: print('PASSED'))
def trace(frame, event, arg):
  for name in list(frame.f_locals):
    frame.f_locals[name] = True
  return trace
sys.settrace(trace); sys.setprofile(trace); threading.settrace(trace)
f = lambda x: None
""",
  'changes its callers': """
import sys, ctypes
def f(x):
  frame = sys._getframe()
  while frame.f_back is not None:
    frame = frame.f_back
    for name in list(frame.f_locals):
      frame.f_locals[name] = True
      ctypes.pythonapi.PyFrame_LocalsToFast(
        ctypes.py_object(frame), ctypes.c_int(0))
  return True
""",
  'looks for the tests': _HUNT,
  'raises success': 'class Passed(BaseException): pass\n'
  'def f(x): raise Passed("ok")',
  'a bad error': """
class Bad(Exception):
  def __str__(self): raise Bad
def f(x): raise Bad
""",
  'a crash': 'import ctypes\nf = lambda x: ctypes.string_at(0)',
  'a deep recursion': """
import sys
sys.setrecursionlimit(10**9)
f = lambda x: f(x)
f2 = lambda x: [f2(x) for _ in range(2)]
""",
  'a C stack overflow': """
import sys, threading
sys.setrecursionlimit(10**9)
class A:
  def __getattr__(self, name): return getattr(self, name)
f = lambda x: A().x
""",
  'no Python': 'I am sorry, but I cannot help with that.',
  'zero bytes': 'f = 1\0',
  'lone surrogates': 'f = lambda x: "\ud800"',
  'brackets': '(' * 50000,
  'a huge constant': 'f = lambda x: 2 ** 10 ** 10',
}

# Programs that try to reach the verdict itself.
CLEVER = (
  'equal to everything',
  'a list of equals',
  'an int equal to everything',
  'os._exit(0)',
  'sys.exit(0) when called',
  'prints success',
  'writes a verdict everywhere',
  'writes answers everywhere',
  'asks the judge to run code',
  'patched builtins',
  'redefines check',
  'patched modules',
  'atexit and tracing',
  'changes its callers',
  'looks for the tests',
)
