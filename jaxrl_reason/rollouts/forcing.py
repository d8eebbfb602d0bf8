"""Budget forcing: how long a completion thinks is decided beforehand.

A stop token before `least` tokens is not taken: the words `wait` stand in its
place, and the policy goes on. At `most` tokens the words `final` are written,
whatever was being said. s1, https://arxiv.org/abs/2501.19393. For evaluation
and `generate`: forced tokens are part of the completion, with log-probability
0, and nothing is trained on.
"""

import dataclasses
from collections.abc import Callable, Sized

import jax
import jax.numpy as jnp

NONE = -1


@dataclasses.dataclass(frozen=True)
class Forcing:
  """What is forced on completions; static, it selects a program.

  Attributes:
    least: tokens before which no stop token is taken; 0: any may be.
    wait: tokens in the place of one that comes earlier.
    most: index of the first of `final`; 0: never.
    final: tokens that are written there.
  """

  least: int = 0
  wait: tuple[int, ...] = ()
  most: int = 0
  final: tuple[int, ...] = ()

  def __post_init__(self):
    refuse_alone(self.least, self.wait, self.most, self.final)

  def begin(self, n: int) -> jax.Array:
    """Gives what rows [n] are to be forced to next: nothing."""
    return jnp.full(n, NONE, jnp.int32)

  def __call__(self, new: dict, due: jax.Array, t, ends):
    """Replaces the tokens of rows where something else is forced.

    Args:
      new: what was drawn of rows [S], by name (`sampler.Draw`).
      due: i32 [S], index into the forced words of the next one; NONE.
      t: i32 [], index in the completion of these tokens.
      ends: bool [S], whether those drawn are stop tokens.

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
  """Makes what is forced on completions of max_new tokens; None: nothing.

  Args:
    encode: text -> ids, as it stands amid others; others: see `Forcing`, the
      words as texts.

  Raises:
    ValueError: what does not go together, or has no room.
  """
  if not (least or wait or most or final):
    return None
  words = (tuple(encode(text)) if text else () for text in (wait, final))
  wait_ids, final_ids = words
  forcing = Forcing(least, wait_ids, most, final_ids)
  refuse_too_long(forcing, max_new)
  return forcing


def refuse_alone(least: int, wait: Sized, most: int, final: Sized) -> None:
  """Refuses a number of tokens without its words, or words without it.

  Raises:
    ValueError: says which go together.
  """
  if bool(least) != bool(wait) or bool(most) != bool(final):
    raise ValueError(
      'budget forcing: a least number of tokens and words to wait by go '
      'together, and so do a most and final words'
    )


def refuse_too_long(forcing: Forcing, max_new: int) -> None:
  """Refuses words that a completion has no room for.

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
