"""Every notebook runs from top to bottom."""

import nbformat
import pytest
from nbclient import NotebookClient
from small import ROOT

NOTEBOOKS = sorted((ROOT / 'colabs').glob('*.ipynb'))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '')  # one device, as its readers have
  notebook = nbformat.read(path, as_version=4)
  NotebookClient(notebook, timeout=600, kernel_name='python3').execute()
  assert any(cell.get('outputs') for cell in notebook.cells)
