"""The ledger of predictions shows the stored plans of known recipes."""

import runpy

from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.run.checks import config_checks

TOOL = runpy.run_path(str(ROOT / 'tools' / 'ledger.py'))


def test_the_page_is_up_to_date():
  text = TOOL['PAGE'].read_text()
  assert TOOL['page'](text) == text, 'run tools/ledger.py --page'


def test_every_published_run_is_a_recipe_of_its_rows_and_lengths():
  runs = TOOL['runs']()
  assert set(TOOL['plans']()) <= set(runs)
  for name, run in runs.items():
    c = config_lib.read(config_lib.load(f'{TOOL["RECIPE"]}:{name}'))
    config_checks.check(c, run.mesh[0] * run.mesh[1])
    pretrained.size_of(c.model_dir)  # raises if it is no published size
    assert (c.data.prompt_len, c.data.completion_len) == run.tokens
    rows = c.rl.rows if 'rl' in c.stages else c.pretrain.rows
    assert rows == run.rows[0] * run.rows[1]
