"""Limits of the turns of an episode, and its environment."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxrl_reason.envs import env as env_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Limits:
  """Limits of the turns of an episode; static, it selects a program.

  Attributes:
    most: S, the largest number of turns of an episode.
    tokens: M, the largest number of sampled tokens of a turn.
    observation: O, tokens of an observation; longer ones are cut.
    chunk: columns of an observation computed at a time; 0 computes all.
    weight: weight of the environment's rewards.
    stops: i32 [states, V], state of the automaton that recognises stop bytes,
      before and after a token; the last state is a match (`turns.automaton`).
  """

  most: int
  tokens: int
  observation: int
  chunk: int
  weight: float
  stops: np.ndarray

  @property
  def extension(self) -> int:
    """Returns the columns of an extension: the turn's last token and the
    observation, rounded up to chunks.
    """
    n = self.chunk or self.observation + 1
    return -(-(self.observation + 1) // n) * n

  @property
  def players(self) -> int:
    """Returns the number of players of an episode. Each has its own row."""
    return 1

  @property
  def opening(self) -> Callable | None:
    """Returns `Env.opening`."""
    return None

  def columns(self, turns: int) -> int:
    """Returns the cache columns that the opening and this number of turns may
    need.
    """
    first = self.extension if self.opening else 0
    return first + turns * (self.tokens - 1 + self.extension)


@dataclasses.dataclass(frozen=True, eq=False)
class Turns(Limits):
  """Limits and an environment inside the program.

  Attributes:
    env: the environment.
    bytes_of, n_bytes: see `kernels.token_bytes_table`.
    byte_ids: i32 [256], the token of a single byte.
  """

  env: env_lib.Env
  bytes_of: np.ndarray
  n_bytes: np.ndarray
  byte_ids: np.ndarray

  @property
  def players(self) -> int:
    """Returns the number of players of an episode. Each has its own row."""
    return self.env.players

  @property
  def opening(self) -> Callable | None:
    """Returns `Env.opening`."""
    return self.env.opening
