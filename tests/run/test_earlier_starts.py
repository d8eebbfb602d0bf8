"""Files in the workdir of starts that were refused, or of other programs."""

import json
import os

import pytest
import tiny_recipe
from etils import epath

from jaxrl_reason import grade, main
from jaxrl_reason.checkpoints import (
  emergency,
  emergency_note,
  files,
  manager,
  pretrained,
)
from jaxrl_reason.data import problems
from jaxrl_reason.run import train
from jaxrl_reason.run.process import workdir as workdirs

pytestmark = pytest.mark.one_device


def texts(path, word: str) -> str:
  """Writes problems with a word; returns the path."""
  rows = [{'question': f'{i} {word}', 'answer': f'{i}'} for i in range(99)]
  path.write_text('\n'.join(map(json.dumps, rows)))
  return str(path)


@pytest.fixture
def start(monkeypatch, tmp_path):
  """Returns a function that starts a run, which is refused after its tokenizer
  and the files of its model are in the workdir. It returns both.
  """

  def run(**changes):
    c = tiny_recipe.get_config()
    c.data.update(name='files', tokenizer='sentencepiece', knobs={}, harder={})
    c.update_from_flattened_dict(changes)
    made = []

    def prepare(config, workdir):
      kept = config.model_dir and pretrained.begin(config.model_dir, workdir)
      loaded = problems.load(config.data, config.seed)
      made.extend([problems.make_tokenizer(config.data, loaded, workdir), kept])
      raise ValueError('refused')

    monkeypatch.setattr(train, 'prepare', prepare)
    with pytest.raises(ValueError, match='refused'):
      train.run(c, tmp_path / 'run')
    return made

  return run


def test_a_tokenizer_is_trained_anew_until_there_is_a_checkpoint(
  start, tmp_path
):
  first = {'data.dir': texts(tmp_path / 'a.jsonl', 'apples')}
  second = {'data.dir': texts(tmp_path / 'b.jsonl', 'pears')}
  larger, small = {'data.vocab': 279}, {'data.vocab': 278}
  assert start(**first | larger)[0].vocab_size == 279
  made = start(**first | small)[0]
  assert made.vocab_size == 278
  other = start(**second | small)[0]
  assert other.model_bytes != made.model_bytes
  (tmp_path / 'run' / manager.NOTE).write_text('{}')
  assert start(**first | larger)[0].model_bytes == other.model_bytes
  aside = {p.name for p in (tmp_path / 'run').glob('tokenizer.*')}
  names = (f'tokenizer{x}.model' for x in ('', '.before-1', '.before-2'))
  assert aside == set(names)


def test_a_tokenizer_that_the_run_does_not_read_stays(start, tmp_path):
  (tmp_path / 'run').mkdir()
  path = tmp_path / 'run' / problems.PIECES
  path.write_text('of the user')
  start(
    **{
      'data.dir': texts(tmp_path / 'a.jsonl', 'apples'),
      'data.tokenizer': 'byte',
    }
  )
  assert path.read_text() == 'of the user'


def test_a_corrected_model_is_read_until_there_is_a_checkpoint(start, tmp_path):
  model = tmp_path / 'model'
  model.mkdir()
  (model / 'config.json').write_text('{"model_type": "qwen2"}')
  (model / 'chat_template.jinja').write_text('wrong')
  changes = {'data.dir': texts(tmp_path / 'a.jsonl', 'apples')}
  changes |= {'data.tokenizer': 'byte', 'model_dir': str(model)}
  kept = start(**changes)[1]
  assert (kept / 'chat_template.jinja').read_text() == 'wrong'
  (model / 'chat_template.jinja').rename(model / 'chat_template.json')
  assert start(**changes)[1] == kept
  names = {'config.json', 'chat_template.json', pretrained.SOURCE}
  assert {p.name for p in kept.iterdir()} == names
  (tmp_path / 'run' / manager.NOTE).write_text('{}')
  (model / 'chat_template.json').write_text('corrected')
  start(**changes)
  assert (kept / 'chat_template.json').read_text() == 'wrong'


def test_files_of_a_model_whose_copy_was_killed_are_removed(
  tmp_path, monkeypatch
):
  """The next start may have another model, with other names of files."""
  model, workdir = tmp_path / 'model', epath.Path(tmp_path / 'w')
  model.mkdir()
  (model / 'config.json').write_text('{"model_type": "qwen2"}')
  (model / pretrained.SOURCE).write_text('{}')  # of the workdir it comes from

  with monkeypatch.context() as m:

    def killed(folder, target, without):
      (target / 'tokenizer.json').write_text('')
      raise KeyboardInterrupt

    m.setattr(pretrained, 'copy_small', killed)
    with pytest.raises(KeyboardInterrupt):
      pretrained.begin(str(model), workdir)
  pretrained.forget(workdir)
  kept = pretrained.begin(str(model), workdir)
  assert {p.name for p in kept.iterdir()} == {'config.json', pretrained.SOURCE}
  assert pretrained.begin(str(model), workdir) == kept


def test_a_folder_of_the_user_is_not_removed(tmp_path):
  """A folder of that name was not written by a run without its source."""
  (tmp_path / pretrained.FOLDER).mkdir()
  (tmp_path / pretrained.FOLDER / 'model.safetensors').write_text('')
  pretrained.forget(epath.Path(tmp_path))
  assert (tmp_path / pretrained.FOLDER / 'model.safetensors').exists()


@pytest.mark.parametrize(
  'name, resumes',
  [
    (manager.NOTE, True),
    (emergency_note.NOTE, True),
    ('checkpoints/8/', True),  # saved, and killed before it was noted
    ('checkpoints/damaged-8/', True),
    ('checkpoints/8.orbax-checkpoint-tmp/', False),
    ('checkpoints/', False),
    ('events.jsonl', False),
  ],
)
def test_checkpoints_are_seen(tmp_path, name, resumes):
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.mkdir() if name.endswith('/') else path.write_text('')
  assert workdirs.may_resume(epath.Path(tmp_path)) == resumes


def test_fresh_moves_no_files_but_those_of_a_run(tmp_path):
  (tmp_path / '.git').mkdir()
  (tmp_path / 'a.py').write_text('')
  before = sorted(tmp_path.rglob('*'))
  words = f'--fresh would move .*{tmp_path}, such as .git.*another --workdir'
  with pytest.raises(ValueError, match=words):
    with workdirs.opened({}, tmp_path, fresh=True):
      pass
  assert sorted(tmp_path.rglob('*')) == before


@pytest.mark.parametrize('mark', ['checkpoints', 'events.jsonl', None])
def test_fresh_moves_the_files_of_a_run(tmp_path, mark):
  names = {mark, 'notes.txt'} if mark else {'old-3'}
  for name in names:
    (tmp_path / name).mkdir()
  with workdirs.opened({}, tmp_path, fresh=True):
    pass
  moved = tmp_path / 'old-1' if mark else tmp_path
  assert {p.name for p in moved.iterdir()} == names


@pytest.mark.parametrize('name', ['~', '~/runs/a'])
def test_a_tilde_is_the_home(tmp_path, monkeypatch, name):
  """Workdirs, exported models, emergency checkpoints, and all flags."""
  home = tmp_path / 'home'
  monkeypatch.setenv('HOME', str(home))
  monkeypatch.setenv('JOB', name)
  monkeypatch.chdir(tmp_path)
  want = epath.Path(os.path.abspath(os.path.expanduser(name)))
  with workdirs.opened({}, name) as workdir:
    assert workdir == want and want.is_dir()
  with files.new_folder('--to', f'{name}/out'):
    pass
  assert (want / 'out').is_dir()
  assert emergency._made('$JOB').parent == want
  given = [f'--file={name}', '--reward=x']
  assert os.path.abspath(grade.parser().parse(given).file) == str(want)
  assert [p.name for p in tmp_path.iterdir()] == ['home']


@pytest.mark.parametrize('flag', ['--heartbeat_s', '--join_timeout_s'])
def test_times_of_several_processes_are_positive(flag, capsys):
  argv = ['--config=x.py', '--workdir=w', f'{flag}=0']
  with pytest.raises(SystemExit):
    main.main(argv)
  assert f'{flag}=0: must be a whole number' in capsys.readouterr().err
