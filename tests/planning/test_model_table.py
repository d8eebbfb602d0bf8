"""The table of recipes by model and chips reads the recipes of `start`."""

import re
import runpy

import pytest
from paths import ROOT

from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.planning import first_recipe, plan_settings
from jaxrl_reason.run.process import chips

TOOL = runpy.run_path(str(ROOT / 'tools' / 'model_table.py'))


class FakePlanner:
  """A planner whose search finds adapters and the settings of `values`."""

  values = dict(micro_batches=4, parts=2, padding='shared:1')

  def __init__(self, config, topology, **_):
    self.config = config

  def search(self):
    if not self.config.lora.rank:
      return [{'why': 'does not fit'}]
    changes = {f'rl.{key}': value for key, value in self.values.items()}
    c = self.config.changed(
      changes | {'mesh': (1, 2, 4), 'model.remat': 'full'}
    )
    facts = dict(phases=[{'needs_gib': 9.5}], hbm_gib=15.75)
    facts |= dict(step_seconds=3.5, serial_seconds=4.25)
    return [facts | {'recipe': plan_settings.Found(c, {}).recipe()}]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
  """Returns a function that writes a recipe as `start --on` does."""
  data = tmp_path / 'mine.jsonl'
  data.write_text(''.join(TOOL['ROW'] % (i, 7 * i) for i in range(100)))
  monkeypatch.setattr(first_recipe.planner, 'Planner', FakePlanner)

  def make(on='v5e-8', **values):
    monkeypatch.setattr(FakePlanner, 'values', values)
    o = first_recipe.Options(
      model='hf:Qwen/Qwen3-8B', data=str(data), reward='', on=on,
      out=tmp_path / f'{len(list(tmp_path.iterdir()))}.py',
      prompt_len=16, completion_len=16,
    )  # fmt: skip
    first_recipe.run(o, lambda text: None)
    return o.out.read_text()

  return make


def test_a_row_has_the_settings_of_a_recipe(recipe):
  text = recipe(micro_batches=4, parts=2, padding='shared:1')
  row = TOOL['row_of']('qwen3-8b', 'v5e-8', text, 90.0)
  assert row == (
    '| qwen3-8b | v5e-8 | LoRA on bfloat16 weights | (1, 2, 4) | remat `full`, '
    '4 micro-batches, 2 parts, `shared:1` | 9.5 of 15.8 | 3.5 to 4.25 | 2 |'
  )
  text = recipe(micro_batches=1, parts=1, padding='whole')
  row = TOOL['row_of']('qwen3-8b', 'v5e-8', text, 90.0)
  assert '| remat `full`, 1 micro-batch, `whole` |' in row


def test_a_row_of_a_gpu_has_no_time(recipe):
  row = TOOL['row_of']('qwen3-8b', 'h100', recipe(on='h100'), 30.0)
  assert re.fullmatch(
    r'\| qwen3-8b \| h100 \| LoRA on bfloat16 weights \| \(1, 1, 1\) \| remat '
    r'`dots`, \d+ micro-batch(es)?(, \d+ parts)?, `whole` \| [\d.]+ of 59.7 \| '
    r'not known \| 0 \|',
    row,
  ), row


def test_only_a_lack_of_memory_makes_a_row_without_settings(
  recipe, monkeypatch
):
  monkeypatch.setattr(FakePlanner, 'search', lambda self: [{'why': 'no'}])
  with pytest.raises(ValueError) as error:
    recipe()
  row = TOOL['row_of']('qwen3-32b', 'v5e-8', str(error.value), 60.0)
  assert row == '| qwen3-32b | v5e-8 | does not fit | | | | | 1 |'
  with pytest.raises(ValueError, match='no libtpu'):
    TOOL['row_of']('qwen3-32b', 'v5e-8', 'no libtpu', 60.0)


def test_a_row_is_added_in_order_and_no_longer_missing():
  """The rest of the page and the other rows stay as they are."""
  text = f'before\n{TOOL["BEGIN"]}{TOOL["END"]}\nafter\n'
  rows = {}
  for key in (('qwen3-8b', 'v6e-8'), ('qwen3-8b', 'v5e-8')):
    assert key not in TOOL['known'](text)
    row = f'| {key[0]} | {key[1]} | cells |'
    text = TOOL['written'](TOOL['known'](text) | {key: row}, text)
    rows[key] = row
    assert TOOL['known'](text) == rows
  first, last = (rows['qwen3-8b', chips] for chips in ('v5e-8', 'v6e-8'))
  assert text.index(first) < text.index(last)
  assert text.startswith('before\n') and text.endswith('\nafter\n')
  lacking = TOOL['missing'](rows)
  assert 'v5e-16 (qwen2.5-0.5b, qwen3-1.7b, qwen3-4b, qwen3-8b' in lacking
  assert 'v6e-8 (qwen2.5-0.5b, qwen3-1.7b, qwen3-4b, qwen3-14b' in lacking
  assert lacking in text
  every = dict.fromkeys((m, c) for m in TOOL['MODELS'] for c in TOOL['CHIPS'])
  assert TOOL['missing'](every) == 'Missing rows: none.'


def test_the_page_can_be_written_from_its_rows():
  text = TOOL['PAGE'].read_text()
  rows = TOOL['known'](text)
  assert TOOL['written'](rows, text) == text
  for row in rows.values():
    assert row.count('|') == 9, row


def test_every_row_is_of_a_published_size_and_of_chips():
  for name in TOOL['MODELS'].values():
    pretrained.size_of(f'hf:{name}')  # raises if it is no published size
  for name in TOOL['CHIPS']:
    assert chips.gpu_memory(name) or chips.topology_of(name)
