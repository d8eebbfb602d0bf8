"""Names the columns of a study, and checks those that it compares.

The names of training metrics depend on the parts of a program. They are checked
when the first runs have ended (`study_run.py`).
"""

import re
from collections.abc import Iterable, Sequence

from jaxrl_reason.config import Data, Eval, Run
from jaxrl_reason.evals import accuracy
from jaxrl_reason.names import nearest

EVAL, TARGET = 'eval/', 'target/'
STEPS_TO, TOKENS_TO = TARGET + 'steps', TARGET + 'tokens'
KL = 'kl_base'
# Begin the names of computed columns.
SLOPE, OLD, START, GAIN, LEAD = 'slope/', 'old/', 'start/', 'gain/', 'lead/'
BUDGET = 'budget/'
# Begin the names of metrics of training, which are not known before it.
LATER = ('train/', f'{SLOPE}train/', 'pool/', 'perf/')
AGAINST = re.compile(r'/against_\w+')  # of evaluations of a game
# Of held-out pairs and steps.
OTHER = ('pairs/preferred', 'pairs/margin', 'steps/accuracy', 'steps/wrong')
OTHER += ('steps/wrong_found', 'steps/number')


def check(
  names: Iterable[str],
  configs: Sequence[Run],
  has_old: bool = False,
  has_kl: bool = False,
  has_budget: bool = False,
) -> None:
  """Refuses a metric that no run of a study can have.

  Args:
    names: of the metrics.
    configs: of every setting.
    has_old, has_kl, has_budget: whether the study has `Study.old`,
      `Study.kl_on` and `Study.tokens`.

  Raises:
    ValueError: names the metric.
  """
  known = dict.fromkeys(
    name for c in configs for name in _names(c.data, c.eval, has_old)
  )
  if has_budget:
    known |= {BUDGET + k: None for k in known if k.startswith(EVAL)}
  if has_kl:
    known[KL] = None
  for name in names:
    if not name.startswith(LATER) and AGAINST.sub('', name) not in known:
      raise ValueError(
        f'the study names the metric {name!r}, which its runs do not have.'
        f'{nearest(name, known)} pass@k has k of 1, 2, 4, ... and eval.samples'
      )


def _names(d: Data, c: Eval, has_old: bool) -> list[str]:
  """Returns the names of the columns of a run that are known before it."""
  kinds = accuracy.names(c.samples)
  splits = ['heldout', 'harder', *(f'heldout/{x}' for x in d.sources)]
  evaluated = [f'{EVAL}{split}/{kind}' for split in splits for kind in kinds]
  evaluated += [f'{EVAL}{x}' for x in OTHER]
  computed = [p + name for p in (START, GAIN) for name in evaluated]
  computed += [LEAD + name for name in evaluated if '/maj@' in name]
  computed += [OLD + kind for kind in kinds if has_old]
  return [*evaluated, *computed, STEPS_TO, TOKENS_TO]
