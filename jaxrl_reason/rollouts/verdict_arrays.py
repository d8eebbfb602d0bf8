"""Converts verdicts and texts of processes to arrays of the device."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_reason.base import Reward
from jaxrl_reason.envs.env import CUT
from jaxrl_reason.verifiers import compose
from jaxrl_reason.verifiers.verdict import Verdict

# Characters of a text that are tokenized, per token of its limit.
CHARACTERS = 16


@dataclasses.dataclass(frozen=True)
class Writer:
  """Converts an untrusted text to tokens, never to special tokens.

  Attributes:
    encode: text -> ids without special tokens.
    before, after: ids around a text, of a chat template.
    room: limit of all tokens; longer texts are cut and end in `CUT`.
  """

  encode: Callable[[str], list[int]]
  before: tuple[int, ...] = ()
  after: tuple[int, ...] = ()
  room: int = 0

  def __call__(self, text: str) -> tuple[list[int], bool]:
    """Returns (ids, True if the text was cut)."""
    room = self.room - len(self.before) - len(self.after)
    ids = self.encode(text[: CHARACTERS * room])
    cut = len(ids) > room or len(text) > CHARACTERS * room
    if cut:
      mark = self.encode(CUT)[:room]
      ids = ids[: room - len(mark)] + mark
    return [*self.before, *ids, *self.after], cut


def to_reward(
  verdicts: Sequence[Verdict],
  part_names: Sequence[str],
  details: Writer | None = None,
) -> Reward:
  """Converts verdicts to arrays; the row of a failed verifier is invalid,
  not 0.

  Args:
    details: converts messages to at most M = `details.room` tokens; None: the
      result has no messages.
  """
  total, parts, valid = compose.columns(verdicts, part_names)
  return Reward(
    np.asarray(total, np.float32),
    np.asarray(parts, np.float32),
    np.asarray(valid, bool),
    np.asarray([answer_id(v.extracted) for v in verdicts], np.int32),
    None if details is None else _messages(verdicts, details),
  )


def _messages(verdicts: Sequence[Verdict], details: Writer) -> np.ndarray:
  """Returns the tokens of messages, i32 [N,M]. A failed verifier has none: its
  message is about the verifier and not about the completion.
  """
  out = np.full((len(verdicts), details.room), -1, np.int32)
  for row, verdict in zip(out, verdicts):
    ids = details(verdict.detail or '')[0] if verdict.valid else []
    row[: len(ids)] = ids
  return out


def answer_id(answer: object) -> int:
  """Returns a number >= 0 that equal answers share, or -1 without an answer,
  as in `kernels.final.answer_ids`.
  """
  return -1 if answer in (None, '') else zlib.crc32(str(answer).encode()) >> 1
