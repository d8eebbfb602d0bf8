"""The line that an evaluation during training prints."""

from jaxrl_reason.run.records import journal


def test_sources_add_one_figure_each():
  """The main metrics of a split are shown; of its sources only pass@1."""
  values = {
    'eval/heldout/greedy': 0.5,
    'eval/heldout/pass@1': 0.25,
    'eval/heldout/pass@4': 0.75,
    'eval/heldout/chain1/greedy': 0.625,
    'eval/heldout/chain1/pass@1': 0.375,
    'eval/heldout/chain1/cot_pass@1': 0.125,
    'eval/heldout/chain2/pass@1': 0.875,
    'eval/preferred': 1.0,
  }
  assert journal.evaluation(values) == (
    'heldout/greedy 0.500, heldout/pass@1 0.250, preferred 1.000, '
    'heldout/*/pass@1 (chain1 0.375, chain2 0.875)'
  )
