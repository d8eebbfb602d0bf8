"""The picture of the effects of several studies."""

import json
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / 'tools'))
import evidence_picture as picture


def results(folder, name, verdicts):
  """Writes the results of a study with a criterion per verdict."""
  criteria = [
    {
      'criterion': f'eval/heldout/pass@1: s{i} - all > -0.2 of the gain of all',
      'verdict': verdict,
      'effect': {'mean': i / 10, 'half': 0.05},
    }
    for i, verdict in enumerate(verdicts)
  ]
  claims = [{'criteria': criteria}, {'criteria': criteria[:1]}]
  path = folder / name / 'results.json'
  path.parent.mkdir()
  path.write_text(json.dumps({'claims': claims if verdicts else []}))
  return path


def test_every_criterion_is_a_line_in_the_color_of_its_verdict(tmp_path):
  each = ['holds'], ['does not hold here', 'could not tell', 'holds'], ['holds']
  paths = [
    results(tmp_path, f's{i}', v) for i, v in enumerate((*each, each[1]))
  ]
  figure = picture.draw(paths)
  panels = [ax for ax in figure.axes if ax.get_title()]
  assert [ax.get_title() for ax in panels] == ['s0', 's1', 's2', 's3']
  texts = [label.get_text() for label in panels[1].get_yticklabels()]
  assert texts[1] == 'pass@1: s1 - all > -0.2 gain of all' and len(texts) == 3
  colors = [c.get_children()[0].get_color() for c in panels[1].containers]
  assert colors == [picture.COLORS[v] for v in each[1]]
  picture.main([*map(str, paths), f'--out={tmp_path / "x.png"}'])
  assert (tmp_path / 'x.png').stat().st_size > 1000


def test_a_study_without_claims_is_named(tmp_path):
  path = results(tmp_path, 'none', [])
  with pytest.raises(SystemExit, match='none/results.json has no claims'):
    picture.draw([path])
