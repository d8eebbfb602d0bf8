"""Verifiers inside the compiled step: completion bytes -> 1.0 or 0.0.

  kernel = KERNELS['integer']
  answer = kernel.encode(example)                    host: one example
  score = kernel.score(text, length, answer)         device: N rows at once
    text u8[N,W], length i32[N], answer: the encoded arrays stacked to [N,...]

Each kernel gives the verdict of its host twin (named in its docstring) for any
bytes at all, with one limit: a completion longer than W bytes scores 0.
"""

import dataclasses
from collections.abc import Callable

from jaxrl_reason.rewards.kernels import countdown, final, subsequence
from jaxrl_reason.rewards.kernels.token_bytes import (
  to_bytes,
  token_bytes_table,
)

__all__ = ['KERNELS', 'Kernel', 'to_bytes', 'token_bytes_table']


@dataclasses.dataclass(frozen=True)
class Kernel:
  """score(text, length, answer) -> f32[N]; encode(example, **sizes) -> dict of
  arrays whose shapes depend on the sizes alone."""

  score: Callable
  encode: Callable


KERNELS: dict[str, Kernel] = {
  'integer': Kernel(final.score_integer, final.encode_integer),
  'text': Kernel(final.score_text, final.encode_text),
  'countdown': Kernel(countdown.score, countdown.encode),
  'subsequence': Kernel(subsequence.score, subsequence.encode),
  'format': Kernel(final.score_format, final.encode_format),
}
