"""Studies: one program of many runs equals each run alone, resumes after a
kill, and prints differences.
"""

import dataclasses
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
import tiny_recipe
from etils import epath
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason import study as study_command
from jaxrl_reason import trees
from jaxrl_reason.checkpoints import manager, other_run
from jaxrl_reason.data import tokenizers
from jaxrl_reason.reports import metrics_file
from jaxrl_reason.run import train
from jaxrl_reason.run.evaluator import Evaluator
from jaxrl_reason.run.process import memory_maps
from jaxrl_reason.run.records import events, metrics
from jaxrl_reason.studies import (
  fits,
  grid,
  grid_checks,
  options,
  pages,
  targets,
  telling,
  traced,
  verdicts,
)
from jaxrl_reason.studies import results as outcome
from jaxrl_reason.studies import study_run as session
from jaxrl_reason.studies.grid import Study, Tuning
from jaxrl_reason.studies.verdicts import Claim, Criterion

pytestmark = pytest.mark.one_device

# Every traced number differs from the recipe's.
OTHER = {
  'rl.optimizer.lr': 3e-3,
  'rl.temperature': 0.7,
  'rl.top_p': 0.95,
  'rl.loss.pos_weight': 0.3,
  'rl.loss.clip_high': 0.02,
  'rl.loss.kl_coef': 0.5,
  'rl.loss.entropy_coef': 0.1,
  'rl.rewards.format.weight': 1.5,
}
SETTINGS = {
  'as_it_is': {},
  'other': OTHER,
  'wild': {'rl.optimizer.lr': 1e30},  # diverges
}


def recipe():
  c = tiny_recipe.get_config()
  c.stages = ('sft', 'rl')
  c.rl.rewards = {
    'answer': dict(reward='task', weight=1.0),
    'format': dict(reward='format', weight=0.5),
  }
  c.sft.update(steps=40)  # some answers are right
  c.rl.update(steps=4, prompts=8)
  c.rl.loss.update(kl_coef=0.01, entropy_coef=0.01)
  c.rl.optimizer.warmup_steps = 2
  c.eval.every = 4
  return c


def study(**changes):
  given = dict(recipe=recipe(), settings=SETTINGS, seeds=1)
  return Study(**given | changes)


def more(setting, than):
  return Criterion('eval/heldout/pass@1', setting, more_than=than)


def quiet(text):
  del text


@pytest.fixture(scope='module')
def done(tmp_path_factory):
  """Returns a study in one program, in which one run diverges, and its
  folder.
  """
  out = tmp_path_factory.mktemp('study')
  table = session.run(study(), out, quiet)
  return out, table


def test_settings_that_share_a_program():
  """Traced numbers share a program; changes of shapes or parts do not."""
  more = SETTINGS | {
    'lora': {'lora.rank': 2},
    'no_kl': {'rl.loss.kl_coef': 0.0},
    'more': {'rl.samples': 8},
    'top': {'rl.loss.entropy_share': 0.5},
    'weak': {'sft.steps': 8},
  }
  s = study(settings=more, seeds=2)
  configs = [c.config for c in grid.cells(s, '')]
  found = traced.groups(configs, 100)
  pairs = [[6, 7], [8, 9], [10, 11], [12, 13]]
  assert found == [[0, 1, 2, 3, 4, 5, 14, 15], *pairs]
  assert traced.groups(configs[:6], 4) == [[0, 1, 2, 3], [4, 5]]
  parts = [(k, {'reward': 'random'}) for k in ('b', 'a')]
  ordered = [{'rl.rewards': dict(x)} for x in (parts, parts[::-1])]
  assert len({traced.program_of(configs[0].changed(x)) for x in ordered}) == 2
  weighed = [x | {'rl.rewards.b.weight': 0.5} for x in ordered[:1]] + ordered[
    :1
  ]
  for algorithm, n in (('grpo', 1), ('gdpo', 2)):
    own = [x | {'rl.algorithm': algorithm} for x in weighed]
    assert len({traced.program_of(configs[0].changed(x)) for x in own}) == n
  host = config_lib.read(recipe()).changed({'rl.path': 'host'})
  assert traced.program_of(host) is None
  roles = configs[0].changed({'rl.roles.solver': {'algorithm': 'rloo'}})
  assert traced.program_of(roles) is None


def test_one_program_equals_a_run_alone(done, tmp_path):
  """Every traced number, the weights and the metrics equal those of the run."""
  out, _ = done
  assert len(list((out / 'groups').iterdir())) == 1
  cells = {c.name: c for c in grid.cells(study(), str(out / 'warm'))}
  cell = cells['other--s0']
  alone = train.run(cell.config, tmp_path)
  mine = out / 'cells' / cell.name
  told = [metrics_file.read(folder) for folder in (tmp_path, mine)]
  assert [[r['step'] for r in rows] for rows in told] == [[0, 2, 4, 4]] * 2
  for a, b in zip(*told):
    for key in a:
      if key.startswith(('train/', 'eval/')):
        np.testing.assert_allclose(
          b[key], a[key], rtol=5e-3, atol=1e-4, err_msg=key
        )
  weights = trees.flatten(other_run.read_params(epath.Path(mine)))
  for path, x in trees.flatten(alone.params).items():
    np.testing.assert_allclose(weights[path], x, rtol=1e-2, atol=1e-4)
  other = metrics_file.read(out / 'cells' / 'as_it_is--s0')
  assert other[1]['train/loss'] != told[1][1]['train/loss']
  assert told[0][1]['train/reward_std'] > 0  # rewards vary


def test_the_table_shows_differences(done):
  out, table = done
  for word in ('difference', 'pass@k, heldout', 'thousand tokens', 'other'):
    assert word in table
  found = json.loads((out / 'results.json').read_text())
  assert found['against'] == 'as_it_is'
  rows = metrics_file.read(out / 'cells' / 'other--s0')
  last = {k: v for row in rows for k, v in row.items()}
  got = found['settings']['other']['final']['eval/heldout/pass@1']
  assert got['mean'] == pytest.approx(last['eval/heldout/pass@1'])
  assert (out / 'study.png').stat().st_size > 1000


def test_every_cell_has_the_files_of_its_first_evaluation(done):
  """Also a cell that shares this evaluation with another one."""
  out, _ = done
  found = [
    {str(p.relative_to(cell)): p.read_text() for p in cell.glob('*/00000000.*')}
    for cell in (out / 'cells').iterdir()
  ]
  names = {'evaluations/00000000.json', 'samples/00000000.jsonl'}
  assert len(found) == 3 and all(x.keys() == names for x in found)
  assert found[0] == found[1] == found[2]
  problems = [*(out / 'cells').glob('*/evaluations/problems.json')]
  assert len({p.read_text() for p in problems}) == 1 and len(problems) == 3


def test_files_are_closed_after_an_error(done, tmp_path, monkeypatch):
  """Records of an earlier attempt without a checkpoint are moved aside."""
  out, _ = done
  shutil.copytree(out / 'warm', tmp_path / 'warm')
  cell = tmp_path / 'cells' / 'other--s0'
  (cell / 'evaluations').mkdir(parents=True)
  (cell / 'evaluations' / '00000020.json').write_text('{}')
  closed = []
  for owner in (metrics.Writer, manager.Checkpoints):
    own = functools.partialmethod(recorded, owner.close, closed)
    monkeypatch.setattr(owner, 'close', own)
  monkeypatch.setattr(session.together.Loop, 'run', lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    session.run(study(), tmp_path, quiet)
  names = [type(x).__name__ for x in closed]
  assert names.count('Writer') == 3 and names[-1] == 'Checkpoints'
  assert (cell / 'evaluations.before-1').exists()


def recorded(self, close, closed):
  closed.append(self)
  close(self)


def test_finished_cells_are_not_run_again(done):
  out, table = done
  paths = [p for p in (out / 'cells').rglob('metrics.jsonl')]
  before = {p: p.stat().st_mtime_ns for p in paths}
  assert session.run(study(), out, quiet) == table
  assert {p: p.stat().st_mtime_ns for p in paths} == before
  # Written by a version that lacked a key.
  path = out / 'cells' / 'as_it_is--s0' / 'config.json'
  values = json.loads(path.read_text())
  del values['data']['prompt_len'], values['rl']['top_k']
  path.write_text(json.dumps(values))
  with pytest.raises(ValueError, match='begun with another data.prompt_len; '):
    session.run(study(), out, quiet)
  values['data']['prompt_len'] = study().recipe.data.prompt_len
  path.write_text(json.dumps(values))
  assert session.run(study(), out, quiet) == table
  values['rl']['gone'] = 1
  path.write_text(json.dumps(values))
  with pytest.raises(ValueError, match='begun with another rl.gone'):
    session.run(study(), out, quiet)
  del values['rl']['gone']
  path.write_text(json.dumps(values))
  other = study(settings={'as_it_is': {'rl.top_k': 3}})
  with pytest.raises(ValueError, match='begun with another rl.top_k'):
    session.run(other, out, quiet)


def test_runs_with_other_tokens_share_no_program():
  def prepared(seed, alphabet):
    tokenizer = tokenizers.CharTokenizer(alphabet)
    return types.SimpleNamespace(
      tokenizer=tokenizer, config=types.SimpleNamespace(seed=seed)
    )

  session.together._refuse_other_tokens([prepared(0, 'ab'), prepared(1, 'ba')])
  with pytest.raises(ValueError, match='seed 1 trained another tokenizer than'):
    session.together._refuse_other_tokens(
      [prepared(0, 'ab'), prepared(1, 'ac')]
    )


def test_a_long_compilation_is_reported(monkeypatch):
  """Also if nothing else is waited for."""
  said = []
  monkeypatch.setattr(telling.journal, 'say', said.append)
  shown = types.SimpleNamespace(_waited=False)
  waiting = telling.Telling.dispatching(shown, None)
  waiting._begun = 0.0
  waiting._done.wait = lambda seconds: bool(said)  # one interval
  waiting._run()
  assert said[0].startswith('compiling the step of all, ')


def test_only_missing_cells_are_run(tmp_path, monkeypatch):
  """New settings do not join finished runs. An unfinished program is resumed as
  a whole.
  """
  ran = []

  def finish(configs, folders, shared):
    ran.append([folder.name for folder in folders])
    for folder in folders:
      folder.mkdir(parents=True, exist_ok=True)
      events.note(epath.Path(folder), 'end', how='finished')
    return True

  monkeypatch.setattr(session.together, 'run', finish)
  monkeypatch.setattr(session, '_run_warm_starts', lambda *_: True)
  monkeypatch.setattr(session.outcome, 'of', lambda *_: 1 / 0)

  def go(*names):
    chosen = {name: SETTINGS[name] for name in names}
    with pytest.raises(ZeroDivisionError):  # all runs are over by then
      session.run(study(settings=chosen, seeds=2), tmp_path, quiet)

  go('as_it_is')
  go('as_it_is', 'other')
  go('as_it_is', 'other')
  assert ran == [
    ['as_it_is--s0', 'as_it_is--s1'], ['other--s0', 'other--s1']
  ]  # fmt: skip
  both = study(settings={k: SETTINGS[k] for k in ('other', 'wild')})
  group = grid.cells(both, str(tmp_path / 'warm'))
  (session._shared(group, tmp_path) / 'checkpoints').mkdir(parents=True)
  with pytest.raises(ZeroDivisionError):
    session.run(both, tmp_path, quiet)
  assert ran[2] == ['other--s0', 'wild--s0']


def test_programs_are_freed_before_maps_run_out(tmp_path, monkeypatch):
  """Every warm start and every program of a study begins with few maps."""
  counts = []  # of the programs in memory

  def trained(config, folder):
    counts.append(double._cache_size())
    double(1.0)
    folder.mkdir(parents=True)
    events.note(epath.Path(folder), 'end', how='finished')
    return True

  double = jax.jit(lambda x: 2 * x)
  monkeypatch.setattr(session.train, 'run', trained)
  monkeypatch.setattr(session.outcome, 'of', lambda *_: 1 / 0)
  for most, folder in (0, 'few'), (10**6, 'many'):
    monkeypatch.setattr(memory_maps, 'MOST', most)
    settings = {'one': {}, 'two': {'rl.samples': 8}}
    with pytest.raises(ZeroDivisionError):  # all runs are over by then
      session.run(study(settings=settings), tmp_path / folder, quiet)
  assert counts == [0, 0, 0, 1, 1, 1]  # a warm start and two programs


def command(out, *more):
  """Runs on one device, since the recipe has fewer prompts than devices."""
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  given = {'PYTHONPATH': f'{ROOT}:{ROOT / "tests"}', 'XLA_FLAGS': flags}
  return subprocess.Popen(
    [sys.executable, '-m', 'jaxrl_reason', 'study', f'--out={out}', *more],
    env=os.environ | given,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


FILE = """
import tiny_recipe
from jaxrl_reason.studies.grid import Study

def get_study():
  c = tiny_recipe.get_config()
  c.stages = ('sft', 'rl')
  c.rl.update(steps=400)
  return Study(c, {'one': {}, 'two': {'rl.optimizer.lr': 1e-3}}, seeds=1)
"""


@pytest.mark.slow
def test_a_study_killed_inside_a_program_resumes(tmp_path):
  """The numbers equal those without the kill, by the command line."""
  path = tmp_path / 'study.py'
  path.write_text(FILE)
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  run = command(whole, f'--config={path}')
  text, errors = run.communicate()
  assert run.returncode == 0, errors
  assert '| two |' in text
  run = command(parts, f'--config={path}')
  for line in run.stderr:
    if 'runs:' in line and '%' in line and ' 0/' not in line:
      break
  run.send_signal(signal.SIGKILL)
  run.wait()
  again, errors = command(parts, f'--config={path}').communicate()
  assert again == text, errors


def test_a_signal_in_an_evaluation_ends_it(done, tmp_path, monkeypatch):
  """The next start runs the remaining evaluations."""
  out, table = done
  shutil.copytree(out / 'warm', tmp_path / 'warm')
  evaluate, found = Evaluator.__call__, []

  def signalled(self, *args):
    if len(found) == 2:  # of three runs after the last step, the second
      os.kill(os.getpid(), signal.SIGTERM)
    found.append(evaluate(self, *args))
    return found[-1]

  monkeypatch.setattr(Evaluator, '__call__', signalled)
  assert session.run(study(), tmp_path, quiet) == ''
  assert [x is None for x in found] == [False, False, True]
  assert session.run(study(), tmp_path, quiet) == table
  assert len(found) == 6 and None not in found[3:]


def test_errors_are_one_line(tmp_path):
  path = tmp_path / 'study.py'
  path.write_text(FILE)
  for more, words in (
    (('--config=none.py',), '--config=none.py does not exist'),
    ((f'--config={ROOT}/setup.cfg',), 'setup.cfg:3: SyntaxError'),
    (
      (f'--config={ROOT}/configs/arithmetic_tiny.py',),
      r'no function get_study',
    ),
    ((f'--config={path}', '--settings=thre'), "--settings='thre': choose one"),
    (
      (f'--config={path}', '--config.rl.stepz=3'),
      "Did you mean 'rl.steps'",
    ),
    (
      (f'--config={path}', '--config.rl.steps=x'),
      "rl.steps='x': must be",
    ),
    ((f'--config={path}', '--config.rl=3'), 'is a section'),
    (
      (
        f'--config={path}',
        '--settings=two',
        '--config.rl.optimizer.lr=1',
      ),
      'rl.optimizer.lr has no effect: every setting of the study sets it',
    ),
    ((f'--config={path}', '--seeds=-1'), '--seeds=-1: must be'),
  ):
    flags = study_command.parser().parse(['--out=x', *more])
    with pytest.raises(ValueError, match=words) as error:
      options.study_of(flags)
    assert '\n' not in str(error.value)
  bad = tmp_path / 'bad.py'
  key = 'rl.optimiser.lr'
  for text, said in (
    (FILE.replace('optimizer.lr', 'optimiser.lr'), f'{key}: unknown'),
    (FILE.replace('1e-3', '-1e-3'), 'rl.optimizer.lr=-0.001: must be'),
  ):
    bad.write_text(text)
    run = command(tmp_path / 'out', f'--config={bad}')
    _, errors = run.communicate()
    (line,) = [x for x in errors.splitlines() if x]
    assert run.returncode == 1
    assert line.startswith(f"error: setting 'two': {said}"), line
  assert not (tmp_path / 'out' / 'warm').exists()


def test_invalid_studies_are_refused():
  right, start = 'eval/heldout/pass@1', 'start/eval/heldout/pass@1'
  of_gain, of_start = (
    Criterion(metric, 'other', 'as_it_is', less_than=0.1, of_gain=True)
    for metric in ('target/steps', start)
  )
  for changes, words in (
    (dict(settings={}), 'no settings'),
    (dict(against='othr'), "Did you mean 'other'"),
    (dict(settings={'a b': {}}), 'letters'),
    (dict(settings={'a': {'seed': 3}}), 'those of the study'),
    (dict(claims=[Claim('', [more('othr', 0)])]), "Did you mean 'other'"),
    (dict(warm='al'), "'each' or 'shared'"),
    (dict(seeds=0), 'at least 1'),
    (
      dict(tuning=Tuning('rl.optimizer.lrr', (1,), 'train/m')),
      'Did you mean .*lr',
    ),
    (dict(tuning=Tuning('rl.algorithm', (1,), 'train/m')), 'must be a number'),
    (
      dict(tuning=Tuning('rl.optimizer.lr', (), 'train/m')),
      'at least one factor',
    ),
    (
      dict(tuning=Tuning('rl.optimizer.lr', (1,), 'train/m', seeds=0)),
      'at least one factor and one seed',
    ),
    (
      dict(
        tuning=Tuning('rl.optimizer.lr', (1,), 'train/m', copies={'wild': 'x'})
      ),
      "copies\\['wild'\\]='x' must name two settings",
    ),
    (
      dict(
        tuning=Tuning('rl.optimizer.lr', (1,), 'target/steps'),
        target=('eval/heldout/pass@1', 'other'),
      ),
      'by target/steps: target=.* is known only after the tuning',
    ),
    (dict(claims=[Claim('', [of_gain])]), 'of_gain'),
    (dict(claims=[Claim('', [of_start])]), 'of_gain: the metric has no gain'),
    (
      dict(claims=[Claim('', [Criterion(start, 'other', more_than=0.0)])]),
      'does not change during the run',
    ),
    (dict(shown=('eval/heldout/pass@3',)), "mean 'eval/heldout/pass@2'"),
    (
      dict(target=('eval/heldout/pass@1', 'othr')),
      "a setting of the study. Did you mean 'other'",
    ),
    (dict(target=('target/step', 1.0)), "metric 'target/step', which its runs"),
    (dict(tuning=Tuning('rl.optimizer.lr', (1,), 'eval/m')), 'eval/m'),
    (dict(shown=('old/pass@1',)), "metric 'old/pass@1'"),
    (dict(shown=(f'budget/{right}',)), "metric 'budget/eval"),
    (dict(tokens=-1), 'tokens of a study'),
    (
      dict(tuning=Tuning('rl.optimizer.lr', (1,), right, keys={'othr': 'a'})),
      "keys\\['othr'\\], which is no setting. Did you mean 'other'",
    ),
  ):
    with pytest.raises(ValueError, match=words):
      grid_checks.check(study(**changes))


def test_another_warm_start_is_refused(tmp_path):
  name, config = next(iter(grid.warm_starts(study()).items()))
  folder = tmp_path / 'warm' / name
  folder.mkdir(parents=True)
  other = config.changed({'sft.steps': 41})
  (folder / 'config.json').write_text(json.dumps(other.json_values()))
  with pytest.raises(ValueError, match=f'warm/{name} .*another sft.steps'):
    session.run(study(), tmp_path, quiet)


def test_chosen_settings_keep_their_claims(monkeypatch):
  both = Criterion('train/loss', 'other', 'as_it_is', more_than=0.0)
  alone = Claim('alone', [more('other', 0)])
  s = study(claims=[Claim('both', [both]), alone])
  monkeypatch.setattr(grid, 'load', lambda path: s)
  flags = ['--config=x', '--out=x', '--settings=other,wild']
  chosen = options.study_of(study_command.parser().parse(flags))
  assert chosen.claims == [alone] and chosen.base == 'other'
  grid_checks.check(chosen)


def test_a_study_is_repeated_with_other_seeds(monkeypatch):
  monkeypatch.setattr(grid, 'load', lambda path: study(first_seed=5))

  def seeds(*flags):
    flags = ['--config=x', '--out=x', *flags]
    chosen = options.study_of(study_command.parser().parse(flags))
    return {cell.seed for cell in grid.cells(chosen, 'warm')}

  assert seeds('--seeds=2') == {5, 6}
  assert seeds('--seeds=3', '--first_seed=20') == {20, 21, 22}


def test_warm_starts_are_shared_by_seed_and_settings():
  """A change of the last stage shares the warm start; other changes have their
  own.
  """
  settings = {
    'rl': {},
    'hot': {'rl.temperature': 1.3},
    'exact': {'model.numerics': 'exact', 'model.dtype': 'bfloat16'},
    'half': {'model.dtype': 'bfloat16'},
    'pool': {'data.controller.name': 'uniform', 'data.controller.window': 8},
    'weak': {'sft.steps': 8},
    'first': {'stages': ('rl',)},
  }
  s = study(settings=settings, seeds=2)
  warm = grid.warm_starts(s)
  names = ['rl', 'exact', 'weak']  # `half` shares the warm start of `exact`
  assert list(warm) == [f'{name}--s{i}' for name in names for i in (0, 1)]
  assert [c.seed for c in warm.values()] == [0, 1] * 3
  assert {c.stages for c in warm.values()} == {('sft',)}
  assert warm['weak--s1'].sft.steps == 8
  cells = {c.name: c.config for c in grid.cells(s, 'W')}
  assert cells['hot--s1'].init_from == 'W/rl--s1'
  assert cells['half--s1'].init_from == 'W/exact--s1'
  assert cells['exact--s1'].model.numerics == 'exact'
  assert cells['pool--s1'].init_from == 'W/rl--s1'
  assert cells['pool--s1'].data.controller.window == 8
  assert cells['weak--s0'].init_from == 'W/weak--s0'
  assert cells['first--s0'].init_from == ''
  shared = grid.cells(study(settings=settings, seeds=2, warm='shared'), 'W')
  assert {c.warm for c in shared} == {'rl--s0', 'exact--s0', 'weak--s0', ''}


def test_settings_of_every_earlier_stage_have_warm_starts_of_their_own():
  """Settings of only the last stage share a warm start, whatever its kind."""
  c = recipe()
  c.stages = ('sft', 'first', 'preference', 'rl')
  c.named = {'first': dict(kind='rl', rl=dict(steps=2))}
  c.preference.pairs = 'first'
  settings = {
    'dpo': {},
    'ipo': {'preference.loss': 'ipo'},
    'hot': {'rl.temperature': 1.3},  # also a setting of the stage `first`
    'model': {'reward_model.steps': 9},  # a setting of no stage
  }
  warm = grid.warm_starts(study(recipe=c, settings=settings))
  assert list(warm) == ['dpo--s0', 'ipo--s0', 'hot--s0']
  assert warm['ipo--s0'].preference.loss == 'ipo'
  c.stages = ('pretrain', 'sft')
  settings = {'sft': {}, 'dft': {'sft.loss': 'dft'}, 'rl': {'rl.steps': 9}}
  s = study(recipe=c, settings=settings)
  assert list(grid.warm_starts(s)) == ['sft--s0']
  assert {c.warm for c in grid.cells(s, 'W')} == {'sft--s0'}
  c.named = {'more': dict(kind='sft', sft=dict(steps=2))}
  c.stages = ('sft', 'more')
  settings = {'few': {}, 'many': {'named.more.sft.steps': 9}}
  s = study(recipe=c, settings=settings)
  assert list(grid.warm_starts(s)) == ['few--s0']


def test_settings_of_sources_that_only_rl_reads_share_a_warm_start():
  s = grid.load(str(ROOT / 'configs/studies/horizon.py'))
  assert list(grid.warm_starts(s)) == [f'ladder--s{i}' for i in range(5)]
  settings = {'ladder': {}, 'known': {'data.sources.chain4.supervised': True}}
  s = dataclasses.replace(s, settings=settings, claims=(), seeds=1)
  assert list(grid.warm_starts(s)) == ['ladder--s0', 'known--s0']
  # A last stage of supervised learning reads it, and RL does not.
  settings['known']['stages'] = 'sft', 'sft'
  assert list(grid.warm_starts(s)) == ['ladder--s0']
  assert grid.cells(s, 'W')[1].config.data.sources['chain4']['supervised']


def test_stages_are_compared(tmp_path):
  """Compares sft with rl, from a warm start for every seed."""
  c = recipe()
  c.update(stages=('pretrain', 'rl'))
  c.pretrain.steps = c.sft.steps = c.rl.steps = 2
  s = Study(
    c,
    {'rl': {}, 'sft': {'stages': ('pretrain', 'sft')}},
    seeds=2,
    claims=[Claim('SFT is better.', [more('sft', 0)])],
  )
  table = session.run(s, tmp_path, quiet)
  warm = sorted(p.name for p in (tmp_path / 'warm').iterdir())
  assert warm == ['rl--s0', 'rl--s1']
  cells = sorted(p.name for p in (tmp_path / 'cells').iterdir())
  assert cells == ['rl--s0', 'rl--s1', 'sft--s0', 'sft--s1']
  losses = {
    [r for r in metrics_file.read(tmp_path / folder) if 'train/loss' in r][-1][
      'train/loss'
    ]
    for folder in (*(f'warm/{x}' for x in warm), *(f'cells/{x}' for x in cells))
  }
  assert len(losses) == 6  # all losses differ
  assert '| SFT is better. |' in table and 'a warm start of its own' in table
  (claim,) = json.loads((tmp_path / 'results.json').read_text())['claims']
  assert claim['verdict'] in (verdicts.HOLDS, verdicts.NOT, verdicts.UNKNOWN)
  assert session.run(s, tmp_path, quiet) == table  # nothing is left to run


def test_a_number_is_tuned_on_seeds_that_are_not_evaluated(
  tmp_path, monkeypatch
):
  """Every setting has its own best value, which the study then uses. A control
  has that of another setting.
  """
  key, seen = 'rl.optimizer.lr', []
  settings = {'one': {}, 'two': {key: 3e-3}, 'control': {'rl.top_k': 3}}
  copies = {'control': 'one'}
  metric = 'train/loss'
  tuning = Tuning(key, (0.5, 1, 4), metric, seeds=2, copies=copies)
  s = study(settings=settings, seeds=3, tuning=tuning)
  scores = {'one~0.5': 2.0, 'one~1': 1.0, 'one~4': 0.0, 'two~4': 1.0}
  scores['two~1'] = 3.0  # of one seed; the other has diverged

  def made(study, out, say):
    seen.append(study)
    rows = {name: scores.get(name, 0.5) for name in study.settings}
    told = {
      name: {
        seed: outcome.Told(
          [], (name, seed) == ('two~1', 4), {metric: x}, {}, False, {}, {}, {}
        )
        for seed in (3, 4)
      }
      for name, x in rows.items()
    }
    return outcome.Found(study, told) if len(seen) == 1 else None

  monkeypatch.setattr(session, '_made', made)
  assert session.run(s, tmp_path, quiet) == ''
  tried, used = seen
  lr = config_lib.read(recipe()).rl.optimizer.lr
  assert {k: v[key] for k, v in tried.settings.items()} == pytest.approx({
    'one~0.5': lr / 2, 'one~1': lr, 'one~4': 4 * lr,
    'two~0.5': 1.5e-3, 'two~1': 3e-3, 'two~4': 1.2e-2,
  })  # fmt: skip
  assert {c.seed for c in grid.cells(tried, 'W')} == {3, 4}
  assert {c.seed for c in grid.cells(used, 'W')} == {0, 1, 2}
  assert used.settings['one'][key] == pytest.approx(lr / 2)
  assert used.settings['two'][key] == pytest.approx(1.2e-2)
  assert used.settings['control'] == {
    'rl.top_k': 3, key: pytest.approx(lr / 2)
  }  # fmt: skip


def test_a_setting_may_tune_a_key_of_its_own():
  keys = {'warm': 'rl.temperature'}
  tuning = Tuning('rl.optimizer.lr', (0.5,), 'train/loss', keys=keys)
  s = study(settings={'one': {}, 'warm': {}}, tuning=tuning)
  c = config_lib.read(recipe()).rl
  assert grid.trials(s).settings == {
    'one~0.5': {'rl.optimizer.lr': c.optimizer.lr / 2},
    'warm~0.5': {'rl.temperature': c.temperature / 2},
  }
  used = grid.tuned(s, lambda name: 1.0).settings
  assert used['warm'] == {'rl.temperature': c.temperature / 2}


def test_values_that_a_difference_cannot_have():
  """A target has no value before the run, and 0 no logarithm."""
  claim = Criterion('target/steps', 'b', 'a', less_than=0.0, ratio=True)
  told = {
    name: {
      seed: outcome.Told([], False, {'target/steps': x}, {}, False, {}, {}, {})
      for seed, x in enumerate(values)
    }
    for name, values in {'a': (0.0, 2.0), 'b': (1.0, 4.0)}.items()
  }
  found = outcome.Found(study(settings={'a': {}, 'b': {}}), told)
  assert np.isnan(found.gain('b', 'target/steps').mean)
  effects = found.effects(claim)
  assert effects.differences == [pytest.approx(np.log(2))]
  assert effects.costs == (
    [(1.0, False), (4.0, False)],
    [(0, False), (2, False)],
  )
  alone = Claim('x', [Criterion('target/steps', 'b', less_than=0.0)])
  with pytest.raises(ValueError, match="target/steps of 'b' names no other"):
    grid_checks.check(study(settings={'a': {}, 'b': {}}, claims=[alone]))


def test_a_criterion_needs_a_value_of_every_seed():
  """A seed that diverges, or has no value, leaves a criterion undecided. A
  metric that no run has is listed.
  """
  values = {'a': (0.1, 0.2, 0.15, 0.1), 'b': (0.7, 0.8, 0.9, 0.8)}
  better = Criterion('m', 'b', 'a', more_than=0.0)
  claim = Claim('b is better.', [better])

  def made(lost=None, metric='m'):
    told = {
      name: {
        seed: outcome.Told(
          [], (name, seed) == lost, {metric: x}, {}, False, {}, {}, {}
        )
        for seed, x in enumerate(row)
      }
      for name, row in values.items()
    }
    s = study(settings={'a': {}, 'b': {}}, seeds=4, claims=[claim])
    return outcome.Found(s, told)

  for lost, left_out, verdict in (
    (None, 0, verdicts.HOLDS),
    (('a', 1), 1, verdicts.UNKNOWN),
    (('b', 3), 1, verdicts.UNKNOWN),
  ):
    found = made(lost)
    ((_, (d,)),) = found.decided()
    assert (d.verdict, d.left_out) == (verdict, left_out)
    assert d.effect.n == 4 - left_out
    text = f'{left_out} seeds diverged or without a value'
    assert (text in '\n'.join(pages._claims(found))) == bool(left_out)
  values['a'] = (0.0, *values['a'][1:])  # has no logarithm
  ratio = dataclasses.replace(better, ratio=True)
  assert made().effects(ratio).left_out == 1
  assert made().effects(better).left_out == 0
  assert made().lacking() == made(metric='n').lacking() == []
  claim = Claim('', [Criterion('train/m', 'b', 'a', more_than=0.0)])
  assert made(metric='train/m').lacking() == []
  assert made().lacking() == [('b', 'train/m'), ('a', 'train/m')]


def test_a_metric_that_no_run_has_ends_the_study(done, tmp_path):
  """It ends after the first program, whose runs are kept."""
  out, _ = done
  shutil.copytree(out, tmp_path, dirs_exist_ok=True)
  shutil.rmtree(tmp_path / 'cells' / 'other--s0')
  claim = Claim('', [Criterion('train/entropi', 'other', less_than=0.0)])
  with pytest.raises(
    ValueError, match="'train/entropi', and no run of setting"
  ):
    session.run(study(claims=[claim]), tmp_path, quiet)
  assert session.is_over(tmp_path / 'cells' / 'other--s0')


def test_fits_recover_their_laws():
  """A fit to points of a law has its numbers. With noise, its errors cover
  them.
  """
  x = np.arange(1, 50)
  found = fits.power(x, 1 - 0.7 * x**-0.3)
  np.testing.assert_allclose([found['b'], found['c']], [0.3, 0.7], rtol=1e-6)
  h = np.linspace(0.1, 1.2, 40)
  rng, hits = np.random.default_rng(0), 0
  for _ in range(200):
    y = -0.2 * np.exp(h) + 0.9 + 0.02 * rng.standard_normal(h.size)
    got = fits.entropy_law(h, y)
    hits += abs(got['a'] - 0.2) < 1.96 * got['a_error']
  assert 0.9 < hits / 200 < 0.99
  assert fits.power([1, 2], [0.1, 0.2]) == {}
  # After a reward of 1, others below it are no random choice.
  saturated = [*(1 - 0.7 * x**-0.3), 1.0, 0.8]
  assert fits.power([*x, 50, 51], saturated) == found


def test_means_errors_and_targets():
  value = fits.over([1.0, 2.0, 4.0])
  assert value.mean == pytest.approx(7 / 3)
  assert value.error == pytest.approx(math.sqrt(7 / 3) / math.sqrt(3))
  assert math.isnan(fits.over([1.0]).error)
  rows = [
    {'step': 5, 'train/tokens': 10.0, 'm': 0.1},
    {'step': 8, 'train/tokens': 20.0, 'm': 0.6},
    {'step': 9, 'train/tokens': 20.0, 'm': 0.9},
  ]
  assert targets.reach(rows, 'm', 0.5) == (8.0, 110.0, True)
  # The target is not reached: the bound is all steps and tokens.
  assert targets.reach(rows, 'm', 0.95) == (9.0, 130.0, False)


def test_a_run_that_diverges_leaves_the_others(done):
  """Non-finite numbers end one run of a program, and are reported."""
  out, table = done
  assert 'wild (1 diverged)' in table and 'other (' not in table
  rows = metrics_file.read(out / 'cells' / 'as_it_is--s0')
  assert rows[-1]['step'] == 4
  wild = metrics_file.read(out / 'cells' / 'wild--s0')
  assert all(math.isfinite(r.get('train/loss', 0.0)) for r in wild)
  assert 'FloatingPointError' in events.last_end(out / 'cells' / 'wild--s0')
