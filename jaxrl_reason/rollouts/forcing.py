"""Budget forcing: bounds on the number of thinking tokens of a completion.

A stop token before `least` tokens is replaced by the words `wait`, and the
policy continues. At `most` tokens the words `final` replace the sampled tokens.
s1, https://arxiv.org/abs/2501.19393. For evaluation and `generate` only: forced
tokens are part of the completion, with log-probability 0, and are never trained
on.
"""

import dataclasses
from collections.abc import Callable, Sized

import jax
import jax.numpy as jnp

NONE = -1


@dataclasses.dataclass(frozen=True)
class Forcing:
  """Tokens that are forced into completions; static, it selects a program.

  Attributes:
    least: number of tokens before which stop tokens are replaced; 0 disables
      it.
    wait: tokens that replace an early stop token.
    most: index of the first token of `final`; 0 disables it.
    final: tokens that are written at index `most`.
  """

  least: int = 0
  wait: tuple[int, ...] = ()
  most: int = 0
  final: tuple[int, ...] = ()

  def __post_init__(self):
    refuse_alone(self.least, self.wait, self.most, self.final)

  def begin(self, n: int) -> jax.Array:
    """Returns the initial state i32 [n] of rows: no token is forced next."""
    return jnp.full(n, NONE, jnp.int32)

  def __call__(self, new: dict, due: jax.Array, t, ends):
    """Replaces the sampled tokens of the rows in which a token is forced.

    Args:
      new: sampled values of rows [S], by name (`draw.Draw`).
      due: i32 [S], index of the next forced token, or NONE.
      t: i32 [], index of these tokens in the completion.
      ends: bool [S], whether the sampled tokens are stop tokens.

    Returns:
      (new, due).
    """
    words = jnp.asarray([*self.wait, *self.final], jnp.int32)
    early = ends & (t < self.least) & (due == NONE)
    due = jnp.where(early, 0, due)
    if self.final:
      due = jnp.where(t == self.most, len(self.wait), due)
    forced = due != NONE
    new = {
      name: jnp.where(forced, words[due] if name == 'tokens' else 0, x)
      for name, x in new.items()
    }
    after = due + 1
    last = (after == len(self.wait)) | (after == len(words))
    return new, jnp.where(forced & ~last, after, NONE)


def make(
  encode: Callable[[str], list[int]],
  max_new: int,
  least: int = 0,
  wait: str = '',
  most: int = 0,
  final: str = '',
) -> Forcing | None:
  """Builds the forcing of completions of max_new tokens, or returns None.

  Args:
    encode: text -> ids, without special tokens.
    least, wait, most, final: see `Forcing`; the words are texts.

  Raises:
    ValueError: the settings do not fit each other or max_new.
  """
  if not (least or wait or most or final):
    return None
  words = (tuple(encode(text)) if text else () for text in (wait, final))
  wait_ids, final_ids = words
  forcing = Forcing(least, wait_ids, most, final_ids)
  refuse_too_long(forcing, max_new)
  return forcing


def refuse_alone(least: int, wait: Sized, most: int, final: Sized) -> None:
  """Checks that each number of tokens comes with words, and the reverse.

  Raises:
    ValueError: names the settings that belong together.
  """
  if bool(least) != bool(wait) or bool(most) != bool(final):
    raise ValueError(
      'budget forcing: a least number of tokens and words to wait by go '
      'together, and so do a most and final words'
    )


def refuse_too_long(forcing: Forcing, max_new: int) -> None:
  """Checks that the forced words fit into a completion.

  Raises:
    ValueError: names the budget.
  """
  for name, n in (
    ('least', forcing.least and forcing.least + len(forcing.wait)),
    ('most', forcing.most and forcing.most + len(forcing.final)),
  ):
    if n >= max_new:
      raise ValueError(
        f'budget forcing: {name} and its words need {n} tokens, and an answer '
        f'after them, of the {max_new} that a completion has'
      )
