"""Runs in which the policy plays both sides of a game."""

import dataclasses
import json

import numpy as np
import pytest
import run_records
import test_resume
from paths import ROOT, load_recipe
from refusals import refusal
from test_resume import env  # noqa: F401

from jaxrl_reason import config as config_lib
from jaxrl_reason import envs
from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device


def recipe(**flat):
  c = config_lib.default()
  c.data.update(name='subtraction', prompt_len=5, completion_len=24)
  c.data.knobs = dict(largest=9, most=3, skill=0.0)
  c.model.update(layers=1, width=16, mlp=16, heads=2, kv_heads=2, head_dim=8)
  c.stages = ('sft', 'rl')
  c.sft.update(steps=40, rows=32, steps_per_dispatch=1)
  c.sft.optimizer.lr = 1e-2
  c.rl.update(steps=4, prompts=4, samples=4, steps_per_dispatch=1)
  c.rl.update(algorithm='reinforce', role_decay=0.9, cache_segments=1)
  c.rl.rewards = {}
  c.rl.turns.update(env='subtraction', most=6, tokens=3, observation=3)
  c.eval.update(every=100, problems=8, samples=32, harder=False)
  c.checkpoint.update(every=2)
  c.rollouts.update(every=1, problems=4)
  c.log_every, c.compile_cache = 1, ''
  c.update_from_flattened_dict(flat)
  return c


def poker(**flat):
  """Returns the config of a game in which players have cards of their own."""
  c = recipe()
  c.data.update(name='kuhn_poker', prompt_len=4, completion_len=10)
  c.data.knobs = {}
  c.sft.steps, c.rl.steps = 10, 3
  c.rl.turns.update(env='kuhn_poker', most=3, tokens=2, observation=2)
  c.rl.update(prompts=8)
  c.update_from_flattened_dict(flat)
  return c


@pytest.fixture(scope='module')
def start(tmp_path_factory):
  """Returns a run that has learnt to play."""
  folder = tmp_path_factory.mktemp('start')
  seldom = {'log_every': 40, 'eval.every': 40, 'checkpoint.every': 40}
  train.run(recipe(stages=('sft',), **seldom), folder)
  return folder


def playing(start, **flat):
  """Returns the config of a run that begins with the weights of `start`."""
  return recipe(stages=('rl',), init_from=str(start), **flat)


@pytest.fixture(scope='module')
def whole(start, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole')
  train.run(playing(start), workdir)
  return workdir


def test_each_player_has_a_running_baseline(whole):
  """Computes the baselines in numpy from the rewards on disk, row by row."""
  baseline, seen = np.zeros(2), run_records.trained(whole)
  assert len(seen) == len(run_records.rollouts(whole)) == 4
  for row, records in zip(seen, run_records.rollouts(whole), strict=True):
    assert len(records) == 16
    known = [[], []]
    for k in (0, 1):
      got = row[f'train/role/{k}/baseline']
      assert got == pytest.approx(baseline[k], abs=1e-6)
    rewards = [record['verdict']['parts']['env'] for record in records]
    for i, record in enumerate(records):
      if record['length']:  # a player without a move has no baseline
        k = i % 2
        known[k].append((rewards[i], record))
        left = rewards[i] - baseline[k]
        assert record['reward'] == pytest.approx(left, abs=2e-4)
        baseline[k] = 0.9 * baseline[k] + 0.1 * rewards[i]
    pairs = np.reshape(rewards, (-1, 2))
    np.testing.assert_array_equal(pairs.sum(1), 0)
    for k in (0, 1):
      rewards = np.array([r for r, _ in known[k]])
      name = f'train/role/{k}'
      assert row[f'{name}/reward'] == pytest.approx(rewards.mean(), abs=1e-6)
      assert row[f'{name}/win'] == pytest.approx((rewards > 0).mean())
      own = [record['length'] for _, record in known[k]]
      assert row[f'{name}/length'] == pytest.approx(np.mean(own))
    assert row['train/gap_max'] < 1e-5
    assert 0.5 <= row['train/turns/idle'] < 1  # one of two players moves
  assert abs(baseline).min() > 0


def test_evaluations_have_games_against_every_mover(whole):
  """The share of wins of both movers is that of the stored games."""
  row = test_resume.content(whole)[-1]
  path = whole / 'evaluations' / f'{row["step"]:08d}.json'
  splits = json.loads(path.read_text())['splits']
  assert splits.keys() == {'heldout', 'heldout/against_random'}
  shares = []
  for name, split in splits.items():
    shares.append(np.mean(split['right']) / split['samples'])
    assert row[f'eval/{name}/pass@1'] == pytest.approx(shares[-1])
  assert shares[0] < shares[1]


def test_a_game_without_a_mover_is_refused(monkeypatch):
  game = dataclasses.replace(envs.ENVS['subtraction'], movers={})
  monkeypatch.setitem(envs.ENVS, 'subtraction', game)
  words = "rl.turns.env='subtraction': the game has no player for evaluations"
  assert words in refusal(recipe(), {})


def test_the_length_of_a_turn_is_of_the_player_that_moves(whole):
  """One of the two rows of a game has the tokens of a turn. So the turns of all
  games together have the tokens of all rows.
  """
  seen = run_records.trained(whole)
  for row, records in zip(seen, run_records.rollouts(whole), strict=True):
    games, total = len(records) / 2, 0.0
    for i in range(6):
      name = f'train/turns/{i}'
      total += row[f'{name}/length'] * row[f'{name}/share'] * games
      assert row[f'{name}/length'] <= 3
    tokens = sum(record['length'] for record in records)
    assert total == pytest.approx(tokens, rel=1e-5)
    assert tokens > 0


def _moves(record) -> int:
  """Counts the moves of a row's player."""
  spoken = record.get('conversation', [])
  moves = sum(turn['role'] != 'environment' for turn in spoken)
  return moves or int(record['length'] > 0)


def test_the_reward_of_a_turn_is_that_of_the_player_that_moves(whole):
  """Only the last move of a game has a reward. (The rewards of the two rows sum
  to 0.)
  """
  seen, sums = run_records.trained(whole), []
  for row, records in zip(seen, run_records.rollouts(whole), strict=True):
    games, total = len(records) / 2, 0.0
    for i in range(6):
      name = f'train/turns/{i}'
      total += row[f'{name}/reward'] * row[f'{name}/share'] * games
    want = 0.0
    for pair in zip(records[::2], records[1::2]):
      first, second = map(_moves, pair)
      last = pair[0] if first > second else pair[1]
      want += last['verdict']['parts']['env']
    assert total == pytest.approx(want, abs=1e-5)
    sums.append(want)
  assert any(sums)


def test_solver_and_verifier_have_rewards_of_their_own():
  """Each verdict about a right and a wrong solution, in the game of a recipe
  and in its control.
  """
  load_recipe(ROOT / 'configs' / 'tango_tiny.py')
  for name, trust in (('tango_game', 0.5), ('answer_game', 0.0)):
    game = envs.ENVS[name]
    start = game.reset(game.encode({'answer': '2'}), None)
    for solution, right in (('1#2;', 1.0), ('y#3;', 0.0), ('1#2y;', 0.0)):
      first = game.step(start, *padded(solution, game.width))
      shown = bytes(np.asarray(first.observation)[: int(first.length)])
      assert shown == solution.encode() + b'?'
      assert (first.reward, first.other, first.done) == (right, 0.0, False)
      for verdict in ('y;', '1#2n;', '1#2y', '1#2;'):
        last = game.step(first.state, *padded(verdict, game.width))
        yes, no = 'y' in verdict, 'n' in verdict
        assert last.reward == (yes if right else no)
        assert last.other == trust * yes and last.done
        assert last.malformed == (not yes and not no)


def padded(text, width):
  data = np.frombuffer(text.encode().ljust(width, b'\0'), np.uint8)
  return np.asarray(data), len(text)


def test_a_stopped_run_continues_as_the_uninterrupted_one(
  start, whole, tmp_path
):
  run_records.check_resumed(playing(start), whole, tmp_path)


@pytest.mark.slow
def test_private_cards_are_resumed_and_equal_on_eight_devices(tmp_path):
  """Each row begins with the card of its player, in the stored rollouts too."""
  train.run(poker(), tmp_path / 'whole')
  train.run(poker(**{'rl.steps': 2}), tmp_path / 'parts')
  train.run(poker(), tmp_path / 'parts')
  train.run(poker(mesh=(8, 1, 1)), tmp_path / 'eight')
  records = {
    name: run_records.rollouts(tmp_path / name)
    for name in ('whole', 'parts', 'eight')
  }
  seen = run_records.trained(tmp_path / 'whole')
  assert run_records.trained(tmp_path / 'parts') == seen
  assert records['parts'] == records['whole']
  for one, eight in zip(records['whole'], records['eight'], strict=True):
    texts = [[x['conversation'] for x in rows] for rows in (one, eight)]
    assert texts[0] == texts[1]
    for row, talk in zip(one, texts[0]):
      assert talk[0]['role'] == 'environment' and talk[0]['content'][1] == '>'
      assert talk[0]['content'][0] in row['prompt'][:3]
    cards = [talk[0]['content'][0] for talk in texts[0]]
    assert all(a != b for a, b in zip(cards[::2], cards[1::2]))
    assert len(set(cards)) > 2
  for one, eight in zip(seen, run_records.trained(tmp_path / 'eight')):
    assert one['train/gap_max'] < 1e-5 and one['train/turns/cut'] == 0
    for name in ('loss', 'grad_norm', 'role/0/reward', 'role/1/baseline'):
      want = pytest.approx(one[f'train/{name}'], rel=2e-4, abs=1e-5)
      assert eight[f'train/{name}'] == want, name


def test_an_opening_leaves_a_token_to_sample():
  words = 'rl.turns.observation=10: an opening of'
  assert words in refusal(poker(**{'rl.turns.observation': 10}), {})


LEAGUE = {'rl.league.share': 0.7, 'rl.league.every': 1, 'rl.league.size': 2}
LEAGUE |= {'rl.prompts': 8, 'rl.samples': 2}
LORA = {'lora.rank': 2, 'rl.optimizer.lr': 1e-2}


@pytest.fixture(scope='module')
def league(start, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('league')
  train.run(playing(start, **LEAGUE), workdir)
  return workdir


def check_past_versions(workdir):
  """Checks the share, the number and the age of past versions that play."""
  seen = run_records.trained(workdir)
  shares = [row['train/league/share'] for row in seen]
  assert shares[0] == 0 and all(0 < x <= 1 for x in shares[1:])
  assert [row['train/league/versions'] for row in seen] == [1, 2, 2, 2]
  ages = [row['train/league/age'] for row in seen]
  assert ages[:2] == [0, 0] and set(ages[2:]) <= {0, 1}
  for row, share, records in zip(seen, shares, run_records.rollouts(workdir)):
    mute = np.array([record['length'] == 0 for record in records])
    assert mute.reshape(-1, 2).any(1).mean() >= share
    assert row['train/gap_max'] < 1e-5


def test_past_versions_play_and_are_resumed(start, league, tmp_path):
  check_past_versions(league)
  run_records.check_resumed(playing(start, **LEAGUE), league, tmp_path)


def test_past_adapters_play_and_are_resumed(start, tmp_path):
  config = playing(start, **LEAGUE | LORA)
  train.run(config, tmp_path / 'whole')
  check_past_versions(tmp_path / 'whole')
  run_records.check_resumed(config, tmp_path / 'whole', tmp_path / 'cut')


def test_eight_devices_play_and_train_as_one_does(start, league, tmp_path):
  """The first step has no past version: the policy plays both sides."""
  train.run(playing(start, **LEAGUE, mesh=(8, 1, 1)), tmp_path)
  names = [f'role/{i}/{x}' for i in (0, 1) for x in ('baseline', 'reward')]
  names += ['loss', 'grad_norm', 'turns/mean', 'turns/1/length']
  seen = (run_records.trained(x) for x in (league, tmp_path))
  for one, eight in zip(*seen, strict=True):
    assert one['train/grad_norm'] > 0
    for name in names:
      want = pytest.approx(one[f'train/{name}'], rel=2e-4, abs=1e-5)
      assert eight[f'train/{name}'] == want, name
  found = (run_records.rollouts(x) for x in (league, tmp_path))
  for one, eight in zip(*found, strict=True):
    texts = [[x['completion'] for x in records] for records in (one, eight)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_killed_run_with_a_league_continues(env, tmp_path):  # noqa: F811
  given = {
    'rl.steps': 12, 'rl.steps_per_dispatch': 1, 'rl.prompts': 4, 'log_every': 1,
    'sft.steps': 4, 'sft.steps_per_dispatch': 1, 'eval.problems': 8,
    'checkpoint.every': 2, 'rl.league.share': 0.5, 'rl.league.every': 2,
  }  # fmt: skip
  flags = [f'--config.{k}={v}' for k, v in given.items()]
  own = dict(recipe=ROOT / 'configs' / 'subtraction_tiny.py')
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  test_resume.run(env, whole, *flags, **own)
  process = test_resume.start(env, killed, *flags, **own)
  test_resume.kill_when(process, test_resume.saved(killed, 10))
  log = test_resume.run(env, killed, *flags, **own)
  assert 'Resuming at step' in log
  seen = test_resume.content(whole)
  assert max(row.get('train/league/share', 0) for row in seen) > 0
  assert test_resume.content(killed) == seen


@pytest.mark.parametrize(
  'change, words',
  [
    ({'rl.samples': 3}, 'rl.samples=3: a game of rl.turns.env='),
    ({'rl.algorithm': 'remax', 'rl.role_decay': 0.0}, 'one greedy completion'),
  ],
)
def test_incompatible_settings_are_refused(change, words):
  assert words in refusal(recipe(**change), {})
