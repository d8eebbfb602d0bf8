"""Rollouts on disk belong to the step of the metrics."""

import numpy as np
import object_store
import pytest
import tiny_recipe
from etils import epath

from jaxrl_reason.reports import metrics_file
from jaxrl_reason.run import train
from jaxrl_reason.run.records import events, rollout_files
from jaxrl_reason.verifiers import records
from jaxrl_reason.verifiers.verdict import Verdict

ROWS, WARM = 32, 60  # rows of a batch; supervised steps for correct answers


def recipe(**changes):
  """Returns a recipe with one update per batch, every step logged, on eight
  devices.
  """
  c = tiny_recipe.get_config()
  c.stages, c.mesh = ('sft', 'rl'), (4, 1, 2)
  c.sft.update(steps=WARM, steps_per_dispatch=1)
  c.rl.update(prompts=8, steps=3, epochs=1, minibatches=1, steps_per_dispatch=1)
  c.rl.optimizer.lr = 3e-2
  c.eval.update(every=60, problems=2, samples=1)
  c.checkpoint.update(every=60)
  c.log_every = 1
  c.rollouts.update(every=1, problems=99)
  c.rl.update(changes)
  return c


def read(workdir):
  """Returns {step: records} of a run."""
  found = sorted((epath.Path(workdir) / 'rollouts').glob('*.jsonl'))
  return {int(p.stem): [row for _, row in records.read(p)] for p in found}


@pytest.fixture(scope='module', params=['fused', 'host'])
def kept(request, tmp_path_factory):
  """Returns (records by step, rows of metrics) of three steps, with all
  rows.
  """
  workdir = tmp_path_factory.mktemp(request.param)
  train.run(recipe(path=request.param), workdir)
  rows = [r for r in metrics_file.read(workdir) if 'train/loss' in r]
  return read(workdir), rows


def test_rollouts_are_of_the_step_whose_metrics_they_explain(kept):
  found, told = kept
  assert list(found) == [WARM + 1, WARM + 2, WARM + 3] and all(
    len(r) == ROWS for r in found.values()
  )
  for row in told[WARM:]:
    rows = found[row['step']]
    assert {r['step'] for r in rows} == {row['step']}

    def mean(values):
      return pytest.approx(np.mean(values), abs=1e-4)

    assert row['train/reward_mean'] == mean([r['reward'] for r in rows])
    assert row['train/length_mean'] == mean([r['length'] for r in rows])
    assert row['train/truncated'] == mean([r['truncated'] for r in rows])
    entropies = [x for r in rows for x in r['tokens']['entropy']]
    assert row['train/entropy'] == mean(entropies)
    sizes = [abs(r['advantage']) for r in rows for _ in r['tokens']['text']]
    assert row['train/advantage_max'] == pytest.approx(max(sizes), abs=1e-4)
    rms = np.sqrt(np.mean(np.square(sizes)))
    assert row['train/advantage_rms'] == pytest.approx(rms, abs=1e-3)
    for right, name in ((1.0, 'right'), (0.0, 'wrong')):
      own = [r['length'] for r in rows if r['reward'] == right]
      assert row[f'train/length_{name}'] == mean(own)
    logps = [x for r in rows for x in r['tokens']['logp']]
    assert row['train/nll'] == mean([-x for x in logps])


def test_every_token_is_in_the_rollouts(kept):
  for rows in kept[0].values():
    for row in rows:
      lists = row['tokens']
      assert {len(x) for x in lists.values()} == {row['length']}
      assert ''.join(lists['text']) == row['completion']
      assert row['logp'] == pytest.approx(sum(lists['logp']), abs=1e-2)
      # One update a batch: what is trained is what was sampled from.
      assert lists['ratio'] == [pytest.approx(1.0, abs=1e-3)] * row['length']


def test_advantages_are_those_of_the_groups(kept):
  some = 0
  for rows in kept[0].values():
    for number in {r['problem'] for r in rows}:
      group = [r for r in rows if r['problem'] == number]
      assert [r['sample'] for r in group] == [0, 1, 2, 3]
      mean = np.mean([r['reward'] for r in group])
      for row in group:
        assert np.sign(row['advantage']) == np.sign(row['reward'] - mean)
      some += any(r['advantage'] for r in group)
  assert some  # not all groups are alike


def test_verdicts_are_the_rewards(kept):
  for rows in kept[0].values():
    for row in rows:
      assert row['verdict']['parts'] == {'answer': row['reward']}
      assert row['verdict']['score'] == row['reward']


def test_verdicts_of_some_problems_are_their_own(tmp_path):
  """The rows of a file are not the first rows of the step."""
  c = recipe(path='host', workers=1, steps=2)
  c.stages, c.rollouts.problems = ('rl',), 2
  c.rl.rewards = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))
  train.run(c, tmp_path)
  rows = [row for found in read(tmp_path).values() for row in found]
  assert len(rows) == 2 * 2 * 4 and len({r['reward'] for r in rows}) == 2
  for row in rows:
    assert row['verdict']['parts'] == {'answer': row['reward']}


def test_an_opposite_second_verifier_is_a_part(tmp_path):
  files = _files(tmp_path)
  row = {'reward_parts': np.array([1.0]), 'reward_valid': True}
  said = Verdict(0.0, extracted='4')
  verdict = files._verdict(row, said)
  assert verdict.score == 1.0 and verdict.extracted == '4'
  assert verdict.parts == {'answer': 1.0, 'host': 0.0}
  assert files._verdict(row, Verdict(1.0)).parts == {'answer': 1.0}
  # A failed reward has no score.
  failed = files._verdict(row, Verdict(0.0, 'timeout'))
  assert failed.parts == {'answer': 1.0}


def test_samples_that_are_alike_raise_alarms_once(tmp_path, capfd):
  """This holds if the run is resumed and reads its earlier lines."""
  c = recipe(steps=4, temperature=0.01)
  c.stages, c.checkpoint.every = ('rl',), 1
  train.run(c, tmp_path)
  told = capfd.readouterr().err.splitlines()
  said = [x for x in told if x.startswith('alarm at rl step 3: ')]
  assert any('groups without signal (train/dead_rows 1)' in x for x in said)
  assert any('repeated completions (rollouts/repeats' in x for x in said)
  c.rl.steps = 7
  train.run(c, tmp_path)
  told = capfd.readouterr().err
  assert 'Resuming at step 4' in told
  assert 'groups without signal' not in told


def test_old_files_make_room_evenly(tmp_path):
  c = recipe(steps=12)
  c.rollouts.mib = 100 / 1024
  train.run(c, tmp_path)
  found = read(tmp_path)
  size = sum(p.stat().st_size for p in (tmp_path / 'rollouts').iterdir())
  assert size <= 100 * 1024
  gaps = np.diff([*found])
  assert len(found) > 1 and len(set(gaps)) == 1 and gaps[0] > 1


def test_a_file_larger_than_half_of_the_limit_is_not_kept(tmp_path):
  files = _files(tmp_path, mib=100 / 2**20)
  lines = ['x' * 30, 'y' * 15, 'z' * 15]
  assert files._within(iter(lines)) == lines[0] + lines[1]
  assert files._within(iter(['w' * 99])) == 'w' * 99


def test_a_run_resumed_has_no_file_past_its_checkpoint(tmp_path):
  folder = tmp_path / 'rollouts'
  folder.mkdir()
  for step in (10, 20, 30):
    (folder / f'{step:08d}.jsonl').write_text('{}\n')
  _files(tmp_path, resume=20)
  assert sorted(p.name for p in folder.iterdir()) == [
    '00000010.jsonl', '00000020.jsonl',
  ]  # fmt: skip


def test_a_diverged_run_ends_with_its_error_and_can_begin_again(tmp_path):
  """Its rollouts have NaN, and the next attempt moves its records aside."""
  c = recipe()
  c.stages, c.rl.optimizer.lr = ('rl',), 1e30
  c.rl.steps = c.log_every = 4  # rollouts with NaN come before its metrics
  c.rl.loss.entropy_coef = 0.1  # has a gradient without correct answers
  with pytest.raises(FloatingPointError, match='Lower optimizer.lr'):
    train.run(c, tmp_path)
  logps = [row['logp'] for rows in read(tmp_path).values() for row in rows]
  assert np.isnan(logps).any()
  c.rl.optimizer.lr = 3e-2
  train.run(c, tmp_path)
  for name in ('evaluations', 'samples', 'rollouts', 'tensorboard'):
    assert (tmp_path / f'{name}.before-1').is_dir()
  found = sorted(p.stem for p in (tmp_path / 'samples').iterdir())
  assert found == ['00000000', '00000004']
  assert list(read(tmp_path)) == [1, 2, 3, 4]


def test_histograms_leave_out_numbers_that_are_not_finite():
  shown = {
    'sampled': np.ones((1, 2), bool),
    'logp': np.full((1, 2), np.nan),
    'entropy': np.array([[np.inf, 0.5]]),
    'advantage': np.ones(1),
  }
  found = rollout_files._spread(shown)
  assert {k: x.tolist() for k, x in found.items()} == {
    'entropy': [0.5], 'length': [2], 'advantage': [1.0],
  }  # fmt: skip


def test_an_object_store_is_written_to_as_well(tmp_path, monkeypatch):
  object_store.install(monkeypatch)
  far = epath.Path(f'gs://bucket/{tmp_path.name}')
  far.mkdir(parents=True)
  for event in ('start', 'end'):
    events.note(far, event)
  found = metrics_file.lines(far / 'events.jsonl')
  assert [row['event'] for row in found] == ['start', 'end']
  files = _files(far)
  for step in (10, 20, 30):
    files._write(step, '{}\n')
  _files(far, resume=20)
  names = sorted(p.name for p in (far / 'rollouts').iterdir())
  assert names == ['00000010.jsonl', '00000020.jsonl']


def test_every_0_keeps_nothing_and_does_not_change_the_metrics(kept, tmp_path):
  c = recipe()
  c.rollouts.update(every=0, problems=8)
  train.run(c, tmp_path)
  assert not (tmp_path / 'rollouts').exists()
  rows = [r for r in metrics_file.read(tmp_path) if 'train/loss' in r]
  assert len(rows) == len(kept[1]) == WARM + 3
  for row, other in zip(rows, kept[1]):
    # The program has other outputs, so it is compiled with other roundings.
    assert _without_clock(row) == pytest.approx(
      _without_clock(other), rel=1e-5, abs=5e-6
    )


def _without_clock(row):
  """Returns the numbers of a metrics row that two runs share."""
  clock = ('perf/', 'pool/', 'stage')
  return {k: v for k, v in row.items() if not k.startswith(clock)}


def _files(workdir, mib=1.0, resume=0):
  c = recipe()
  c.rollouts.mib = mib

  class Problems:
    train = []

  where = epath.Path(workdir)
  return rollout_files.RolloutFiles(
    c.rollouts, c.rl, where, Problems, None, resume
  )
