"""The models beside the policy: their memory, and the remedy if one of them has
no room.
"""

from typing import Any

from jaxrl_reason.config.rl import RL
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run.process import chips

# Field of a TrainState -> name of the model.
FIELDS = {
  'teacher_params': 'teacher',
  'reward_params': 'reward model',
  'ref_params': 'reference',
}
SHARE = 0.05  # of a chip's memory, above which a model is named


def gib(state: Any) -> dict[str, float]:
  """Returns the GiB of each model on one device, without those in host memory.

  Args:
    state: a TrainState of shapes with shardings.
  """
  sizes = {
    name: described.on_chip(getattr(state, field, None)) / chips.GIB
    for field, name in FIELDS.items()
  }
  return {name: size for name, size in sizes.items() if size}


def remedy(rl: RL, facts: dict, has: float) -> str:
  """Returns the models beside the policy with a share of the memory of a phase
  that does not fit, and settings under which they take less; '' if there is no
  such model.

  Args:
    facts: of the phase; has: GiB of a chip.
  """
  sizes = facts.get('beside_gib', {}).items()
  large = sorted((x for x in sizes if x[1] > SHARE * has), key=lambda x: -x[1])
  if not large:
    return ''
  shares = ' and '.join(f'{size:.2f} of the {name}' for name, size in large)
  smaller = [x for name, n in large for x in _smaller(rl, name, n < has)]
  choices = ', '.join([*smaller, 'a larger fsdp axis'])
  return f', with {shares}. Less memory: {choices}'


def _smaller(rl: RL, name: str, fits: bool) -> list[str]:
  """Returns the settings under which a model takes less memory.

  Args:
    fits: whether its weights fit a chip alone. They are copied there from host
      memory for a pass.
  """
  if name == 'reward model':
    weights = rl.reward_model.weights
    return [f'a smaller model than rl.reward_model.weights={weights!r}']
  if name == 'reference':
    return ["rl.reference_memory='host'"] if fits else []
  host = ["rl.teacher.memory='host'"] if fits else []
  return host + ["rl.teacher.dtype='int8'"] * (rl.teacher.dtype != 'int8')
