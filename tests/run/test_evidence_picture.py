"""The picture of the effects of several studies."""

import json
import sys

import PIL.Image
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


def test_pictures_of_a_page_have_its_numbers():
  """Each section of the page has a picture. Those of effects contain the
  numbers of today's page.
  """
  page = ROOT / 'docs' / 'evidence.md'
  text = page.read_text()
  for section in text.split('\n## ')[1:]:
    assert '](pictures/' in section, section.partition('\n')[0]
  found = picture.sections(text)
  assert len(found) > 10
  for name, panels in found.items():
    with PIL.Image.open(page.parent / 'pictures' / name) as image:
      assert image.text['Description'] == json.dumps(panels), name


def test_effects_are_read_from_rows_and_from_wider_tables(tmp_path):
  page = tmp_path / 'page.md'
  table = (
    '\n## one\n\n| | |\n|---|---|\n| done | 1 ± 2 |\n'
    '| effect, a − b | `x` +0.5 ± 0.25 (p 0.1); all: −1.5 ± 2; y 3 '
    '(0.1 ± 0.2) |\n\n| lag | 1 | 2 |\n|---|---|---|\n'
    '| none | −1.0 ± 0.5 | 0.0 ± 1 |\n'
  )
  page.write_text(f'{table}\n![e](pictures/effects_one.png)\n{table}')
  panels = picture.sections(page.read_text())['effects_one.png']
  assert panels == [
    ('effect, a − b', [('x', 0.5, 0.25), ('', -1.5, 2), ('y 3', 0.1, 0.2)]),
    ('1', [('none', -1.0, 0.5)]),
    ('2', [('none', 0.0, 1.0)]),
  ]  # fmt: skip
  picture.main([str(page), f'--out={tmp_path}'])
  titles = [ax.get_title() for ax in picture.draw_panels(panels).axes]
  assert titles == ['effect, a − b', '1', '2']
  with PIL.Image.open(tmp_path / 'effects_one.png') as image:
    assert json.loads(image.text['Description'])[0][0] == 'effect, a − b'
  empty = '\n## one\n\n![e](pictures/effects_one.png)\n'
  with pytest.raises(SystemExit, match='no effects of effects_one.png'):
    picture.sections(empty)
