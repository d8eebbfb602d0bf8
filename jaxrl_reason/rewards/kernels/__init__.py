"""Verifiers inside the compiled step: completion bytes -> 1.0 or 0.0.

  kernel = KERNELS['integer']
  answer = kernel.encode(example)                    host: one example
  score = kernel.score(text, length, answer)         device: N rows at once
    text u8[N,W], length i32[N], answer: the encoded arrays stacked to [N,...]

Each kernel returns the verdict of its host twin (named in its docstring) for
all bytes, with one limit: a completion longer than W bytes scores 0.

Kernels with `reads` read views of the step: the policy's probabilities, the
groups, noise. They have no host twin, and are called
`score(text, length, answer, views)`; see `rollouts.views`.
"""

import dataclasses
from collections.abc import Callable

from jaxrl_reason.rewards.kernels import (
  asked,
  countdown,
  final,
  label_free,
  novelty,
  reference,
  stated,
)
from jaxrl_reason.rewards.kernels.token_bytes import to_bytes, token_bytes_table

__all__ = ['KERNELS', 'Kernel', 'to_bytes', 'token_bytes_table']


@dataclasses.dataclass(frozen=True)
class Kernel:
  """score(text, length, answer) -> f32[N]; encode(example, **sizes) -> dict of
  arrays whose shapes depend on the sizes alone; reads: names of views; knobs:
  keyword arguments of score that a config may set."""

  score: Callable
  encode: Callable
  reads: tuple[str, ...] = ()
  knobs: tuple[str, ...] = ()


def _no_answer(example):
  return {}


def _free(score, *reads, knobs=()):
  return Kernel(score, _no_answer, reads, knobs)


def _view(name):
  """Returns the kernel whose score is a view."""
  return _free(lambda text, length, answer, views: views[name], name)


KERNELS: dict[str, Kernel] = {
  'integer': Kernel(final.score_integer, final.encode_integer),
  'text': Kernel(final.score_text, final.encode_text),
  'countdown': Kernel(countdown.score, countdown.encode),
  'format': Kernel(final.score_format, final.encode_format),
  'self_certainty': _free(label_free.self_certainty, 'uniform_kl'),
  'neg_entropy': _free(label_free.neg_entropy, 'entropy'),
  'seq_logp': _free(label_free.seq_logp, 'logp'),
  'mean_logp': _free(label_free.mean_logp, 'logp'),
  'majority': _free(label_free.majority, 'group'),
  'cluster_share': _free(label_free.cluster_share, 'group'),
  'wrong_label': Kernel(label_free.wrong_label, final.encode_text, ('group',)),
  'reward_model': _view('reward_model'),
  asked.NAME: _free(asked.score, asked.NAME, knobs=asked.Question._fields),
  'novelty_neighbours': _free(novelty.neighbours, 'hidden', knobs=('k',)),
  'novelty_volume': _free(novelty.volume, 'hidden', knobs=('ridge',)),
  'random': _free(label_free.random, 'uniform', knobs=('p',)),
  'reference_prob': _free(reference.seq_prob, 'reference'),
  'reference_mean_prob': _free(reference.mean_prob, 'reference'),
  'reference_gain': _free(reference.gain, 'reference', 'direct'),
  'reference_logp': _free(reference.seq_logp, 'reference', knobs=('floor',)),
  'reference_group_logp': _free(
    reference.group_logp, 'reference', 'group', knobs=('floor',)
  ),
  'reference_mean_logp': _free(
    reference.mean_logp, 'reference', knobs=('floor',)
  ),
}
# Scores of (text, length, answer, whether the answer is correct), for kernels
# that call the verifier of the answer; see `device`.
OF_CONFIDENCE = {'brier': stated.brier, 'calibrated': stated.calibrated}
