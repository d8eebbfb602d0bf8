"""An objective: the record of the parts that turn rewards into a loss."""

import dataclasses
import functools
import types
from collections.abc import Iterator, KeysView, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_reason.losses.aggregation import Aggregate
from jaxrl_reason.losses.baselines import GroupZScore
from jaxrl_reason.losses.defaults import check_number
from jaxrl_reason.losses.distillation import Distill
from jaxrl_reason.losses.entropy import EntropyBonus
from jaxrl_reason.losses.imitation import Likelihood
from jaxrl_reason.losses.kl import KL
from jaxrl_reason.losses.objective_part import Part, Weight
from jaxrl_reason.losses.policy import PPOClip
from jaxrl_reason.names import nearest

# Arrays that a run computes only if a part reads them.
ARRAYS = frozenset(
  'old_logp ref_logp sampler_logp entropy values greedy_reward reward_parts '
  'process_reward segment_reward segment_ids node_ids old_mean_logp '
  'sum_p_squared sft_mask is_offpolicy key teacher_logp teacher_kl pass_rate '
  'old_divergence'.split()
)


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
  """An objective as frozen parts; equal only to itself, so hashable.

  `resolve` reads one from settings. A part of your own replaces one of these:
  `dataclasses.replace(losses.resolve('dapo'), policy=MyLoss())`.

  Attributes:
    reward: rewards -> rewards, or None.
    advantage: rewards -> advantages.
    shaping: advantages -> advantages, in this order.
    resample: rewards -> rows drawn again after their advantages, or None.
    policy: advantages -> loss per token.
    ratio_to: 'old', 'sampler' or 'ref': the denominator of the ratio.
    row_entropy: marks high-entropy tokens (Archer), or None.
    select: parts that choose tokens of the whole batch, by the name under which
      they reach the others: 'cov_tokens', 'top_entropy', 'random'.
    weights: factors [N, T] on the policy's loss: corrections, rejections.
    offpolicy: loss of tokens of another policy; None: the same loss.
    kl, entropy, likelihood, distill: further terms; None: none.
    aggregation: loss per token -> loss.
    critic: (targets, loss) of a critic; None: there is none.
    skip_empty: leave rows without a token out of the statistics of groups.
    drop_truncated, drop_offpolicy: rows and tokens that `loss_mask` drops.
    settings: all flat settings that it was read from.
  """

  reward: Part | None = None
  advantage: Part = GroupZScore()
  shaping: tuple[Part, ...] = ()
  resample: Part | None = None
  policy: Part = PPOClip()
  ratio_to: str = 'old'
  row_entropy: Part | None = None
  select: Mapping[str, Part] = dataclasses.field(default_factory=dict)
  weights: tuple[Weight, ...] = ()
  offpolicy: Part | None = None
  kl: KL | None = None
  entropy: EntropyBonus | None = None
  likelihood: Likelihood | None = None
  distill: Distill | None = None
  aggregation: Aggregate = Aggregate()
  critic: tuple[Part, Part] | None = None
  skip_empty: bool = False
  drop_truncated: bool = False
  drop_offpolicy: bool = False
  settings: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, repr=False
  )

  def __post_init__(self) -> None:
    """Refuses parts that the loss of the policy would not read."""
    if not self.takes_logits:
      return
    of_ratio = 'row_entropy select weights offpolicy kl entropy likelihood '
    of_ratio += 'distill'
    unread = [name for name in of_ratio.split() if getattr(self, name)]
    if unread:
      raise ValueError(
        f'losses: policy={type(self.policy).__name__} is a loss of logits, '
        f'which has no {" or ".join(unread)}: leave {", ".join(unread)} out of '
        'the objective.'
      )

  @property
  def parts(self) -> list[Part]:
    """Lists every part, in the order in which they are used."""
    first = (self.reward, self.advantage, *self.shaping)
    first += (self.resample, self.policy)
    weights = (self.row_entropy, *self.select.values())
    last = (self.offpolicy, self.kl, self.entropy, self.likelihood)
    last += (self.distill, self.aggregation)
    everything = (*first, *weights, *self.weights, *last)
    everything += self.critic or ()
    return [part for part in everything if part is not None]

  def likelihood_on(self, tokens: str) -> bool:
    """Returns whether a likelihood term trains on these tokens, a key of
    `imitation.SFT_ON`.
    """
    return self.likelihood is not None and self.likelihood.on == tokens

  @functools.cached_property
  def needs(self) -> frozenset[str]:
    """Names the arrays that a run has to compute; see `losses.needs`."""
    names = set().union(*(self._arrays(p) for p in self.parts)) & ARRAYS
    if self.entropy is not None:
      names -= {'entropy'} - set().union(
        *(self._arrays(p) for p in self.parts if p is not self.entropy)
      )
    extra = {
      'entropy_grad': self.entropy is not None,
      'entropy': self.entropy is not None and self.entropy.share is not None,
      'full_logits': self.takes_logits,
      'truncated': self.drop_truncated,
      'is_offpolicy': self.drop_offpolicy,
      'selected': bool(self.select)
      or (self.entropy is not None and self.entropy.share is not None),
    }
    return frozenset(names | {name for name, on in extra.items() if on})

  def _arrays(self, part) -> set[str]:
    """Returns the arrays of a run behind the names that a part reads."""
    anchored = part is self.policy or part in self.weights
    anchored |= part in self.select.values()
    anchor = 'old_logp' if self.takes_logits else self.ratio_to + '_logp'
    alias = {'at_sampling': 'old_logp'}
    if anchored:
      alias['old_logp'] = anchor
    names = {alias.get(name, name) for name in part.reads}
    in_reward = part is self.kl and part.where == 'reward'
    return names | ({'old_logp'} if in_reward else set())

  @functools.cached_property
  def terms(self) -> dict[str, Part]:
    """Returns the further terms of the loss by the name of the coefficient."""
    kl = self.kl if self.kl is not None and self.kl.where == 'loss' else None
    terms = dict(
      kl_coef=kl,
      entropy_coef=self.entropy,
      sft_coef=self.likelihood,
      distill_coef=self.distill,
    )
    return {name: term for name, term in terms.items() if term is not None}

  @property
  def correction(self) -> Part | None:
    """Returns the weight old / sampler among `weights`, or None."""
    return next((w for w in self.weights if hasattr(w, 'normalise')), None)

  @property
  def has_ratio(self) -> bool:
    """Returns whether the policy's loss has a ratio to an earlier policy."""
    return 'old_logp' in self.policy.reads and self.ratio_to != 'ref'

  @property
  def corrects(self) -> bool:
    """Returns whether tokens are weighted by the sampler's log-probs."""
    by_ratio = self.has_ratio and self.ratio_to == 'sampler'
    return by_ratio or any('sampler_logp' in w.reads for w in self.weights)

  @property
  def scores_samples(self) -> bool:
    """Returns whether advantages read the policy's log-probs of the sampled
    tokens: a KL in the reward, or the advantage of a teacher.
    """
    in_reward = self.kl is not None and self.kl.where == 'reward'
    return in_reward or any('old_logp' in part.reads for part in self.shaping)

  @functools.cached_property
  def coefs(self) -> dict[str, float]:
    """Returns the coefficients that `init_coefs` starts from."""
    parts = dict(kl_coef=self.kl, entropy_coef=self.entropy)
    parts |= dict(sft_coef=self.likelihood, distill_coef=self.distill)
    return {k: 0.0 if p is None else p.coef for k, p in parts.items()}

  @functools.cached_property
  def takes_logits(self) -> bool:
    """Returns whether the policy's loss is one of `bellman_loss`."""
    return 'logits' in self.policy.reads

  def with_numbers(self, numbers: Mapping[str, Any]) -> 'Objective':
    """Returns the objective with other numbers, which may be traced.

    Args:
      numbers: {setting: number}, as 'clip_high'. The parts stay: a coefficient
        that was 0 has no part that reads it.

    Raises:
      ValueError: no part reads a setting, or a number that is not traced may
        not be its value.
    """
    for key in set(numbers) - self.part_keys:
      raise ValueError(
        f'losses: with_numbers: no part of this objective reads {key!r}.'
        f'{nearest(key, self.part_keys)} Its parts read '
        f'{", ".join(sorted(self.part_keys))}.'
      )

    for key, x in numbers.items():
      if not isinstance(x, jax.Array | np.ndarray):
        check_number(key, x, x)

    def put(part):
      if isinstance(part, tuple):
        return tuple(map(put, part))
      if isinstance(part, Mapping):
        return {name: put(x) for name, x in part.items()}
      named = getattr(part, 'names', ())
      found = {f: numbers[key] for f, _, key in named if key in numbers}
      return dataclasses.replace(part, **found) if found else part

    fields = {f.name for f in dataclasses.fields(self)} - {'settings'}
    changed = {name: put(getattr(self, name)) for name in fields}
    settings = types.MappingProxyType({**self.settings, **numbers})
    return dataclasses.replace(self, **changed, settings=settings)

  @property
  def part_keys(self) -> frozenset[str]:
    """Names the settings that a part reads, given the others."""
    return frozenset().union(*(part.keys_read for part in self.parts))

  def __getitem__(self, key: str) -> Any:
    """Returns the value that a part has, or else that of the settings."""
    for part in self.parts:
      for field, _, name in getattr(part, 'names', ()):
        if name == key:
          return getattr(part, field)
    return self.settings[key]

  def __iter__(self) -> Iterator[str]:
    return iter(self.settings)

  def keys(self) -> KeysView[str]:
    """Returns the names of all settings, for `dict(objective)`."""
    return self.settings.keys()
