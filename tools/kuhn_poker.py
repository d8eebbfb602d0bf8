"""Prints the expected rewards and the exploitability of a policy in Kuhn poker.

  .venv/bin/python tools/kuhn_poker.py runs/kuhn_poker@100 runs/kuhn_poker

Each MODEL is WORKDIR[@step] of a run of configs/kuhn_poker_tiny.py. The figures
are means over all decks of the --ranks highest ranks. They are computed from
probabilities, without sampling games. --decks also prints a line for each deck.

  optimal  expected reward of the policy as the first player against an optimal
           player; at most -1/18
  random   the same against a player who bets with probability 1/2
  exploit  exploitability: mean reward of the best opponent, who knows the
           policy's probabilities, over both seats; 0 for an optimal policy
  valid    mean probability of the two valid moves together
  bets     probabilities of a bet with the lowest, middle and highest card: as
           the first player, the same after p and b, as the second player after
           p, and after b
"""

import argparse
import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jaxrl_reason as jr
from jaxrl_reason.envs import kuhn_poker
from jaxrl_reason.verifiers.tasks import games

# The moves that a player has read and made, by [seat][after a bet].
SEEN = (('', 'p;b>'), ('p>', 'b>'))
RANDOM = np.full((2, 3), 0.5)


def value(first: np.ndarray, second: np.ndarray) -> float:
  """Returns the expected reward of the first player.

  Args:
    first, second: [2,3], each player's probability of a bet, by [after a bet,
      its card].
  """
  total = 0.0
  for i, j in kuhn_poker.DEALS:
    sign = 1.0 if i > j else -1.0
    calls, called = first[1][i], second[1][j]
    bet = called * 2 * sign + (1 - called)
    raised = calls * 2 * sign - (1 - calls)
    passed = second[0][j] * raised + (1 - second[0][j]) * sign
    total += first[0][i] * bet + (1 - first[0][i]) * passed
  return total / len(kuhn_poker.DEALS)


def exploitability(first: np.ndarray, second: np.ndarray) -> float:
  """Returns the mean expected reward of the best opponents of both players,
  found among all deterministic players.
  """
  pure = np.reshape([*itertools.product((0.0, 1.0), repeat=6)], (-1, 2, 3))
  against_first = max(-value(first, x) for x in pure)
  against_second = max(value(x, second) for x in pure)
  return (against_first + against_second) / 2


def moves_of(model: Any, decks: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the probabilities of a bet among the valid moves, [decks,2,2,3] by
  [seat, after a bet, card], and the probabilities of both valid moves together.
  """
  texts = [
    f'{deck}>{card}>{seen}{move};'
    for deck in decks
    for seat in SEEN
    for seen in seat
    for card in deck
    for move in 'bp'
  ]
  ids = [model.tokenizer.encode(text) for text in texts]
  width = max(map(len, ids))
  tokens = np.int32([[0] * (width - len(x)) + x for x in ids])
  valid = np.array([[False] * (width - len(x)) + [True] * len(x) for x in ids])
  rows, settings = jr.Rows(tokens, valid), jr.Sampling.make()
  score = jax.jit(lambda p: jr.score(model.model, p, rows, settings)[0])
  logp = np.asarray(score(model.params))[:, -2:].sum(axis=1)
  both = np.exp(np.float64(logp)).reshape(len(decks), 2, 2, 3, 2)
  return both[..., 0] / both.sum(axis=-1), both.sum(axis=-1)


def line(name: str, bets: np.ndarray, valid: np.ndarray) -> str:
  """Returns the figures of one policy; bets, valid: [decks,2,2,3]."""
  second = kuhn_poker.OPTIMAL
  each = [
    (value(x[0], second), value(x[0], RANDOM), exploitability(*x)) for x in bets
  ]
  figures = ' '.join(
    f'{x:8.3f}' for x in (*np.mean(each, axis=0), valid.mean())
  )
  means = bets.mean(axis=0).reshape(4, 3)
  shown = '  '.join(' '.join(f'{x:.2f}' for x in row) for row in means)
  return f'{name:28} {figures}   {shown}'


def main(argv: Sequence[str] | None = None) -> None:
  """Prints one line for each model, or for each of its decks."""
  parser = argparse.ArgumentParser('kuhn_poker', description=__doc__)
  parser.add_argument('models', nargs='+', metavar='MODEL')
  parser.add_argument('--ranks', type=int, default=6)
  parser.add_argument('--decks', action='store_true')
  a = parser.parse_args(argv)
  ranks = games.RANKS[-a.ranks :]
  decks = [''.join(x) for x in itertools.combinations(ranks, 3)]
  names = 'optimal random exploit valid'.split()
  print(' ' * 28, ' '.join(f'{x:>8}' for x in names), '  bets')
  for name in a.models:
    bets, valid = moves_of(jr.load(name), decks)
    print(line(name, bets, valid))
    for i, deck in enumerate(decks if a.decks else ()):
      print(line(deck, bets[i : i + 1], valid[i : i + 1]))


if __name__ == '__main__':
  main()
