"""A judge that is a second model on the same mesh.

  cases -> template -> prompts [R,P], left-padded -> hidden of the last token
        -> score = p(yes) / (p(yes) + p(no)) = sigmoid(l_yes - l_no)

One compiled pass serves batches of any size, R rows at a time. No reply is
generated or parsed. After "Generative verifiers"
(https://arxiv.org/abs/2408.15240), without a chain of thought.

The prompt is a turn of a user if the tokenizer has a chat template. The text is
encoded as data, so an answer cannot contain a special token that ends the turn.
It has the interface of `verifiers.judges.judge`: alone, in a `judge.Chain`
behind rules, under a `rubric.Rubric`; `judge.Background` gives it that of the
verifier pool.
"""

import dataclasses
import secrets
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding
from jaxrl_reason.base import Model, Params, left_padded
from jaxrl_reason.data.chat import ChatTemplate, encode_after
from jaxrl_reason.verifiers.judges import judge
from jaxrl_reason.verifiers.judges.judge import Case
from jaxrl_reason.verifiers.verdict import Verdict

_MARK = 'x0question0x'  # replaced by the prompt in the chat template
ASK = '\nReply with one word, yes or no: '


@dataclasses.dataclass
class LocalJudge:
  """A Judge: cases to verdicts whose score is the probability of "yes".

  Attributes:
    model: its functions; params: its weights, which may be replaced between
      calls (a policy that judges itself).
    tokenizer: the model's own.
    prompt_len: P, tokens; longer prompts get status 'error', since a cut prompt
      would be another question.
    template: see `judge.fill`; the code around the answer is random, unless
      `fenced` is false (for alphabets without the code's characters).
    chat: the chat template around the prompt; None: that of the tokenizer, if
      it has one.
    yes, no: texts of one token each.
    rows: R, prompts of one pass; a multiple of the mesh's row shards.
    part, max_chars: see `judge.answer_of`.
    min_mass: p(yes) + p(no) below which the verdict is 'error', because the
      model would write another token.
  """

  model: Model
  params: Params
  tokenizer: object
  prompt_len: int
  template: str = judge.CORRECT + ASK
  yes: str = 'yes'
  no: str = 'no'
  rows: int = 32
  part: str = 'answer'
  max_chars: int = 50_000
  fenced: bool = True
  min_mass: float = 0.0
  chat: ChatTemplate | None = None

  def __post_init__(self):
    self._choices = jnp.array([self._token(self.yes), self._token(self.no)])
    self._around = self._turn()
    self._score = jax.jit(self._pass)

  def _token(self, text: str) -> int:
    ids = self.tokenizer.encode(text)
    if len(ids) != 1:
      raise ValueError(
        f'{text!r} is {len(ids)} tokens, a choice must be one: {ids}'
      )
    return ids[0]

  def _turn(self) -> tuple[list[int], list[int]]:
    """Returns the tokens of the chat template before and after a prompt."""
    template = self.chat or getattr(self.tokenizer, 'template', None)
    if template is None:
      return [], []
    turn = [{'role': 'user', 'content': _MARK}]
    text = template.render(turn, enable_thinking=False)
    before, mark, after = text.partition(_MARK)
    if not mark:
      raise ValueError('the chat template does not show the text of a user')
    return self.tokenizer.encode(before), encode_after(self.tokenizer, after)

  def _encoded(self, text: str) -> list[int]:
    """Returns the tokens of a prompt in its turn."""
    before, after = self._around
    # Other tokenizers read no special tokens, and name unknown characters.
    has_special = hasattr(self.tokenizer, 'token_text')
    name = 'encode_data' if has_special else 'encode'
    return [*before, *getattr(self.tokenizer, name)(text), *after]

  def _pass(self, params, tokens, valid, choices):
    """Computes the log-probs [R,2] of yes and no after prompts [R,P]."""
    hidden = self.model.hidden(params, *map(sharding.rows, (tokens, valid)))
    logits = self.model.unembed(params, hidden[:, -1])
    return jax.nn.log_softmax(logits, axis=-1)[:, choices]

  def __call__(self, cases: Sequence[Case]) -> list[Verdict]:
    prepared = [self._prepare(*case) for case in cases]
    rows = [row for row, _ in prepared if not isinstance(row, Verdict)]
    scores = iter(self._logps(rows))
    return [
      row if isinstance(row, Verdict) else self._verdict(next(scores), answer)
      for row, answer in prepared
    ]

  def _prepare(self, completion: str, example: dict):
    """Returns (the prompt's row or a verdict without it, the answer)."""
    answer = judge.answer_of(completion, self.part, self.max_chars)
    if isinstance(answer, Verdict):
      return answer, None
    nonce = secrets.token_hex(8) if self.fenced else ''
    try:
      text = judge.fill(self.template, answer, example, nonce)
      ids = self._encoded(text)
      if len(ids) > self.prompt_len:
        raise ValueError(f'{len(ids)} tokens; prompt_len={self.prompt_len}')
      return left_padded(ids, self.prompt_len), answer
    # A field is missing, a character is unknown, or the prompt is too long.
    except ValueError as e:
      return Verdict(0.0, 'error', answer, f'{type(e).__name__}: {e}'), answer

  def _logps(self, rows: list[dict]) -> np.ndarray:
    """Computes [len(rows), 2] in passes of R rows; the last row fills the
    last.
    """
    out = [np.zeros((0, 2), np.float32)]
    for i in range(0, len(rows), self.rows):
      part = rows[i : i + self.rows]
      full = part + part[-1:] * (self.rows - len(part))
      tokens, valid = (np.stack([r[k] for r in full]) for k in part[0])
      found = self._score(self.params, tokens, valid, self._choices)
      out.append(np.asarray(found)[: len(part)])
    return np.concatenate(out)

  def _verdict(self, logp: np.ndarray, answer: str) -> Verdict:
    yes, no = np.exp(logp.astype(np.float64))
    if not yes + no > self.min_mass:
      why = f'p({self.yes}) + p({self.no}) = {yes + no:.3g}'
      return Verdict(0.0, 'error', answer, why)
    return Verdict(float(yes / (yes + no)), 'parsed', answer)
