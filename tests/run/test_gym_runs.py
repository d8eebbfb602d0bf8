"""Families of reasoning-gym as the data of a config."""

import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import problems
from jaxrl_reason.run.rl import reward_functions as rewarding

pytest.importorskip('reasoning_gym')


def test_a_config_names_a_family():
  c = config_lib.default().data
  c.name, c.tokenizer = 'gym:chain_sum', 'byte'
  c.knobs.max_terms = 2
  found = problems.load(c, 0)
  assert found.reward == 'gym' and found.kernel is None
  assert found.train[0]['task'] == 'gym:chain_sum'


def test_evaluations_score_in_the_pool():
  config = config_lib.default()
  config.data.name, config.data.tokenizer = 'gym:chain_sum', 'byte'
  config.rl.timeout_s = 20.0
  found = problems.load(config.data, 0)
  example = found.heldout[0]
  right, wrong = rewarding.grader(config.rl, found)(
    [(example['solution'], example), ('<answer>x</answer>', example)]
  )
  assert (right.score, wrong.score) == (1.0, 0.0)
