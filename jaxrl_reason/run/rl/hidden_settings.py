"""Hidden states of completions (`rl.views.hidden`), and their rules."""

from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, rules
from jaxrl_reason.config.rl_sections import Hidden
from jaxrl_reason.config.unread import changed
from jaxrl_reason.rewards.kernels import KERNELS
from jaxrl_reason.rollouts.hidden_states import (
  TOKENS,
  HiddenStates,
  wrong_layers,
)
from jaxrl_reason.rollouts.views import HIDDEN


def states(c: RL, model: Model) -> HiddenStates:
  """Returns the computation of a rollout's hidden states."""
  h, parts = c.views.hidden, c.minibatches * c.micro_batches
  return HiddenStates(model, h.layers, h.token, parts, in_one_pass(c))


def of_sampler(c: RL, model: Model) -> HiddenStates | None:
  """Returns the states that the sampler reads; None: they take a pass."""
  if not without_pass(c) or model.decode_after is None:
    return None
  return states(c, model)


def without_pass(c: RL) -> bool:
  """Returns whether the sampler reads hidden states: something reads them, and
  it decodes every completion at once, after the prompt that is trained on.
  """
  pieces = c.turns.env or c.in_flight.batches or 0 < c.slots < c.samples
  other = pieces or c.tree.width or c.search.simulations
  other = other or c.hints.room or c.demos
  return bool((rewards_of(c) or _probe_shares(c)) and not other)


def in_one_pass(c: RL) -> bool:
  """Returns whether the probe reads the states of the rollout."""
  return _probe_shares(c) and bool(rewards_of(c) or without_pass(c))


def _probe_shares(c: RL) -> bool:
  """Returns whether the rollout's states are those of the probe.

  They are not if the rows of a step may be of several rounds or of an earlier
  policy, or if the probe reads the states of all tokens.
  """
  rounds = c.hints.room or c.extra.groups or c.refill_rounds or c.replay.rows
  earlier = c.staleness or c.in_flight.batches
  other = rounds or c.demos_after or earlier or c.probe.token_weight
  return bool(c.probe.rate and not other)


def probe_passes(c: RL) -> int:
  """Counts the passes over the rows that only the probe needs."""
  return int(bool(c.probe.rate) and not in_one_pass(c))


def rewards_of(c: RL) -> list[str]:
  """Returns the names of the rewards that read hidden states."""
  of = {k: KERNELS.get(part['reward']) for k, part in c.rewards.items()}
  return [k for k, kernel in of.items() if kernel and HIDDEN in kernel.reads]


def hidden_rules(c: RL, needs: frozenset[str], chunked: bool) -> rules.Rows:
  """Refuses hidden states that nothing reads, or that have no meaning.

  Args:
    needs: of the loss; chunked: completions are sampled in chunks.
  """
  h, rewards = c.views.hidden, rewards_of(c)
  readers = [f'rl.rewards.{k}' for k in rewards]
  readers += ['rl.probe.rate'] if c.probe.rate else []
  if not readers:
    key, value, default = next(changed(h, Hidden()), 3 * ('',))
    unread = (
      f'rl.views.hidden{key}={value!r}: nothing reads hidden states; set it to '
      f'{default!r}, or rl.probe.rate, or a reward such as novelty_volume'
    )
    return ((key, unread),)
  return (
    rules.choice('rl.views.hidden.token', h.token, TOKENS),
    (
      rewards and h.token == 'prompt_last',
      f"rl.views.hidden.token='prompt_last': {', '.join(readers[:1])} compares "
      'the samples of a problem, whose states are then equal; choose last or '
      'mean',
    ),
    (
      rewards and c.samples == 1,
      f'rl.samples=1: {", ".join(readers[:1])} compares the samples of a '
      'problem; use 2 or more',
    ),
    (
      c.probe.token_weight and h.token != 'last',
      f'rl.probe.token_weight={c.probe.token_weight}: the probe reads '
      f'rl.views.hidden.token={h.token!r}, which is no state of every token; '
      'choose last',
    ),
    (
      c.probe.token_weight and 'full_logits' in needs,
      f'rl.probe.token_weight={c.probe.token_weight}: rl.algorithm='
      f'{c.algorithm!r} reads whole logits, and has no weights of tokens; set '
      'it to 0',
    ),
    *rules.apart(
      f' and {", ".join(readers[:1])} cannot be combined: hidden states are of '
      'whole completions; set one of them to its default',
      rl__chunks__tokens=chunked and c.chunks.tokens,
    ),
  )


def layer_rules(c: RL, n_layers: int) -> rules.Rows:
  """Refuses layers that the model does not have."""
  layers = tuple(c.views.hidden.layers)
  wrong = wrong_layers(layers, n_layers)
  return ((wrong, f'rl.views.hidden.layers={layers}: {wrong}'),)
