"""`jaxrl evaluate`: interruptions, batches, devices, output files and
errors.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import object_store
import pytest
import tiny_recipe
from etils import epath
from paths import ROOT

from jaxrl_reason import evaluate
from jaxrl_reason.evals import cell_settings, grown, loading, prompts, suites
from jaxrl_reason.evals import evaluation as session
from jaxrl_reason.evals import generation as generate
from jaxrl_reason.reports import answer_folders
from jaxrl_reason.reports.answer_pages import Blocks
from jaxrl_reason.run import train
from jaxrl_reason.run.records import journal
from jaxrl_reason.verifiers import grading as grade
from jaxrl_reason.verifiers import records

pytestmark = pytest.mark.one_device

SLOW = """
import time

def odd(completion, example):
  time.sleep(0.02)
  return len(completion) % 2

def broken(completion, example):
  raise KeyError('oh')
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Returns a run from scratch of a few steps, a suite and a reward."""
  path = tmp_path_factory.mktemp('evaluate')
  config = tiny_recipe.get_config()
  config.stages, config.compile_cache = ('pretrain', 'sft'), ''
  config.pretrain.steps = config.sft.steps = 2
  config.log_every = 2
  config.checkpoint.every = 2
  config.eval.update(problems=2, every=2)
  train.run(config, path / 'run')
  (path / 'mine.py').write_text(SLOW)
  rows = [{'q': f'{i % 8 + 1}+{i // 8 + 1}=', 'a': i} for i in range(24)]
  lines = ''.join(json.dumps(r) + '\n' for r in rows)
  (path / 'suite.jsonl').write_text(lines)
  return path


def flags(folder, out, *more):
  return [
    f'--model={folder}/run@2,{folder}/run',
    f'--suite={folder}/suite.jsonl?question=q&answer=a'
    f'&verifier={folder}/mine.py:odd',
    '--k=3',
    '--budgets=2',
    f'--out={folder / out}',
    *more,
  ]


def run(*args) -> str:
  """Runs the command in this process, by default on one device."""
  asked = evaluate.options(evaluate.parser().parse(args))
  return session.run(asked, journal.say, journal.bar)


@pytest.fixture(scope='module')
def whole(folder):
  """Returns (table, folder) of an evaluation on eight devices."""
  return run(*flags(folder, 'whole', '--mesh=8,1,1')), folder / 'whole'


def written(out) -> dict[str, list[dict]]:
  return {
    p.name: records.finished(p) for p in sorted(out.glob('answers/*.jsonl'))
  }


def test_files_written_by_an_evaluation(whole, folder):
  text, out = whole
  found = written(out)
  assert len(found) == 2  # a file a model
  for rows in found.values():
    at = [(r['problem'], r['sample']) for r in rows]
    assert at == [(i, s) for i in range(24) for s in range(4)]
  results = json.loads((out / 'results.json').read_text())['results']
  for row, rows in zip(results, found.values()):
    right = [r['verdict']['score'] for r in rows if r['sample']]
    assert row['metrics']['pass@1']['value'] == pytest.approx(
      sum(right) / len(right)
    )
    cut = [r['at_budget']['2'] for r in rows if r['sample']]
    assert row['metrics']['budget_2/pass@1']['value'] == pytest.approx(
      sum(cut) / len(cut)
    )
  steps = [r['model'].rpartition('@')[2] for r in results]
  assert steps == ['2', '4'] and not results[0]['difference_to_first']
  first, second = (r['metrics']['pass@3']['value'] for r in results)
  difference = results[1]['difference_to_first']['pass@3']
  assert difference['value'] == pytest.approx(second - first)
  assert difference['low'] <= difference['value'] <= difference['high']
  assert text == (out / 'table.md').read_text()
  assert 'suite: 24 problems x 3 samples' in text and 'minus the first' in text
  assert (out / 'pass_at_k.png').stat().st_size > 5000


def test_sums_of_models_and_votes_over_temperatures(whole, folder):
  """Models are added by name, and samples of several temperatures vote."""
  name = f'rast:{folder}/run@2+{folder}/run@4+{folder}/run@2'
  given = flags(folder, 'rast', '--temperature=1,0.5')
  given[0] = f'--model={name},{folder}/run@4'
  text = run(*given)
  mixed, _, trained, _ = written(folder / 'rast').values()
  same = [a['completion'] == b['completion'] for a, b in zip(mixed, trained)]
  # Untrained + (trained - untrained) is trained, up to rounding.
  assert np.mean(same) > 0.95
  results = json.loads((folder / 'rast' / 'results.json').read_text())[
    'results'
  ]
  heats = [r['temperature'] for r in results]
  assert heats == [1.0, 0.5, 'all'] * 2
  assert results[0]['model'].endswith('*1') and '| all' in text
  assert '| maj@3 ' in text and '| maj@6 ' in text  # of one, and of all
  cold, pooled = results[1]['metrics'], results[2]['metrics']
  assert {'vote@6', 'maj@6', 'best@6'} <= {*pooled} and 'maj@6' not in cold
  mean = [r['metrics']['pass@1']['value'] for r in results[:2]]
  assert pooled['pass@1']['value'] == pytest.approx(np.mean(mean))
  assert pooled['greedy'] == results[0]['metrics']['greedy']
  with pytest.raises(ValueError, match='three models, and perhaps'):
    run(*flags(folder, 'bad', f'--model=rast:{folder}/run+{folder}/run'))


def test_each_temperature_has_its_own_noise(folder):
  """So `all` counts independent samples. Temperature 1 has the noise that it
  had before, and answers at others are not continued.
  """
  more = f'--model={folder}/run@2', '--temperature=1,1.001'
  run(*flags(folder, 'noise', *more))
  drawn = [
    [r['completion'] for r in rows if r['sample']]
    for rows in written(folder / 'noise').values()
  ]
  assert np.mean([a == b for a, b in zip(*drawn)]) < 0.1
  other, plain = sorted((folder / 'noise' / 'answers').glob('*.json'))
  assert 'noise' not in json.loads(plain.read_text())
  settings = json.loads(other.read_text())
  assert settings.pop('noise') == 't1.001'
  other.write_text(json.dumps(settings))
  with pytest.raises(ValueError, match="with noise=None, not 't1.001'; name"):
    run(*flags(folder, 'noise', *more))
  # Greedy answers alone have no noise, and are continued.
  assert cell_settings._noise(0, 1.001) == {}


def test_a_budget_is_forced_by_name(folder):
  """Answers of another budget are not continued."""
  model = f'--model={folder}/run@2'
  budget = model, '--k=4', '--least=4', '--wait=1', '--most=6', '--final=2'
  run(*flags(folder, 'forced', *budget))
  (rows,) = written(folder / 'forced').values()
  assert all(row['length'] > 4 for row in rows)
  long = [r['completion'] for r in rows if r['length'] > 6]
  assert long and all('2' in text for text in long)
  with pytest.raises(ValueError, match='was begun with least=4, not None'):
    run(*flags(folder, 'forced', model, '--k=4'))
  for more in ('--least=4', '--most=6'):
    with pytest.raises(ValueError, match='go together'):
      run(*flags(folder, 'none', model, more))
  for wrong in ('--least=-1', '--most=-1'):
    with pytest.raises(ValueError, match='must be a whole number'):
      run(*flags(folder, 'none', model, wrong))


def test_a_resumed_evaluation_draws_the_same_samples(whole, folder):
  """The evaluation is killed in the middle, and resumed on one device with
  other batches.
  """
  one = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  env = os.environ | {'XLA_FLAGS': one}
  command = [sys.executable, '-m', 'jaxrl_reason', 'evaluate']
  command += flags(folder, 'parts', '--batch=9', '--workers=1')
  process = subprocess.Popen(
    command, env=env, cwd=ROOT, stderr=subprocess.DEVNULL
  )
  out = folder / 'parts'
  while process.poll() is None and not any(written(out).values()):
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait()
  before = written(out)
  assert 0 < sum(map(len, before.values())) < 24 * 4  # less than half of all
  path = next(out.glob('answers/*.jsonl'))
  with path.open('a') as f:
    f.write('{"prompt": "1+')  # killed inside a line
  done = subprocess.run(
    command, env=env, cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr[-3000:]
  after = written(out)
  assert after[path.name][: len(before[path.name])] == before[path.name]
  for name, rows in written(whole[1]).items():
    for x, y in zip(rows, after[name], strict=True):
      for key in ('logp', 'entropy'):  # sums in another order
        assert x.pop(key) == pytest.approx(y.pop(key), abs=2e-3)
      assert x == y
  assert done.stdout.startswith(whole[0][:40])
  # Nothing is left to do: no model is loaded, and the output is equal.
  assert run(*flags(folder, 'parts')) == (out / 'table.md').read_text()


def test_an_object_store_holds_the_same(folder, monkeypatch, tmp_path):
  """Objects cannot be appended to. A stopped command resumes from its parts,
  and the final objects equal the files of a folder.
  """
  object_store.install(monkeypatch)
  asked = ['--suite=run:heldout?n=24', '--k=1', f'--model={folder}/run']
  asked += ['--batch=16', '--max_new=3', '--budgets=']
  run(*flags(folder, tmp_path), *asked)
  add, far = grown.add, epath.Path(f'gs://bucket/{tmp_path.name}')

  def full(path, before, rows):
    if before:
      raise OSError('gone')
    add(path, before, rows)

  monkeypatch.setattr(grown, 'add', full)
  with pytest.raises(OSError, match='gone'):
    run(*flags(folder, tmp_path), *asked, f'--out={far}')
  (part,) = far.glob('answers/*.parts/*.jsonl')
  monkeypatch.setattr(grown, 'add', add)
  text = run(*flags(folder, tmp_path), *asked, f'--out={far}')
  (here,), (there,) = (
    list(epath.Path(at).glob('answers/*.jsonl')) for at in (tmp_path, far)
  )
  assert there.read_text() == here.read_text() and not part.exists()
  assert text == (far / 'table.md').read_text()
  assert (far / 'pass_at_k.png').exists() and (far / 'results.json').exists()


def test_other_settings_are_refused(whole, folder):
  for more, says in (
    ('--k=4', 'k=3, not 4'),
    ('--seed=1', 'seed=0, not 1'),
    ('--max_new=5', 'max_new=8, not 5'),
    ('--budgets=3', r'budgets=\[2\], not \[3\]'),
  ):
    with pytest.raises(ValueError, match=f'was begun with {says}.*--out'):
      run(*flags(folder, 'whole'), more)


@pytest.mark.parametrize(
  'flag, says',
  [
    ('--k=-1', '--k=-1: must be'),
    ('--batch=0', '--batch=0: must be'),
    ('--temperature=0', '--temperature=0.0: must be a number above 0'),
    ('--temperature=x', "--temperature=x: 'x' is no float"),
    ('--temperature=1,1', 'asked for twice'),
    ('--top_p=0', '--top_p=0.0: must be'),
    ('--budgets=0', '--budgets=0: must be'),
    ('--budgets=2,,3', "--budgets=2,,3: '' is no int"),
    ('--prompt=nothing', "--prompt='nothing': choose one of own"),
    ('--prompt=chat', 'began from no folder'),
    ('--prompt=none+hint=0.5', r'\+hint needs a worked solution'),
    ('--prompt=none+shots=2', 'has no train split'),
    ('--prompt=boxed', 'problem 0: character .* is not in the alphabet'),
    ('--suite=task:nothing', 'unknown task'),
    ('--suite=run:left', "no split 'left', but heldout, harder"),
    ('--suite=', '--suite'),
    ('--model=nowhere', "model 'nowhere' is no folder"),
    ('--mesh=3,1,1', 'needs 3 devices'),
    ('--dtype=int8', "--dtype='int8': choose float32 or bfloat16"),
    ('--train=nowhere.jsonl', 'nowhere.jsonl does not exist'),
    ('--out=', '--out=: must be a folder'),
    ('--timeout_s=0', '--timeout_s=0.0: must be'),
  ],
)
def test_errors_are_one_line(folder, flag, says, tmp_path):
  with pytest.raises((ValueError, OSError), match=says) as error:
    run(*flags(folder, tmp_path / 'out'), flag)
  assert '\n' not in str(error.value)


def test_missing_checkpoints_are_refused(folder, tmp_path):
  for name, says in (
    ('run@3', r'no checkpoint of step 3: \[2, 4\]'),
    ('run@last', "the step 'last' is no whole number"),
  ):
    with pytest.raises(ValueError, match=says):
      run(*flags(folder, tmp_path), f'--model={folder}/{name}')
  (tmp_path / 'events.jsonl').write_text('{"event": "start"}\n')
  (tmp_path / 'config.json').write_text('{}')
  for name in (tmp_path, f'{tmp_path}@3'):
    with pytest.raises(ValueError, match=f'{tmp_path} has no checkpoint yet'):
      run(*flags(folder, tmp_path / 'out'), f'--model={name}')


def test_a_flag_that_does_not_exist_is_one_line(capsys):
  with pytest.raises(SystemExit):
    evaluate.parser().parse(['--model=x', '--suit=y', '--out=z'])
  said = capsys.readouterr().err
  assert said.startswith('error: ') and said.count('\n') == 1


def test_a_reward_that_always_fails_stops_with_its_name(folder, tmp_path):
  suite = f'--suite={folder}/suite.jsonl?question=q&answer=a'
  with pytest.raises(ValueError, match='broken raised KeyError'):
    run(*flags(folder, tmp_path), f'{suite}&verifier={folder}/mine.py:broken')


def test_contamination_is_refused_unless_allowed(folder, tmp_path):
  seen = tmp_path / 'seen.jsonl'
  seen.write_text('{"text": ["x", "3 + 1 ="]}\n')
  more = [f'--train={seen}', '--k=0']
  suite = f'--suite={folder}/suite.jsonl?question=q&answer=a'
  with pytest.raises(ValueError, match='4.17% of 24.*problem 2 with.*seen'):
    run(*flags(folder, tmp_path / 'a'), suite, *more)
  (hits,) = (tmp_path / 'a').glob('contamination*@2*.jsonl')
  assert json.loads(hits.read_text()) == {
    'problem': 2, 'where': f'{seen}:1', 'words': '3 + 1 =',
  }  # fmt: skip
  text = run(*flags(folder, tmp_path / 'b'), suite, *more,
             '--allow_contamination')  # fmt: skip
  assert '4.17% have words in common' in text
  found = json.loads((tmp_path / 'b' / 'results.json').read_text())['results']
  assert [r['contaminated'] for r in found] == [1 / 24] * 2
  assert 'pass@1' not in found[0]['metrics']  # --k=0: the greedy one alone


def test_missing_training_data(folder, tmp_path, monkeypatch):
  def gone(run):
    raise FileNotFoundError('data.dir=/gone is no file and no folder')

  monkeypatch.setattr(suites, 'training_of', gone)
  asked = ['--suite=run:heldout?n=2', '--k=0', f'--model={folder}/run']
  with pytest.raises(ValueError, match='cannot be compared.*/gone.*--allow'):
    run(*flags(folder, tmp_path), *asked)
  run(*flags(folder, tmp_path), *asked, '--allow_contamination')


def test_prompts_that_give_hints(folder, tmp_path):
  asked = ['--suite=run:heldout?n=4', '--k=1', f'--model={folder}/run']
  prompts = '--prompt=own,own+hint=0.7,none'
  run(*flags(folder, tmp_path), *asked, prompts, '--max_new=3')
  found = {r[0]['variant']: r for r in written(tmp_path).values()}
  assert set(found) == {'own', 'own+hint=0.7', 'none'}

  def said(name):
    return [r['completion'] for r in found[name]]

  assert said('own') == said('none')  # this run has no template
  assert said('own') != said('own+hint=0.7')


def test_penalties_and_biases_are_settings_of_the_answers(folder):
  """With a bias of 50, every answer has this token, also in chunks."""

  def ask(*more):
    given = [f'--model={folder}/run', f'--suite={folder}/suite.jsonl?question=q'
      f'&answer=a&verifier={folder}/mine.py:odd&n=2', '--k=1',
      f'--out={folder}/biased', '--max_new=6', *more]  # fmt: skip
    run(*given)
    (path,) = (folder / 'biased' / 'answers').glob('*.jsonl')
    found = records.finished(path)
    (about,) = path.parent.glob('*.json')
    about = json.loads(about.read_text())
    shutil.rmtree(folder / 'biased')
    return {r['completion'] for r in found}, about

  bias = '--logit_bias={"7": 50}'
  texts, about = ask(bias, '--presence_penalty=1')
  assert texts == {'777777'}
  assert about['logit_bias'] == {'7': 50} and about['presence_penalty'] == 1
  assert 'frequency_penalty' not in about
  chunks = '--chunk=4', '--carry=2'
  assert ask(bias, '--frequency_penalty=2', *chunks)[0] == {'777777'}
  texts, _ = ask(bias, '--repetition_penalty=99', *chunks)
  assert '777777' not in texts and all(x.startswith('7') for x in texts)


def test_answers_follow_a_grammar(folder):
  pytest.importorskip('outlines_core')
  regex = '[0-9]{1,3}#[0-9]'
  run(*flags(folder, 'grammar', f'--regex={regex}'))
  rows = [r for rows in written(folder / 'grammar').values() for r in rows]
  begun = re.compile('[0-9]{0,3}|[0-9]{1,3}#[0-9]?').fullmatch
  assert all(begun(r['completion']) for r in rows)
  assert sum(bool(re.fullmatch(regex, r['completion'])) for r in rows) > 20
  with pytest.raises(ValueError, match="was begun with grammar='.*', not None"):
    run(*flags(folder, 'grammar'))
  given = flags(folder, 'other', f'--regex={regex}', '--power=2', '--moves=1')
  with pytest.raises(ValueError, match='json_schema follow.*with --power'):
    run(*given)


def test_generate_and_grade_read_the_output_of_evaluate(
  whole, folder, tmp_path
):
  run(
    *flags(folder, tmp_path), '--suite=run:heldout?n=3', f'--model={folder}/run'
  )
  ((name, rows),) = written(tmp_path).items()
  graded = tmp_path / 'graded.jsonl'
  limits = dict(workers=1, timeout_s=5.0, memory_mb=1024)
  keys = 'completion', 'answer'
  source = str(tmp_path / 'answers' / name)
  grade.run(source, str(graded), 'task', keys, **limits)
  again = records.finished(graded)
  assert [r['verdict'] for r in again] == [r['verdict'] for r in rows]
  g = generate.load(
    str(folder / 'run'), 'float32', False, n_samples=1, max_new=8,
    sampling={'temperature': 0.0},
  )  # fmt: skip
  out = tmp_path / 'generated.jsonl'
  generate.to_file(g, source, out, batch=4)
  new = records.finished(out)
  # Greedy, problem by problem, as for sample 0.
  greedy = {r['prompt']: r['completion'] for r in rows if r['sample'] == 0}
  assert all(r['completion'] == greedy[r['prompt']] for r in new)
  assert 'verdict' not in new[0] and 'logp' not in new[0]
  grade.run(str(out), str(tmp_path / 'g2.jsonl'), 'task', keys, **limits)


@pytest.mark.parametrize(
  'more',
  [
    '--temperature=0.6', '--temperature=1,0.6', '--top_p=0.9', '--k=0',
    '--min_p=0.1', '--repetition_penalty=1.1', '--regex=[0-9]+',
  ],
)  # fmt: skip
def test_a_kl_is_only_measured_with_samples_of_the_model(folder, more):
  """The mean of log (policy / base) over other samples is no KL."""
  a = ['--model=x', '--suite=y', '--out=z', f'--base={folder}/run@2', more]
  o = evaluate.options(evaluate.parser().parse(a))
  suite = suites.load('task:arithmetic?n=2')
  with pytest.raises(ValueError, match='--base measures.*be combined with --'):
    for temperature in o.temperatures:
      cell_settings.of(
        o, f'{folder}/run@2', suite, prompts.parse('own'), temperature, {}
      )


def test_kl_to_a_base_is_that_of_a_forward_pass(folder, tmp_path):
  """The KL is 0 for the base itself. For another model it is that of a forward
  pass over whole rows.
  """
  run(
    *flags(folder, tmp_path), '--suite=run:heldout?n=4', '--temperature=1',
    f'--base={folder}/run@2',
  )  # fmt: skip
  found = json.loads((tmp_path / 'results.json').read_text())['results']
  kl = [r['metrics']['kl_base']['value'] for r in found]
  assert abs(kl[0]) < 1e-5 < 1e-3 < abs(kl[1])
  base = loading.load(f'{folder}/run@2', dtype='float32')
  rows = list(written(tmp_path).values())[1]
  for row in [r for r in rows if not r['truncated']][:3]:
    asked = base.tokenizer.encode(row['prompt'])
    said = base.tokenizer.encode(row['completion'])
    tokens = jnp.array([[*asked, *said, base.tokenizer.eos_ids[0]]])
    hidden = base.model.hidden(base.params, tokens, tokens >= 0)
    logp = jax.nn.log_softmax(base.model.unembed(base.params, hidden)[0], -1)
    at = jnp.arange(len(asked), tokens.shape[1])
    want = logp[at - 1, tokens[0, at]].sum()
    assert row['base_logp'] == pytest.approx(float(want), abs=1e-3)
  text = (tmp_path / 'table.md').read_text()
  assert 'kl_base' in text
  with pytest.raises(ValueError, match='was begun with base='):
    run(*flags(folder, tmp_path), '--suite=run:heldout?n=4')
  cells = answer_folders.read(tmp_path, 0, Blocks())
  changed, far = answer_folders.forgetting(cells)
  assert len(changed['figure']['data']) == 1  # a model against the first
  (bars,) = far['figure']['data']  # without the base itself
  assert bars['name'].endswith('run@2') and list(bars['x']) == [
    pytest.approx(kl[1], rel=1e-3)
  ]


def test_modified_files_of_answers_are_refused(whole, folder, tmp_path):
  shutil.copytree(whole[1], tmp_path / 'out')
  path = next((tmp_path / 'out' / 'answers').glob('*.jsonl'))
  path.write_text('not json\n' + path.read_text())
  with pytest.raises(ValueError, match=f'{path.name}:1: not JSON.*remove'):
    run(*flags(folder, tmp_path / 'out'))
  lines = path.read_text().split('\n')[1:]
  for changed, says in (
    ([lines[1], lines[0], *lines[2:]], ':1 is not sample 0 of problem 0'),
    ([*lines[:-1], lines[0], ''], ':97 is not sample 0 of problem 24'),
    ([lines[0].replace('"score"', '"sc"'), *lines[1:]], ':1: not written by'),
  ):
    path.write_text('\n'.join(changed))
    with pytest.raises(ValueError, match=f'{path.name}{says}.*remove'):
      run(*flags(folder, tmp_path / 'out'))
  path.with_suffix('.json').unlink()
  with pytest.raises(ValueError, match='exists without'):
    run(*flags(folder, tmp_path / 'out'))
