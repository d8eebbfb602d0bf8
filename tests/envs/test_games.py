"""Games: good play wins, observations are those of the worked turns, and the
rules on the host equal the compiled ones.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import envs
from jaxrl_reason.envs import tic_tac_toe, two_players
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import games

# An episode of this game does not begin with a move of the policy, and chance
# decides who wins (`test_kuhn_poker`).
GAMES = sorted(set(tasks.GAMES) - {'kuhn_poker'})


@functools.cache
def functions(name):
  env = alone(name)
  return jax.jit(env.reset), jax.jit(env.step)


def alone(name):
  """Returns the environment of one player."""
  env = envs.ENVS[name]
  return two_players.against(env) if env.players == 2 else env


def played(name, example, turns):
  """Returns [(observation, reward, done, malformed)] until the end."""
  env, (reset, step) = alone(name), functions(name)
  state, out = reset(env.encode(example), jax.random.key(0)), []
  for text in turns:
    data = text.encode()
    row = np.zeros(env.width, np.uint8)
    row[: len(data)] = np.frombuffer(data[: env.width], np.uint8)
    said = step(state, jnp.asarray(row), len(data))
    state = said.state
    reply = bytes(np.asarray(said.observation)[: int(said.length)]).decode()
    flags = bool(said.done), bool(said.malformed)
    out.append((reply, float(said.reward), *flags))
    if said.done:
      break
  return out


def examples(name, n=25, **changes):
  return [tasks.example(name, 0, i, split='train', **changes) for i in range(n)]


@pytest.mark.parametrize('name', GAMES)
@pytest.mark.parametrize('split', tasks.SPLITS)
def test_good_play_wins_with_the_stated_observations(name, split):
  alphabet = set(tasks.get(name).alphabet)
  assert set(envs.ENVS[name].alphabet) <= alphabet
  for i in range(12):
    example = tasks.example(name, 0, i, split=split)
    turns = example['turns']
    said = played(name, example, [own for own, _ in turns])
    assert len(said) == len(turns) and said[-1][2]
    assert [x[0] for x in said[:-1]] == [x for _, x in turns[:-1]]
    assert not any(done or bad for _, _, done, bad in said[:-1])
    gained = sum(x[1] for x in said)
    own = ''.join(own for own, _ in turns)
    assert tasks.check(own, example | {'gained': gained}) == 1
    assert tasks.check(own[1:-2], example | {'gained': 0.5}) == 0
    assert set(example['prompt'] + example['solution']) <= alphabet


@pytest.mark.parametrize('name', sorted(set(GAMES) - {'subtraction'}))
def test_an_invalid_move_is_reported_and_changes_nothing(name):
  example = examples(name, 1)[0]
  good = [own for own, _ in example['turns']]
  wanted = played(name, example, good)
  asks = [';', 'zz;', '\0;', 'x' * 40 + ';', good[0][:-1] + ' ;']
  if name != 'lookup':  # in lookup, a turn without a request ends the episode
    asks += ['', 'z']
  for wrong in asks:
    got = played(name, example, [wrong, *good])
    assert got[0][0] == '?' and got[0][3] and not got[0][2] and not got[0][1]
    assert got[1:] == wanted


def test_tic_tac_toe_follows_the_rules_in_random_games():
  """Compares random games with an independent referee."""
  rng, ends = random.Random(0), set()
  for example in examples('tic_tac_toe', 40):
    board, moves = example['meta']['board'], []
    rewards, over = [], False
    while not over:
      cell = rng.choice([i for i in range(9) if board[i] == '.'])
      moves.append(f'{cell + 1};')
      board = games._put(board, cell, 'X')
      won = any(all(board[int(c)] == 'X' for c in x) for x in games.LINES)
      if not won and '.' in board:
        board = games._put(board, games.opponent(board), 'O')
      lost = any(all(board[int(c)] == 'O' for c in x) for x in games.LINES)
      over = won or lost or '.' not in board
      draw = over and not won and not lost
      rewards.append(1.0 if won else 0.5 if draw else 0.0)
      ends.add((won, lost, draw))
    said = played('tic_tac_toe', example, moves)
    assert [x[1] for x in said] == rewards and said[-1][2]
    assert not any(x[2] for x in said[:-1])
  assert {(True, False, False), (False, True, False)} <= ends


def test_the_opponent_of_tic_tac_toe_is_that_of_its_solutions():
  """Also on boards where one of two winning cells blocks a line too."""
  boards, rng = [], random.Random(0)
  for _ in range(400):
    cells = rng.sample(range(9), rng.randint(1, 8))
    boards.append(
      ''.join('.' if i not in cells else rng.choice('XO') for i in range(9))
    )
  boards = [b for b in boards if '.' in b] + ['..OOOXXX.']
  state = np.array([['.XO'.index(c) for c in b] for b in boards])
  found = jax.jit(jax.vmap(tic_tac_toe._reply))(state)
  assert found.tolist() == [games.opponent(b) for b in boards]


def test_frozen_lake_ends_in_a_hole_and_stops_at_the_edge():
  lake = 'SFFFFHFFFFFFFFFG'
  example = {'meta': {'lake': lake}}
  said = played('frozen_lake', example, ['U;', 'L;', 'D;', 'R;', 'R;'])
  assert [x[0] for x in said] == ['S', 'S', 'F', 'H']
  assert said[-1][1:3] == (0.0, True)


def test_a_wrong_digit_is_refused_and_a_partial_grid_is_not_a_success():
  example = examples('sudoku', 1)[0]
  good = [own for own, _ in example['turns']]
  wrong = good[0][:3] + '1234'[good[0][3] == '1'] + ';'
  said = played('sudoku', example, [wrong, good[0], good[0], *good[1:-1]])
  assert [x[0] for x in said[:3]] == ['-', '+', '?']
  assert 0 < sum(x[1] for x in said) < 0.5 and not said[-1][2]
