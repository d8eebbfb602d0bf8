"""Calls a judge on an OpenAI-compatible server (vLLM, SGLang, llama.cpp, ...).

  case -> template with the answer fenced -> cache? -> POST /chat/completions
       -> `judge_reply` -> Verdict

As a reward (in the pool, every worker sends its own requests):

  {'reward': 'judge_http',
   'kwargs': {'url': 'http://localhost:8000/v1', 'model': 'my-judge'}}

With rules before it: 'rules_then_judge', with `rules` among the kwargs.
`HttpJudge` judges batches, with a limit of simultaneous requests. The time
limit of the pool must exceed `deadline_s`; otherwise the pool kills waiting
requests.
"""

import concurrent.futures
import dataclasses
import functools
import json
import os
import secrets
import sqlite3
import urllib.parse
from collections.abc import Callable, Mapping, Sequence

from jaxrl_reason.verifiers import compose, fields
from jaxrl_reason.verifiers.judges import judge, secret
from jaxrl_reason.verifiers.judges.http_retry import (
  MAX_READ,
  Limits,
  PostError,
  post_json,
)
from jaxrl_reason.verifiers.judges.judge import Case
from jaxrl_reason.verifiers.judges.reply import FORMATS, Reply
from jaxrl_reason.verifiers.judges.reply_cache import Cache, key_of
from jaxrl_reason.verifiers.verdict import Verdict


class ReplyError(ValueError):
  """A reply that violates the protocol of the server."""


@dataclasses.dataclass(frozen=True)
class HttpJudge:
  """A Judge: cases to verdicts, `concurrency` requests at a time.

  Attributes:
    url: of the API, such as 'http://localhost:8000/v1', perhaps with a query
      ('?api-version=1'), which every request keeps.
    model: its name on the server.
    template: see `judge.fill`.
    reply: how a reply becomes a score, a name in `judge_reply.FORMATS`.
    scale: lowest and highest mark, for reply='score'.
    part: of the completion, see `fields.final`.
    max_chars: longer answers are not sent; status 'unparsed', score 0.
    params: of the request, over temperature 0 and those of `reply`.
    timeout_s, deadline_s, retries, backoff_s: see `http_retry.Limits`.
    concurrency: simultaneous requests, over all callers.
    cache: file of replies (see `judge_cache`); None: none. Keyed by model,
      prompt and params; only replies that hold a score are kept.
    api_key_env: environment variable with the key; None: no key is sent.
  """

  url: str
  model: str
  template: str = judge.CORRECT
  reply: str = 'yes_no'
  scale: Sequence[float] = (0.0, 10.0)
  part: str = 'answer'
  max_chars: int = 50_000
  params: Mapping = dataclasses.field(default_factory=dict)
  timeout_s: float = 30.0
  deadline_s: float = 120.0
  retries: int = 5
  backoff_s: float = 0.5
  concurrency: int = 8
  cache: str | None = None
  api_key_env: str | None = None

  def __post_init__(self):
    parts = urllib.parse.urlsplit(self.url)
    if parts.scheme not in ('http', 'https') or not parts.hostname:
      raise ValueError(f'url={self.url!r} is not of the form http://host/v1')
    if '@' in parts.netloc or parts.fragment:
      raise ValueError(
        "the judge's url has a user, a password or a #fragment, which are not "
        'sent: remove them, and name the variable of a key by api_key_env'
      )
    if self.reply not in FORMATS:
      raise ValueError(f'reply={self.reply!r}: one of {", ".join(FORMATS)}')
    if self.part not in fields.PARTS:
      raise ValueError(f'part={self.part!r}: one of {", ".join(fields.PARTS)}')
    low, high = self.scale
    if low >= high or self.concurrency < 1:
      raise ValueError(f'{self.scale=} must rise, {self.concurrency=} be >= 1')
    self._key  # noqa: B018  refuse a missing key now, not at the first case

  @functools.cached_property
  def _key(self) -> str | None:
    """Returns the API key. No message contains it, even if it is malformed."""
    if self.api_key_env is None:
      return None
    key = os.environ.get(self.api_key_env, '')
    if not key or not key.isascii() or not key.isprintable():
      raise ValueError(
        f'the environment variable {self.api_key_env} holds no API key '
        '(printable ASCII on one line)'
      )
    return key

  @functools.cached_property
  def _cache(self) -> Cache | None:
    return Cache(self.cache) if self.cache else None

  @functools.cached_property
  def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(self.concurrency, 'judge_http')

  def __call__(self, cases: Sequence[Case]) -> list[Verdict]:
    """Judges a batch; equal prompts are sent once."""
    keys, asked = [], {}
    for completion, example in cases:
      answer = judge.answer_of(completion, self.part, self.max_chars)
      if not isinstance(answer, Verdict):
        answer = self._start(answer, example, asked)
      keys.append(answer)
    return [k if isinstance(k, Verdict) else asked[k].result() for k in keys]

  def _start(self, answer: str, example: dict, asked: dict) -> str | Verdict:
    """Sends one request; returns its key, or a verdict without a request."""
    try:
      content = self._payload(answer, example, nonce='')
    except fields.FieldError as e:
      return Verdict(0.0, 'error', answer, str(e))
    key = key_of(content)
    if key not in asked:
      asked[key] = self._threads.submit(self._ask, key, answer, example)
    return key

  def _payload(self, answer: str, example: dict, nonce: str) -> dict:
    form, (low, high) = FORMATS[self.reply], self.scale
    text = judge.fill(self.template, answer, example, nonce)
    text += '\n' + form.ask.format(low=low, high=high)
    return {
      'model': self.model,
      'messages': [{'role': 'user', 'content': text}],
      'temperature': 0,
      **form.params,
      **self.params,
    }

  def _ask(self, key: str, answer: str, example: dict) -> Verdict:
    try:
      reply = self._known(key) or self._fresh(key, answer, example)
    except PostError as e:
      return Verdict(0.0, e.status, answer, self._hide(str(e)))
    # An invalid reply, or a cache file that is broken, locked or full.
    except (ReplyError, sqlite3.Error) as e:
      why = f'{type(e).__name__}: {e}'
      return Verdict(0.0, 'error', answer, self._hide(why))
    score = self._score(reply)
    if score is None:
      end = self._hide(reply.text[-MAX_READ:])[-200:]
      why = f'no {self.reply} at the end of the reply: {end!r}'
      return Verdict(0.0, 'error', answer, why)
    return Verdict(score, 'parsed', answer)

  def _score(self, reply: Reply) -> float | None:
    return FORMATS[self.reply].read(reply, *self.scale)

  def _known(self, key: str) -> Reply | None:
    found = self._cache.get(key) if self._cache else None
    return Reply(**json.loads(found)) if found else None

  def _fresh(self, key: str, answer: str, example: dict) -> Reply:
    payload = self._payload(answer, example, secrets.token_hex(8))
    headers = {'Connection': 'close'}
    if self._key:
      headers['Authorization'] = f'Bearer {self._key}'
    limits = Limits(
      self.timeout_s, self.deadline_s, self.retries, self.backoff_s
    )
    parts = urllib.parse.urlsplit(self.url)
    path = parts.path.rstrip('/') + '/chat/completions'
    url = urllib.parse.urlunsplit(parts._replace(path=path))
    reply = _reply_of(post_json(url, payload, headers, limits, self._hide))
    if self._cache and self._score(reply) is not None:
      self._cache.put(key, json.dumps(dataclasses.asdict(reply)))
    return reply

  @functools.cached_property
  def _hide(self) -> Callable[[str], str]:
    """Removes the key: some servers repeat the key that they refuse."""
    return secret.remover(self._key) if self._key else str


def _reply_of(data: dict) -> Reply:
  try:
    choice = data['choices'][0]
    text = choice['message']['content'] or ''
    first = None
    if choice.get('logprobs'):
      rows = choice['logprobs']['content'][:1]
      top = rows[0]['top_logprobs'] if rows else ()
      first = [(str(t['token']), float(t['logprob'])) for t in top]
    return Reply(str(text), first)
  except (KeyError, IndexError, TypeError, AttributeError, ValueError) as e:
    why = f'{type(e).__name__} in a reply with the keys {sorted(data)}'
    raise ReplyError(why[:200]) from e


# --- as rewards ---------------------------------------------------------------


def of(settings: Mapping) -> HttpJudge:
  """Returns the judge of these settings, one per process.

  It is per process, because a forked worker has no threads of its parent.
  """
  return _made(os.getpid(), json.dumps(dict(settings), sort_keys=True))


@functools.lru_cache(maxsize=64)
def _made(pid: int, settings: str) -> HttpJudge:
  return HttpJudge(**json.loads(settings))


def reward(completion: str, example: dict, **settings) -> Verdict:
  """Returns the judge's mark; `settings` are those of `HttpJudge`."""
  return of(settings)([(completion, example)])[0]


def after_rules(
  completion: str,
  example: dict,
  *,
  rules: str = 'math',
  undecided: Sequence[str] = ('unparsed',),
  **settings,
) -> Verdict:
  """Calls the reward `rules`, and the judge for cases that `rules` leaves
  open.
  """
  chain = judge.Chain(judge.each(compose.build(rules)), of(settings), undecided)
  return chain([(completion, example)])[0]
