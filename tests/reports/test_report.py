"""Reports of successful, killed, diverged and empty runs, and their page in a
browser.
"""

import base64
import functools
import gzip
import html as html_lib
import json
import math
import re
import subprocess
import sys
import time

import chromium
import numpy as np
import pytest
from paths import ROOT

from jaxrl_reason import evaluate, report
from jaxrl_reason.evals import estimators
from jaxrl_reason.reports import (
  alarms,
  answer_folders,
  figures,
  missing,
  overview,
  panels,
  signs,
  state,
  workdirs,
)
from jaxrl_reason.reports import answer_pages as answers
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.run.records import evaluation_files

pytest.importorskip('plotly', reason='the extra report is not installed')


def jsonl(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def record(step, problem, sample, right, text='1 2 # 3', **more):
  n = len(text)
  return {
    'prompt': f'question {problem}?',
    'answer': '3',
    'problem': problem,
    'sample': sample,
    'completion': text,
    'length': n,
    'truncated': not right,
    'step': step,
    'stage': 'rl',
    'reward': float(right),
    'advantage': 1.0 if right else -1.0,
    'tokens': {
      'text': list(text),
      'logp': [-0.1 * i for i in range(n)],
      'entropy': [0.2 * (i % 3) for i in range(n)],
      'ratio': [1.0] * n,
    },
    'verdict': {
      'score': float(right),
      'status': 'parsed',
      'extracted': '3' if right else '4',
      'detail': None,
      'parts': {'answer': float(right), 'format': 1.0},
    },
  } | more


def workdir(path, seed=0, offset=0.0, steps=range(10, 100, 10), **config):
  """Writes the files of a run with two stages."""
  rows = [
    {'step': 5, 'stage': 'sft', 'train/loss': 1.0},
    {'step': 5, 'stage': 'sft', 'eval/heldout/pass@1': 0.2},
  ]
  for step in steps:
    rows.append(
      {
        'step': step,
        'stage': 'rl',
        'train/reward_mean': 0.3 + step / 200 + offset,
        'train/length_mean': 12.0,
        'train/entropy': 0.4,
        'perf/step_s': 0.1,
      }
    )
  rows.append({'step': steps[-1], 'stage': 'rl', 'eval/heldout/pass@1': 0.5})
  jsonl(path / 'metrics.jsonl', rows)
  (path / 'config.json').write_text(
    json.dumps({'seed': seed, 'stages': ['sft', 'rl'], 'rl': config})
  )
  jsonl(
    path / 'events.jsonl',
    [
      {'event': 'start', 'time': 1.0, 'step': 0, 'reached': 0},
      {'event': 'end', 'time': 2.0, 'how': 'finished'},
    ],
  )
  for step in steps:
    rows = [
      record(step, p, i, right=(p + i + step // 10) % 3 == 0)
      for p in range(4)
      for i in range(3)
    ]
    jsonl(path / 'rollouts' / f'{step:08d}.jsonl', rows)
  splits = ([3, 1, 0, 2], [4, 4, 0, 0])
  for step, stage, right in zip((5, steps[-1]), ('sft', 'rl'), splits):
    entry = {'samples': 4, 'greedy': [1, 0, 0, 1], 'right': right}
    row = {'step': step, 'stage': stage, 'splits': {'heldout': entry}}
    (path / 'evaluations').mkdir(exist_ok=True)
    (path / 'evaluations' / f'{step:08d}.json').write_text(json.dumps(row))
  return path


def answers_of(run):
  return answers.Reader(0, answers.Blocks()).read(run)


def write(*paths, out=None):
  """Returns the text of the report that the command writes."""
  out = out or paths[0].parent / 'out.html'
  args = report.parser().parse([*map(str, paths), f'--out={out}'])
  return report.run(args).read_text()


def set_field(page, field, value):
  """Sets a filter of the answers as a user does."""
  page.js(
    f"{{const e = document.getElementById('{field}'); e.value = '{value}';"
    "e.dispatchEvent(new Event(e.onchange ? 'change' : 'input'))}"
  )


def page_of(out):
  page = chromium.Page(out.as_uri())
  page.until('window.report && report.ready')
  return page


@pytest.mark.parametrize('n, right', [(4, 0), (4, 1), (4, 4), (64, 3), (5, 2)])
def test_pass_at_k_is_that_of_evaluations(n, right):
  for k in range(1, n + 1):
    got = passk.pass_at_k([right], n, k)[0]
    assert got == pytest.approx(estimators.pass_at_k(n, right, k), abs=1e-12)


def test_the_error_of_pass_at_1_is_that_of_a_mean_over_problems():
  right = [0, 1, 2, 4, 4, 0]
  (_, mean, error), *_ = passk.curve(right, 4)
  shares = np.array(right) / 4
  assert mean == pytest.approx(shares.mean())
  assert error == pytest.approx(shares.std(ddof=1) / math.sqrt(6))


def test_a_crossover_is_the_k_at_which_before_exceeds_after():
  line = [(1, 0.2, 0), (2, 0.3, 0), (4, 0.5, 0)]
  after = [(1, 0.4, 0), (2, 0.4, 0), (4, 0.45, 0)]
  assert passk.crossover(line, after) == 4
  assert passk.crossover(after, line) is None  # behind from the start
  assert passk.crossover(line, [(k, v + 0.1, e) for k, v, e in line]) is None


def test_problems_gained_and_lost():
  found = passk.changes([0, 0, 2, 1], [0, 3, 0, 4])
  assert found == {'kept': [3], 'gained': [1], 'lost': [2], 'neither': [0]}
  seen = answers.Support()
  # Problem 0 is lost once, and not at every later step.
  for step, right, want in ((1, 0, (1, 0)), (2, 1, (1, 1)), (3, 1, (0, 0))):
    rows = [record(step, p, 0, p == right) for p in (0, 1)]
    assert seen.add(rows) == want


@pytest.mark.parametrize(
  'values, span, low, high',
  [
    ([31.0, 31.05], 4, None, None),
    ([0.0, 0.0], 0.1, 0.0, None),
    ([0.5], 0.0, 0.0, 1.0),
    ([2.0, 9.0], 4, None, None),
    ([3.0], 0.0, None, None),
  ],
)
def test_an_axis_has_a_minimum_span(values, span, low, high):
  bottom, top = panels.spanned(values, span, low, high)
  assert bottom < min(values) and top > max(values)
  assert top - bottom >= span and top > bottom
  ends = [x for x in (low, high) if x is not None]
  assert all(bottom <= x <= top for x in ends)


def test_a_killed_run_is_reported_with_its_restart(tmp_path):
  path = workdir(tmp_path / 'run')
  jsonl(
    path / 'events.jsonl',
    [
      {'event': 'start', 'step': 0, 'reached': 0},
      {'event': 'start', 'step': 40, 'reached': 47},
      {'event': 'end', 'how': 'signal'},
      {'event': 'start', 'step': 60, 'reached': 60},
    ],
  )
  run = workdirs.read(path)
  assert [(b.at, b.reached, b.how) for b in state.breaks(run)] == [
    (40, 47, 'killed'),
    (60, 60, 'signal'),
  ]
  assert state.status(run)[0] == 'open'
  text = write(path)
  assert 'killed after step 47, gone on with from step 40' in text
  figure = figures.of_panel(panels.PANELS[1], [run])
  assert {40, 60} <= {s['x0'] for s in figure['layout']['shapes']}


def test_rollouts_after_the_last_checkpoint_are_not_shown(tmp_path):
  """A resumed run will repeat these steps."""
  path = workdir(tmp_path / 'run')
  rows = [json.loads(x) for x in (path / 'metrics.jsonl').open()]
  jsonl(path / 'metrics.jsonl', [r for r in rows if r['step'] <= 40])
  with (path / 'metrics.jsonl').open('a') as f:
    f.write('{"step": 50, "sta')
  run = workdirs.read(path)
  assert [int(p.stem) for p in run.rollouts] == [10, 20, 30, 40]
  assert [e['step'] for e in run.evaluations] == [5]


def test_a_diverged_run_is_reported_and_drawn(tmp_path):
  path = workdir(tmp_path / 'run')
  how = 'FloatingPointError: NaN or infinity in or before step 90'
  jsonl(path / 'events.jsonl', [{'event': 'start', 'step': 0, 'reached': 0},
                                {'event': 'end', 'how': how}])  # fmt: skip
  with (path / 'metrics.jsonl').open('a') as f:
    bad = {'step': 95, 'stage': 'rl', 'train/entropy': math.nan}
    f.write(json.dumps(bad | {'train/grad_norm': math.inf}) + '\n')
  text = write(path)
  assert how in text and 'dot bad' in text
  data = re.search('type="application/json">(.*?)</script>', text, re.S)[1]
  assert 'NaN' not in data and 'Infinity' not in data
  json.loads(data)


@pytest.mark.parametrize('files', [['config.json'], ['config.json', 'metrics']])
def test_a_run_without_metrics_has_a_report(tmp_path, files):
  path = tmp_path / 'empty'
  path.mkdir()
  for name in files:
    (path / name.replace('metrics', 'metrics.jsonl')).write_text(
      '{}' if 'config' in name else ''
    )
  text = write(path)
  assert 'nothing was told' in text and 'No metrics were told' in text


def evaluation(path, right_of, samples=4):
  """Returns answers of two models to one suite; right_of: model -> correct
  ones.
  """
  for model, counts in right_of.items():
    rows = [
      record(0, p, i, 0 < i <= n, model=model, suite='gsm8k', variant='own')
      | {'temperature': float(i > 0)}
      for p, n in enumerate(counts)
      for i in range(samples + 1)
    ]
    for row in rows:
      del row['step'], row['stage'], row['tokens'], row['advantage']
      row['conversation'] = [
        {'role': 'policy', 'content': '<<1+1='},
        {'role': 'environment', 'content': '2>>'},
        {'role': 'policy', 'content': '1 2 # 3'},
      ]
    jsonl(path / 'answers' / f'{model}--gsm8k.jsonl', rows)
  return path


def test_evaluations_are_compared(tmp_path):
  path = evaluation(
    tmp_path / 'ev', {'base': [2, 1, 1, 1], 'tuned': [4, 4, 0, 0]}
  )
  cells = answer_folders.read(path, 0, answers.Blocks())
  # The greedy answer is not a sample.
  assert [(c.model, c.samples, c.right) for c in cells] == [
    ('base', 4, {0: 2, 1: 1, 2: 1, 3: 1}),
    ('tuned', 4, {0: 4, 1: 4, 2: 0, 3: 0}),
  ]
  (figure,) = answer_folders.pass_at_k(cells)
  assert figure['notes'] == ['base is ahead of tuned from k = 2']
  (panel,) = answer_folders.forgetting(cells)
  (bars,) = panel['figure']['data']
  # 5/16 right before, 8/16 after; the changes are 2, 3, -1, -1 quarters.
  assert bars['name'] == 'tuned' and bars['x'] == [0.1875]
  assert bars['error_x']['array'] == [pytest.approx(0.5154 / 2, rel=1e-3)]
  assert panel['notes'] == ['tuned, gsm8k, own, T 1: +0.1875 ± 0.2577']
  (changes,) = answer_folders.support(cells)
  assert changes['notes'] == ['lost: question 2? · question 3?']
  text = write(path)  # no run beside it
  assert 'gsm8k' in text and 'No metrics were told' not in text
  page = page_of(tmp_path / 'out.html')
  assert page.js('report.shown') == 40
  page.js('report.choose(1)')
  page.until("document.querySelector('#detail dl') !== null")
  assert page.js(
    "[...document.querySelectorAll('#detail .turn')]"
    '.map(x => [x.dataset.role, x.textContent])'
  ) == [
    ['prompt', 'question 0?'], ['policy', '<<1+1='], ['environment', '2>>'],
    ['policy', '1 2 # 3'],
  ]  # fmt: skip
  assert page.errors == []
  page.close()
  # The same file of answers is reported beside a run.
  text = write(path, workdir(tmp_path / 'run'))
  assert 'solved by any of 4' in text and 'finished at step' in text


def test_the_kl_to_the_base_is_drawn(tmp_path):
  """Nats per token over all tokens, and its error over problems."""
  path = evaluation(tmp_path / 'ev', {'tuned': [1, 2, 3]}, samples=2)
  file = path / 'answers' / 'tuned--gsm8k.jsonl'
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  nats, tokens = np.array([1.0, 5.0, 0.0]), np.array([4.0, 10.0, 6.0])
  for row in rows:
    i = row['problem']
    # The greedy answer is not sampled from the policy.
    row |= {'length': int(tokens[i]) // 2, 'logp': -3.0, 'base_logp': -9.0}
    if row['sample']:
      row['base_logp'] = -3.0 - nats[i] / 2
  jsonl(file, rows)
  file.with_suffix('.json').write_text('{"base": "runs/a@5"}')
  (panel,) = answer_folders.forgetting(
    answer_folders.read(path, 0, answers.Blocks())
  )
  (bars,) = panel['figure']['data']
  assert bars['name'] == 'tuned to runs/a@5'
  assert bars['x'] == [pytest.approx(6 / 20)]
  # The jackknife, which is another estimator of the same error.
  left = [
    np.delete(nats, i).sum() / np.delete(tokens, i).sum() for i in range(3)
  ]
  error = np.sqrt(2 / 3 * ((left - np.mean(left)) ** 2).sum())
  assert bars['error_x']['array'][0] == pytest.approx(error, rel=0.2)
  assert panel['notes'] == [
    'tuned to runs/a@5, gsm8k, own, T 1: +0.3000 ± 0.1652'
  ]


def test_an_empty_panel_names_the_command_that_fills_it(tmp_path):
  """The command has the run's path, and the step before its last stage."""
  run = workdir(tmp_path / 'run')
  text = html_lib.unescape(write(run))
  before = f'{run}@5'
  command = (
    f'jaxrl evaluate --model={before},{run} --base={before} '
    f'--suite=run:heldout --k=16 --out=evals/run && '
    f'jaxrl report {run} evals/run'
  )
  assert text.count(command) == 1 and missing.WHY['forgetting'] in text
  args = evaluate.parser().parse(command.split(' && ')[0].split()[2:])
  assert args.base == before
  text = write(evaluation(tmp_path / 'ev', {'a b': [1], 'tuned': [0]}))
  assert '--model=BEFORE,WORKDIR' not in text
  text = write(evaluation(tmp_path / 'alone', {'tuned': [0]}))
  assert '--model=BEFORE,WORKDIR' in text
  bare = tmp_path / 'it is new'
  bare.mkdir()
  (bare / 'config.json').write_text('{"model_dir": "smol lm"}')
  (run,) = [workdirs.read(bare)]
  assert f"'--model=smol lm,{bare}'" in missing.commands([run])


def test_an_unfinished_evaluation_counts_complete_problems(tmp_path):
  path = evaluation(tmp_path / 'ev', {'base': [2, 1, 3]})
  file = path / 'answers' / 'base--gsm8k.jsonl'
  lines = file.read_text().splitlines(keepends=True)
  file.write_text(''.join(lines[:-1]) + lines[-1][:20])
  (cell,) = answer_folders.read(path, 0, answers.Blocks())
  assert cell.right == {0: 2, 1: 1}


def test_a_path_that_is_not_a_workdir_is_named(tmp_path, capsys):
  with pytest.raises(SystemExit, match='1'):
    report.main([str(tmp_path / 'nowhere')])
  told = capsys.readouterr().err
  assert 'nowhere is no workdir' in told and 'Traceback' not in told


def test_damaged_lines_are_left_out(tmp_path, caplog):
  path = workdir(tmp_path / 'run')
  with (path / 'rollouts' / '00000010.jsonl').open('a') as f:
    f.write('{"problem": 1, \n[1]\n{"step": 10}\n')
  run = workdirs.read(path)
  assert len(answers.records(run.rollouts[0])) == 12
  assert '00000010.jsonl, line 13' in caplog.text


DAMAGE = {
  'metrics.jsonl': b'{"step": "x", "stage": "rl"}\n{"step": 3}\n[]\n\xff\xfe\n',
  'events.jsonl': b'{"event": 3}\n{"event": "start", "step": "x"}\n7\n',
  'rollouts/00000020.jsonl': b'{"completion": 3, "problem": "a", "sample": 0,'
  b' "length": 1}\n{"completion": "a", "problem": 1, "sample": 0, "length": 1,'
  b' "verdict": 3, "tokens": 4}\n{"completion": "a", "problem": 1,'
  b' "sample": 0, "length": 1, "conversation": {"role": "policy"}}\n\xff{"a"',
  'evaluations/00000040.json': b'{"step": 40}',
  'evaluations/00000050.json': b'[1',
}


def test_damaged_files_do_not_prevent_a_report(tmp_path):
  path = workdir(tmp_path / 'run')
  whole = workdirs.read(path)
  for name, data in DAMAGE.items():
    with (path / name).open('ab') as f:
      f.write(data)
  assert 'finished at step' in write(path)
  run = workdirs.read(path)
  assert run == whole
  assert {len(answers.records(file)) for file in run.rollouts} == {12}
  (path / 'config.json').write_text('[]')
  assert workdirs.read(path).config == {}


def test_seeds_are_one_line_with_a_band(tmp_path):
  paths = [workdir(tmp_path / f's{i}', i, 0.1 * i) for i in range(3)]
  paths.append(workdir(tmp_path / 'other', 0, 0.0, kl=0.1))
  runs = [workdirs.read(p) for p in paths]
  assert [len(g) for g in state.seeds(runs)] == [3, 1]
  for run in runs:  # as in a study
    run.config['init_from'] = f'warm/x--s{run.config["seed"]}'
  assert [len(g) for g in state.seeds(runs)] == [3, 1]
  figure = figures.of_panel(panels.PANELS[1], runs)
  named = [t for t in figure['data'] if 'name' in t]
  assert [t['name'] for t in named] == [
    's0 (+2 seeds) reward_mean', 'other reward_mean',
  ]  # fmt: skip
  want = 0.3 + 10 / 200 + 0.1  # the mean of three
  assert named[0]['y'][0] == pytest.approx(want)
  # Steps are counted from where reinforcement began.
  assert named[0]['x'][0] == 5
  bands = [t for t in figure['data'] if 'fill' in t]
  assert len(bands) == 1 and max(bands[0]['y']) > max(named[0]['y'])
  assert state.differing(runs)[-1][0] == 'rl.kl'


def test_signs_of_bad_answers_are_found():
  assert signs.repeats('so it is 3 and ' * 30)
  assert not signs.repeats('1 2 # 3')
  assert signs.answers_early(r'\boxed{3} because one and two are three')
  assert not signs.answers_early(r'one and two are three, so \boxed{3}')
  assert signs.format_only({'format': 1.0, 'answer': 0.0})
  assert not signs.format_only({'format': 1.0, 'answer': 1.0})
  assert signs.disagree({'math': 1.0, 'exact': 0.0, 'format': 1.0})
  assert not signs.disagree({'math': 1.0, 'format': 0.0})
  assert not signs.disagree({'math': 1.0, 'env': -0.05, 'short': 0.4})
  assert not signs.disagree({'math': 1.0, 'env': 0.0})
  assert not signs.disagree({'answer': 0.0, 'short': 1.0, 'random': 1.0})
  assert signs.disagree({'answer': 0.0, 'host': 1.0, 'short': 1.0})
  parts = {'format': 1.0, 'math': 0.0, 'exact': 1.0}
  for status, found in (('parsed', True), ('timeout', False)):
    verdict = {'score': 0.0, 'status': status, 'parts': parts}
    row = {'completion': 'x', 'problem': 0, 'length': 1, 'verdict': verdict}
    assert signs.of(row)['disagree'] == found
    step = answers._of_step(0, [row])
    assert bool(step.parts) == found


def test_rising_metrics_raise_alarms(tmp_path):
  path = workdir(tmp_path / 'run')
  for step in (70, 80, 90):
    rows = [record(step, p, 0, False, 'say it again and ' * 20) for p in (0, 1)]
    jsonl(path / 'rollouts' / f'{step:08d}.jsonl', rows)
  run = workdirs.read(path)
  steps = answers_of(run).steps
  on = {a.name for a in alarms.of(run, steps) if a.on}
  assert (
    'repeated completions' in on and 'format passes while answers fail' in on
  )
  assert 'verifiers disagree' not in on


def test_a_fall_of_pass_at_k_is_an_alarm(tmp_path):
  path = workdir(tmp_path / 'run')
  for step, right in ((5, [1] * 30), (90, [4] * 15 + [0] * 15)):
    file = path / 'evaluations' / f'{step:08d}.json'
    row = json.loads(file.read_text())
    row['splits']['heldout']['right'] = right
    file.write_text(json.dumps(row))
  found = alarms.of(workdirs.read(path), [])[0]
  assert found.on and '-0.500' in found.evidence
  assert figures.pass_at_k([workdirs.read(path)])[0]['notes'] == [
    'run: before is ahead from k = 4'
  ]


def test_problems_are_named_by_their_texts(tmp_path):
  path = workdir(tmp_path / 'run')
  texts = ['what is 3 + 4?', 7, 'how many apples?']  # one is damaged
  file = path / 'evaluations' / 'problems.json'
  file.write_text(json.dumps({'heldout': texts, 'harder': 3}))
  run = workdirs.read(path)
  figure = figures.of_support([run], [answers_of(run)])
  # 3, 1, 0, 2 of 4 samples before and 4, 4, 0, 0 after.
  assert figure[0]['notes'] == ['lost: problem 3']
  swapped = json.loads((path / 'evaluations' / '00000090.json').read_text())
  swapped['splits']['heldout']['right'] = [0, 0, 2, 1]
  (path / 'evaluations' / '00000090.json').write_text(json.dumps(swapped))
  run = workdirs.read(path)
  figure = figures.of_support([run], [answers_of(run)])
  assert figure[0]['notes'] == [
    'gained: how many apples?',
    'lost: what is 3 + 4? · problem 1',
  ]


def test_texts_are_escaped(tmp_path):
  evil = '</script><script>throw Error("out")</script>'
  path = workdir(tmp_path / evil.replace('/', '_'), note=evil)
  rows = [record(10, 0, 0, False, evil, prompt=evil)]
  jsonl(path / 'rollouts' / '00000010.jsonl', rows)
  out = tmp_path / 'out.html'
  assert evil not in write(path, out=out)
  page = page_of(out)
  page.js('report.choose(0)')
  page.until('report.painted > 0')
  assert page.js("document.querySelector('.tokens').textContent") == evil
  assert page.errors == []
  page.close()


def test_the_page_in_a_browser(tmp_path):
  """The page draws, filters, groups and colours without network requests."""
  paths = [workdir(tmp_path / 'a'), workdir(tmp_path / 'b', kl=0.5)]
  rows = [record(10, 0, 0, True)]
  rows[0]['tokens'] |= {
    'sampled': [i != 4 for i in range(7)],
    'turn': [0] * 5 + [1] * 2,
    'advantage': [0.5, -0.5, 0, 0, 0, 0, 0],
  }
  jsonl(paths[0] / 'rollouts' / '00000010.jsonl', rows)
  out = tmp_path / 'out.html'
  write(*paths, out=out)
  page = page_of(out)
  n = 1 + 8 * 12 + 9 * 12
  assert page.js('report.shown') == n
  page.js("document.querySelector('#curves').scrollIntoView()")
  page.until("document.querySelectorAll('.figure .main-svg').length > 3")

  chosen = functools.partial(set_field, page)
  chosen('f-run', 1)
  page.until(f'report.shown === {9 * 12}')
  chosen('f-right', 1)
  page.until(f'report.shown === {9 * 4}')
  page.js('report.only(7)')  # an answer to question 2
  page.until(f'report.shown === {9}')
  chip = "document.getElementById('f-problem')"
  assert page.js(f'{chip}.textContent') == '✕ question 2?'
  page.js(f'{chip}.click()')
  for field in ('f-run', 'f-right'):
    chosen(field, '')
  page.until(f'report.shown === {n}')
  chosen('search', 'QUESTION 3')
  page.until(f'report.shown === {3 * (8 + 9)}')
  chosen('search', '')
  page.until(f'report.shown === {n}')
  page.js("document.getElementById('group').click()")
  head = "document.querySelector('#list .head')"
  page.until(f"{head} && {head}.textContent.includes('question 0?')")
  page.js('report.choose(0)')
  page.until('report.painted === 7')
  spans = "[...document.querySelectorAll('.tokens span')]"
  assert page.js(f"{spans}.map(s => s.classList.contains('env'))") == [
    False, False, False, False, True, False, False,
  ]  # fmt: skip
  turns = "[...document.querySelectorAll('#detail .turn')]"
  shown = page.js(f'{turns}.map(x => [x.dataset.role, x.textContent])')
  assert shown == [
    ['prompt', 'question 0?'],
    ['policy', '1 2 '],
    ['environment', '#'],
    ['policy', ' 3'],
  ]
  before = page.js(f'{spans}.map(s => s.style.background)')
  # Green above 0, red below, nothing at 0.
  assert '150' in before[0] and '38' in before[1] and before[4] == ''
  page.js("document.querySelector('.by button[data-by=entropy]').click()")
  assert page.js(f'{spans}.map(s => s.style.background)') != before
  assert page.errors == []
  assert page.requests == [out.as_uri()]
  page.close()


def test_the_first_screen_shows_whether_a_run_learns(tmp_path):
  path = workdir(tmp_path / 'run')
  for step, text in ((5, '3 # 4'), (90, '1 2 # 3')):
    rows = [record(step, 0, i, text == '1 2 # 3', text) for i in range(2)]
    rows += [record(step, 1, i, False, '9') for i in range(2)]
    stage = {'stage': 'sft' if step == 5 else 'rl'}
    jsonl(path / 'samples' / f'{step:08d}.jsonl', [r | stage for r in rows])
  rows = [json.loads(x) for x in (path / 'metrics.jsonl').open()]
  for row in rows:
    if 60 <= row['step'] < 90 or row['step'] == 90 and 'train/entropy' in row:
      row['train/truncated'] = 0.9
  jsonl(path / 'metrics.jsonl', rows)
  text = html_lib.unescape(write(path))
  first, _, rest = text.partition('<section id="runs">')
  first = first.partition('<section id="overview">')[2]
  # 6 and 8 of 16 samples: two problems gained, one lost, one changed.
  assert 'class="verdict open"' in first
  assert '2 alarms; no measurable progress (heldout pass@1 0.375 to' in first
  assert first.count('data-key="curves"') == 2
  assert 'completions at the limit of their length</b>, from step 80' in first
  assert 'raise data.completion_len' in first
  titles = re.findall('<h3>(.*?)</h3>', first)
  assert titles[:2] == ['before, step 5: wrong', 'now, step 90: right']
  assert re.match('worst, step 90: wrong', titles[2])
  turns = re.findall('data-role="(.*?)">(.*?)</div>', first)
  assert turns[:2] == [('prompt', 'question 0?'), ('policy', '3 # 4')]
  assert turns[2:4] == [('prompt', 'question 0?'), ('policy', '1 2 # 3')]
  assert '<table' not in first and 'not raised' in rest


@pytest.mark.parametrize(
  'right, how, kind, said',
  [
    (
      ([0] * 8, [4] * 6 + [0] * 2),
      'finished',
      'ok',
      'Healthy; it learns (held',
    ),
    (([4] * 8, [0] * 6 + [4] * 2), 'finished', 'bad', 'it gets worse (heldout'),
    (([0] * 8, [4] * 6 + [0] * 2), 'ValueError: x', 'bad', 'Failed; it learns'),
    (None, 'finished', 'ok', 'Healthy; it learns (reward 0.400 to 0.700)'),
  ],
)
def test_verdicts(tmp_path, right, how, kind, said):
  path = workdir(tmp_path / 'run')
  for i, step in enumerate((5, 90)):
    file = path / 'evaluations' / f'{step:08d}.json'
    row = json.loads(file.read_text())
    if right is None:
      file.unlink()
    else:
      row['splits']['heldout']['right'] = right[i]
      file.write_text(json.dumps(row))
  jsonl(path / 'events.jsonl', [{'event': 'start', 'step': 0, 'reached': 0},
                                {'event': 'end', 'how': how}])  # fmt: skip
  found = overview.verdict(workdirs.read(path), [])
  assert found[0] == kind and said in found[1]


def test_a_run_that_failing_rewards_stop_raises_their_alarm(tmp_path):
  path = workdir(tmp_path / 'run')
  how = 'RewardFailed: 61 of 64 rewards of 4 steps are invalid'
  jsonl(path / 'events.jsonl', [{'event': 'end', 'how': how}])
  first, *_ = alarms.of(workdirs.read(path), [])
  assert first.on and (first.name, first.since) == ('rewards that fail', 90)
  assert first.evidence == '61 of 64 rewards of 4 steps are invalid'


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_a_narrow_page_opens_on_a_conversation(tmp_path, scheme):
  path = workdir(tmp_path / ('a_long_name_' * 8))
  out = tmp_path / 'out.html'
  write(path, out=out)
  page = chromium.Page('about:blank')
  size = {'width': 400, 'height': 800, 'deviceScaleFactor': 1, 'mobile': True}
  page.call('Emulation.setDeviceMetricsOverride', **size)
  features = [{'name': 'prefers-color-scheme', 'value': scheme}]
  page.call('Emulation.setEmulatedMedia', features=features)
  page.call('Page.navigate', url=out.as_uri())
  page.until(
    "window.report && report.ready && document.querySelector('.main-svg')"
  )
  assert page.js('document.documentElement.scrollWidth') <= 400
  page.until('report.painted > 0')
  roles = (
    "[...document.querySelectorAll('#detail .turn')].map(x => x.dataset.role)"
  )
  assert page.js(roles) == ['prompt', 'policy']
  light = '{f} => (([r, g, b]) => r + g + b)(f.match(/[0-9.]+/g).map(Number))'
  style = 'getComputedStyle(document.body)'
  brightness = f'({light.replace("{f}", "f")})'
  ink, ground = (
    page.js(f'{brightness}({style}.{k})') for k in ('color', 'backgroundColor')
  )
  figure = "document.querySelector('.figure .main-svg')"
  plot = page.js(f'{brightness}({figure}.style.background)')
  if scheme == 'dark':
    assert ink > 500 and ground < 200 and plot < 200
  else:
    assert ink < 200 and ground > 500 and plot > 500
  assert page.errors == []
  page.close()


def test_answers_are_filtered_by_ranges_and_problem(tmp_path):
  path = workdir(tmp_path / 'run', steps=range(10, 60, 10))
  rows = [
    record(40, p, i, True, 'x' * (3 + p), reward=i / 4)
    for p in range(4)
    for i in range(5)
  ]
  jsonl(path / 'rollouts' / '00000040.jsonl', rows)
  write(path, out=tmp_path / 'out.html')
  page = page_of(tmp_path / 'out.html')
  ends = ('step-from', 40), ('step-to', 40), ('reward-from', 0.5)
  for (field, value), n in zip((*ends, ('length-to', 4)), (32, 20, 12, 6)):
    set_field(page, field, value)
    page.until(f'report.shown === {n}')
  set_field(page, 'f-prompt', 'QUESTION 1')
  page.until('report.shown === 3')
  set_field(page, 'reward-from', 0.51)  # the ends belong to a range
  page.until('report.shown === 2')
  page.close()


def test_two_runs_are_compared_on_the_problems_of_both(tmp_path):
  paths = [workdir(tmp_path / name, steps=[10]) for name in 'ab']
  for path, problems, right in zip(paths, ((0, 1, 2), (1, 2, 3)), (1, 2)):
    rows = [
      record(10, p, i, p == right, f'{path.name} {p} {i}')
      for p in problems
      for i in range(2)
    ]
    jsonl(path / 'rollouts' / '00000010.jsonl', rows)
  write(*paths, out=tmp_path / 'out.html')
  page = page_of(tmp_path / 'out.html')
  set_field(page, 'f-other', 1)  # beside the first run, if none is chosen
  page.until("document.querySelectorAll('.column').length === 2")
  count = "document.getElementById('count').textContent"
  assert page.js(count) == '2 problems in both runs'
  columns = "[...document.querySelectorAll('.column')]"
  texts = "[...x.querySelectorAll('.turn')].map(y => y.textContent)"
  titles = page.js(f"{columns}.map(x => x.querySelector('h3').textContent)")
  assert titles == ['a: 2 of 2 right', 'b: 0 of 2 right']
  shown = page.js(f'{columns}.map(x => {texts})')
  assert shown == [['a 1 1', 'a 1 0'], ['b 1 1', 'b 1 0']]  # newest first
  left, right = page.js(f'{columns}.map(x => x.getBoundingClientRect().left)')
  assert right > left + 100
  page.js("document.querySelectorAll('#list .row')[1].click()")
  page.until(f"{columns}[1].textContent.includes('b: 2 of 2 right')")
  page.js(f"{columns}[1].querySelector('.turn').click()")
  page.until("document.querySelector('.tokens')?.textContent === 'b 2 1'")
  assert page.errors == []
  page.close()


@pytest.mark.slow
def test_100_mb_of_rollouts_open_in_5_seconds(tmp_path):
  path = workdir(tmp_path / 'run', steps=range(1, 41))
  rng, size, n = np.random.default_rng(0), 0, 0
  for step in range(1, 41):
    rows = []
    for i in range(64):
      t = 400
      row = record(step, i // 8, i % 8, i % 3 == 0, 'x' * t)
      row['completion'] = ' '.join(map(str, rng.integers(0, 99, t)))
      row['tokens'] = {
        'text': [f' {x}' for x in rng.integers(0, 99, t)],
        **{
          k: rng.normal(size=t).round(4).tolist()
          for k in ('logp', 'entropy', 'ratio', 'ref_logp', 'advantage')
        },
        'turn': [0] * t,
      }
      rows.append(row)
    jsonl(path / 'rollouts' / f'{step:08d}.jsonl', rows)
    n += len(rows)
  found = sorted((path / 'rollouts').iterdir())
  size = sum(p.stat().st_size for p in found)
  copies = math.ceil(100e6 / size)
  for i in range(1, copies):
    for p in found:
      p.with_name(f'{int(p.stem) + 40 * i:08d}.jsonl').write_bytes(
        p.read_bytes()
      )
  with (path / 'metrics.jsonl').open('a') as f:
    f.write(json.dumps({'step': 40 * copies, 'stage': 'rl'}) + '\n')
  assert sum(p.stat().st_size for p in (path / 'rollouts').iterdir()) > 100e6
  out, begun = tmp_path / 'out.html', time.monotonic()
  args = [sys.executable, '-m', 'jaxrl_reason', 'report', str(path)]
  subprocess.run([*args, f'--out={out}'], check=True, cwd=ROOT)
  print(f'written in {time.monotonic() - begun:.1f} s: {out.stat().st_size:,}')
  page = page_of(out)
  assert page.js('report.shown') == n * copies
  # Milliseconds since the browser began to open the file, by its own clock.
  took = page.js('report.took')
  print(f'opened in {took:.0f} ms')
  assert took < 5000
  # The rows in sight only.
  assert page.js("document.querySelectorAll('#list .row').length") < 100
  page.js(f'report.choose({n * copies - 1})')
  page.until('report.painted === 400')
  assert page.errors == []
  page.close()


def test_panels_of_rl_have_named_and_repeated_stages(tmp_path):
  (panel,) = (p for p in panels.PANELS if 'train/kl' in p.names)
  assert panel.stage == 'rl'
  rows = [
    {'step': i, 'stage': stage, 'train/kl': float(i)}
    for i, stage in enumerate(('sft', 'rl', 'rl#2', 'short', 'short#2'))
  ]
  path = workdir(tmp_path / 'a')
  jsonl(path / 'metrics.jsonl', rows)
  run = workdirs.read(path)
  run.config['named.short.kind'] = 'rl'
  (line,) = (t for t in figures.of_panel(panel, [run])['data'] if 'name' in t)
  assert line['x'] == [1, 2, 3, 4]


def test_an_error_band_ends_with_its_line(tmp_path):
  """A file of a step that a resumed run will repeat has no band."""
  path = workdir(tmp_path / 'a')
  entry = {'samples': 4, 'greedy': [1] * 4, 'right': [4] * 4}
  row = {'step': 50, 'stage': 'rl', 'splits': {'heldout': entry}}
  (path / 'evaluations' / '00000050.json').write_text(json.dumps(row))
  figure = figures.of_panel(panels.PANELS[0], [workdirs.read(path)])
  band, line = figure['data'][:2]
  assert line['x'] == [5, 90] and {*band['x']} == {5, 90}


def test_the_band_of_fractions_is_around_its_line(tmp_path):
  """`greedy` is a mean score, also of verifiers that return fractions."""
  path, scores = workdir(tmp_path / 'a'), [0.4, 0.6, 1.0, 0.3]
  rows = [
    {'problem': i, 'sample': j, 'verdict': {'score': score}}
    for i, score in enumerate(scores)
    for j in range(3)
  ]
  entry = evaluation_files.counted(rows)
  assert entry['right'] == [0, 2, 2, 0]
  row = {'step': 5, 'stage': 'sft', 'splits': {'heldout': entry}}
  (path / 'evaluations' / '00000005.json').write_text(json.dumps(row))
  run = workdirs.read(path)
  name = 'eval/heldout/greedy'
  _, low, high = figures._errors(run, figures.Origin([run]), name)
  assert (low[0] + high[0]) / 2 == pytest.approx(np.mean(scores))


def test_a_report_of_numbers_that_are_not_finite(tmp_path):
  """The rollouts of a diverged run, and a completion with half a character."""
  path = workdir(tmp_path / 'run', steps=[10, 20])
  row = record(20, 0, 0, False, 'ab \ud800', reward=math.nan)
  row['advantage'] = math.inf
  row['tokens'] |= {
    k: [math.nan] * 4 for k in ('logp', 'entropy', 'ratio', 'ref_logp')
  }
  row['verdict'] |= {'score': math.nan, 'parts': {'answer': math.nan}}
  jsonl(path / 'rollouts' / '00000020.jsonl', [row])
  text = write(path)
  blocks = re.findall('type="text/plain">(.*?)</script>', text, re.S)
  trees = [json.loads(x, parse_constant=refuse) for x in map(unpacked, blocks)]
  assert len(blocks) == 3 and all(trees)
  assert trees[-1][-1]['entropy'] == [None] * 4


def unpacked(block):
  return gzip.decompress(base64.b64decode(block))


def refuse(constant):
  raise ValueError(f'{constant} is no JSON')


def test_pass_at_1_of_each_source_is_drawn(tmp_path):
  path = workdir(tmp_path / 'a')
  name = 'eval/heldout/gsm8k/pass'
  row = {'step': 90, 'stage': 'rl', f'{name}@1': 0.5, f'{name}@4': 0.75}
  with (path / 'metrics.jsonl').open('a') as f:
    f.write(json.dumps(row) + '\n')
  titles = [
    x['figure']['layout']['title']['text']
    for x in figures.curves([workdirs.read(path)])
  ]
  assert f'{name}@1' in titles and f'{name}@4' not in titles


def test_records_of_an_earlier_attempt_are_not_shown(tmp_path):
  """It evaluated every 20 steps and died at 90; this one, every 50, is at
  85.
  """
  path = workdir(tmp_path / 'a')
  rows = [
    {'step': i, 'stage': 'rl', 'train/loss': 1.0} for i in range(5, 90, 5)
  ]
  rows += [
    {'step': i, 'stage': 'rl', 'eval/heldout/pass@1': 0.5} for i in (0, 50)
  ]
  jsonl(path / 'metrics.jsonl', sorted(rows, key=lambda row: row['step']))
  entry = {'samples': 1, 'greedy': [1], 'right': [1]}
  for step in (0, 20, 40, 50, 60, 80):
    row = {'step': step, 'stage': 'rl', 'splits': {'heldout': entry}}
    jsonl(path / 'evaluations' / f'{step:08d}.json', [row])
    jsonl(path / 'samples' / f'{step:08d}.jsonl', [record(step, 0, 0, 1)])
  run = workdirs.read(path)
  assert [e['step'] for e in run.evaluations] == [0, 50]
  assert [int(p.stem) for p in run.samples] == [0, 50]
  assert len(run.rollouts) == 8  # 10, 20, ... 80
