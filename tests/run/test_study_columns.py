"""Studies: columns computed from a run's metrics, and smoke versions."""

import contextlib
import dataclasses
import functools
import json
import math

import jax
import pytest
import tiny_recipe
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason import study as study_command
from jaxrl_reason.run import prepare, stage_list, stages
from jaxrl_reason.studies import base_kl, grid, grid_checks, options
from jaxrl_reason.studies import results as outcome
from jaxrl_reason.studies import study_run as session
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.verdicts import Claim, Criterion

pytestmark = pytest.mark.one_device

STUDIES = sorted(
  path
  for path in (ROOT / 'configs' / 'studies').glob('*.py')
  if 'def get_study' in path.read_text()
)


def told(folder, rows, old=()):
  """Returns the columns of a run with these metrics."""
  folder.mkdir()
  lines = [json.dumps({'stage': 'rl', **row}) + '\n' for row in rows]
  (folder / 'metrics.jsonl').write_text(''.join(lines))
  return outcome.read(folder, ('train/reward_mean', 0.8), old)


def test_slopes_are_those_of_a_line(tmp_path):
  """A linear metric has its slope, in 100 steps. Two values have no slope."""
  rows = [
    {'step': s, 'train/length_mean': 7 + 0.25 * s, 'train/loss': -0.5 * s}
    for s in (5, 10, 30)
  ]
  found = told(tmp_path / 'a', rows)
  assert found.last['slope/train/length_mean'] == pytest.approx(25)
  assert found.last['slope/train/loss'] == pytest.approx(-50)
  assert found.first['slope/train/loss'] == 0
  assert 'slope/train/loss' not in told(tmp_path / 'b', rows[:2]).last


def test_old_tasks_have_the_mean_of_their_accuracies(tmp_path):
  """The gain of `old/pass@1` is the change on the named sources alone."""

  def at(step, **right):
    values = {f'eval/heldout/{k}/pass@1': x for k, x in right.items()}
    return {'step': step, 'eval/heldout/pass@1': 0.3} | values

  rows = [at(0, a=0.5, b=0.7, c=0.1), at(9, a=0.4, b=0.2, c=0.9)]
  found = told(tmp_path / 'a', rows, ('a', 'b'))
  assert found.first['old/pass@1'] == pytest.approx(0.6)
  assert found.last['old/pass@1'] == pytest.approx(0.3)
  assert not any(k.startswith('old/') for k in told(tmp_path / 'b', rows).last)


def test_the_first_evaluation_is_a_column(tmp_path):
  """Settings can be compared after their warm starts. The gain of the column is
  0.
  """
  key = 'eval/heldout/pass@1'
  rows = [{'step': 0, key: 0.25}, {'step': 9, key: 0.75, 'train/loss': 1.0}]
  found = told(tmp_path / 'a', rows)
  assert (found.last[f'start/{key}'], found.last[key]) == (0.25, 0.75)
  assert found.first[f'start/{key}'] == 0.25
  assert 'start/train/loss' not in found.last


def test_a_metric_has_the_value_of_the_last_evaluation(tmp_path):
  """An evaluation without incorrect answers has no auroc."""
  right, auroc = 'eval/heldout/pass@1', 'eval/heldout/auroc'
  rows = [
    {'step': 0, right: 0.2},
    {'step': 5, right: 0.9, auroc: 0.55, 'train/loss': 2.0},
    {'step': 9, 'train/loss': 1.0},
    {'step': 9, right: 1.0},
  ]
  found = told(tmp_path / 'a', rows)
  names = auroc, f'start/{auroc}', f'gain/{auroc}'
  assert not {*names} & {*found.last, *found.first}
  assert (found.first[right], found.last[right]) == (0.2, 1.0)
  assert (found.first['train/loss'], found.last['train/loss']) == (2.0, 1.0)


def test_gains_and_leads_are_columns(tmp_path):
  """Gains of settings with different warm starts can be compared, and the
  majority with a sample before the run. Both begin at 0.
  """
  right, vote = 'eval/heldout/pass@1', 'eval/heldout/maj@8'
  rows = [
    {'step': 0, right: 0.25, vote: 0.375},
    {'step': 9, right: 0.5, vote: 1.0},
  ]
  found = told(tmp_path / 'a', rows)
  assert (found.last[f'gain/{right}'], found.first[f'gain/{right}']) == (
    0.25,
    0,
  )
  assert (found.last[f'lead/{vote}'], found.first[f'lead/{vote}']) == (0.125, 0)
  assert f'lead/{right}' not in found.last


def test_settings_are_compared_at_equal_tokens(tmp_path):
  """A value between two evaluations is interpolated. A run that samples fewer
  tokens has no value.
  """
  key = 'eval/heldout/pass@1'
  rows = [{'step': 0, key: 0.2}]
  for step, x in (5, 0.3), (10, 0.7):
    rows += [{'step': step, 'train/tokens': 10.0}, {'step': step, key: x}]
  folder = tmp_path / 'a'
  told(folder, rows)
  column = f'budget/{key}'

  def at(tokens: int) -> outcome.Told:
    return outcome.read(folder, (key, 1.0), budget=tokens)

  values = [at(n).last.get(column) for n in (25, 50, 75, 100, 101)]
  assert values == [pytest.approx(x) for x in (0.25, 0.3, 0.5, 0.7)] + [None]
  assert at(75).first[column] == 0.2
  assert column not in at(0).last


def test_a_target_is_the_best_value_of_a_setting(tmp_path):
  """The target of a seed is the best value of its own run, so this run reaches
  the target. Values before the first step do not count.
  """
  key = 'eval/heldout/pass@1'
  values = {
    ('plain', 0): (0.2, 0.6, 0.5),
    ('plain', 1): (0.5, math.nan, 0.4),
    ('band', 0): (0.2, 0.5, 0.5),
    ('band', 1): (0.5, 0.4, 0.3),
  }
  folders = {}
  for (setting, seed), each in values.items():
    folders[setting, seed] = tmp_path / f'{setting}{seed}'
    rows = [
      {'step': 5 * i, key: x, 'train/tokens': 10.0} for i, x in enumerate(each)
    ]
    told(folders[setting, seed], rows)
  c = tiny_recipe.get_config()
  study = Study(c, {'plain': {}, 'band': {}}, target=(key, 'plain'))
  found = outcome.of(study, folders).told
  steps = {
    name: [(t.last['target/steps'], t.reached) for t in runs.values()]
    for name, runs in found.items()
  }
  assert steps == {
    'plain': [(5, True), (10, True)], 'band': [(10, False), (5, True)]
  }  # fmt: skip
  del folders['plain', 0], folders['plain', 1]  # not read, or not run yet
  found = outcome.of(study, folders).told['band']
  assert not any(t.reached for t in found.values())


def test_old_tasks_are_sources_of_the_data():
  c = tiny_recipe.get_config()
  c.data.sources = {'sums': {}, 'chains': {}}
  grid_checks.check(Study(c, {'one': {}}, old=('sums',)))
  with pytest.raises(ValueError, match="old='chain' is not .*'chains'"):
    grid_checks.check(Study(c, {'one': {}}, old=('chain',)))


def test_the_kl_divergence_to_the_warm_start_is_a_column(tmp_path):
  """A run whose weights did not change has a divergence of 0."""
  c = tiny_recipe.get_config()
  c.stages = ('sft', 'rl')
  c.data.sources = {'sums': {}}
  c.rl.update(steps=4, epochs=1, minibatches=1)
  c.sft.steps, c.eval.every, c.eval.harder = 20, 100, False
  settings = {
    'still': {'rl.optimizer.lr': 1e-9}, 'moved': {'rl.optimizer.lr': 3e-2}
  }  # fmt: skip
  claim = Claim('', [Criterion('kl_base', 'moved', more_than=0.0)])
  shown = dict(shown=('kl_base',), kl_on='sums')
  study = Study(c, settings, seeds=1, claims=[claim], **shown)
  table = session.run(study, tmp_path, lambda text: None)
  found = json.loads((tmp_path / 'results.json').read_text())
  kl = {k: x['final']['kl_base']['mean'] for k, x in found['settings'].items()}
  assert abs(kl['still']) < 1e-4 < 1e-2 < kl['moved']
  (effect,) = [x['effect'] for x in found['claims'][0]['criteria']]
  assert effect['mean'] == kl['moved']  # before the first step it is 0
  files = [*tmp_path.glob('cells/*/base_kl/answers/*.jsonl')]
  assert len(files) == 2
  times = [path.stat().st_mtime_ns for path in files]
  assert session.run(study, tmp_path, lambda text: None) == table
  assert [path.stat().st_mtime_ns for path in files] == times


def test_a_divergence_is_measured_again_on_another_source(
  tmp_path, monkeypatch
):
  """The folder of a run does not tell which source the study names now."""
  asked, runs = [], [(tmp_path, config_lib.Run())]

  def run(options, *_):
    (suite,) = options.suites
    asked.append(suite.split('/')[1].split('?')[0])
    found = {'suite': f'run:arithmetic/heldout/{asked[-1]}'}
    found |= {'metrics': {'kl_base': {'value': len(asked)}}}
    (tmp_path / base_kl.FOLDER).mkdir(exist_ok=True)
    path = tmp_path / base_kl.FOLDER / 'results.json'
    path.write_text(json.dumps({'results': [found]}))

  monkeypatch.setattr(base_kl.evaluation, 'run', run)
  monkeypatch.setattr(base_kl.events, 'last_end', lambda folder: 'finished')
  for source in ('sums', 'sums', 'chains'):
    base_kl.measure(source, runs, print)
  assert asked == ['sums', 'chains']
  assert base_kl.read(tmp_path) == {'kl_base': 2}


def test_a_kl_divergence_needs_a_source_and_a_warm_start():
  c = tiny_recipe.get_config()
  c.stages = ('sft', 'rl')
  c.data.sources = {'sums': {}}
  grid_checks.check(Study(c, {'one': {}}, kl_on='sums'))
  with pytest.raises(ValueError, match="kl_on='sum' is not in .*'sums'"):
    grid_checks.check(Study(c, {'one': {}}, kl_on='sum'))
  with pytest.raises(ValueError, match="'one' has one stage, and kl_on='sums'"):
    grid_checks.check(Study(c, {'one': {'stages': ('rl',)}}, kl_on='sums'))
  with pytest.raises(ValueError, match="metric 'kl_base', which its runs do"):
    grid_checks.check(Study(c, {'one': {}}, shown=('kl_base',)))


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_a_study_has_claims_that_its_smoke_version_keeps(path):
  study = grid.load(str(path))
  grid_checks.check(study)
  small = grid.load(f'{path}:smoke')
  assert small.claims == study.claims and study.claims
  assert small.tuning is None
  assert small.recipe.rl.steps < study.recipe.rl.steps
  with pytest.raises(ValueError, match='argument of a study is smoke'):
    grid.load(f'{path}:smok')


def test_a_study_changes_keys_of_its_smoke_version_alone():
  c = tiny_recipe.get_config()
  steps = c.sft.steps
  study = Study(c, {'one': {}}, smoke={'sft.steps': 7, 'eval.problems': 3})
  small = grid.smoke(study)
  assert (small.recipe.sft.steps, small.recipe.eval.problems) == (7, 3)
  assert grid.smoke(Study(c, {'one': {}})).recipe.sft.steps == 2
  assert study.recipe.sft.steps == steps


def decided_by_smoke(name, tmp_path, *flags):
  """Runs the smoke version of a study and returns its criteria."""
  path = ROOT / 'configs' / 'studies' / f'{name}.py'
  flags = [f'--config={path}:smoke', f'--out={tmp_path}', *flags]
  study = options.study_of(study_command.parser().parse(flags))
  assert session.run(study, tmp_path, lambda text: None)
  claims = json.loads((tmp_path / 'results.json').read_text())['claims']
  return [c for claim in claims for c in claim['criteria']]


def names_of(claim):
  """Returns the settings that a claim compares."""
  each = [(c.of, c.over or c.of) for c in claim.criteria]
  return list(dict.fromkeys(name for pair in each for name in pair))


def fewest_settings(name):
  """Returns a study, and the settings of its claim of the fewest settings."""
  study = grid.load(str(ROOT / 'configs' / 'studies' / f'{name}.py'))
  return study, min(map(names_of, study.claims), key=len)


# Studies with columns that no other study has.
RUN = ('forgetting', 'horizon', 'length')


@pytest.mark.parametrize('name', RUN)
def test_a_smoke_version_decides_a_claim(name, tmp_path):
  """The claim of the fewest settings has its metrics, with one seed: 5 to 22 s
  of a core.
  """
  flags = '--seeds=1', f'--settings={",".join(fewest_settings(name)[1])}'
  criteria = decided_by_smoke(name, tmp_path, *flags)
  assert criteria and all(c['effect']['n'] == 1 for c in criteria), criteria


@pytest.mark.parametrize(
  'name', [path.stem for path in STUDIES if path.stem not in RUN]
)
def test_a_claim_compares_metrics_of_programs_that_are_traced(name, tmp_path):
  """Tracing finds impossible settings and the names of metrics, in a second of
  a core for each program.
  """
  study, names = fewest_settings(name)
  small = dataclasses.replace(grid.smoke(study), seeds=1)
  compared = {c.metric for claim in study.claims for c in claim.criteria}
  prefix = 'slope/train/', 'train/'
  wanted = {x.rpartition('train/')[2] for x in compared if x.startswith(prefix)}
  cells = [c for c in grid.cells(small, '') if c.setting in names]
  assert len(cells) == len(names)
  for cell in cells:
    metrics = traced_metrics(cell.config, tmp_path)
    assert {'loss', 'reward_mean', *wanted} <= metrics.keys(), cell.setting


def traced_metrics(config, folder):
  """Returns the shapes of the metrics of the first steps of a run."""
  config = config.changed({'init_from': ''})
  parts = prepare.prepare(config, folder)
  (planned,) = stage_list.each(config)
  with jax.set_mesh(parts.mesh):
    stage = stages.build(planned, parts)
    with contextlib.closing(stage):
      first = functools.partial(stage.dispatch, more=False)
      _, metrics, _ = jax.eval_shape(first, stage.layout.template)
  return metrics


@pytest.mark.slow  # 12 s of a core to 7 minutes each
@pytest.mark.parametrize('name', [path.stem for path in STUDIES])
def test_a_smoke_version_decides_every_criterion(name, tmp_path):
  """Every criterion has a metric that the runs have, for both seeds."""
  criteria = decided_by_smoke(name, tmp_path)
  assert criteria and all(c['effect']['n'] == 2 for c in criteria), criteria
