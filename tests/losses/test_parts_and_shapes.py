"""Objectives are records of parts, and errors name wrong arguments."""

import ast
import dataclasses
import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import close

from jaxrl_reason import losses
from jaxrl_reason.losses import objective_part

MASK = jnp.array([[1, 1, 0], [1, 1, 1]])
LOGP = -jnp.ones((2, 3))
ADV = jnp.array([1.0, -1.0])


def test_an_objective_is_hashable_frozen_and_read_once():
  o = losses.resolve('dapo')
  assert losses.resolve(o) is o and hash(o) == hash(o)
  assert o != losses.resolve('dapo')
  assert o['clip_high'] == 0.28 and o.settings['clip_low'] == 0.2
  assert o.needs == losses.needs(o) == losses.needs('dapo') == {'old_logp'}
  with pytest.raises(dataclasses.FrozenInstanceError):
    o.policy = None
  with pytest.raises(TypeError):
    o.settings['clip_high'] = 1.0
  assert o.policy == losses.PPOClip(low=0.2, high=0.28)
  assert losses.resolve('grpo').kl == losses.KL(
    'k3', coef=0.04, to='ref', where='loss'
  )
  assert losses.resolve('flash_rl').correction == losses.Truncate(2.0)


def test_nothing_is_resolved_while_a_loss_is_traced(monkeypatch):
  o = losses.resolve({'name': 'grpo', 'correction': 'truncate'})

  def refuse(*_):
    raise AssertionError('resolved again')

  monkeypatch.setattr('jaxrl_reason.losses.objective.resolve', refuse)
  adv = losses.advantages(o, ADV, jnp.zeros(2, int), mask=MASK)
  arrays = dict(old_logp=LOGP, ref_logp=LOGP, sampler_logp=LOGP)
  losses.policy_loss(o, LOGP, adv, MASK, **arrays)
  with pytest.raises(AssertionError):
    losses.policy_loss('grpo', LOGP, adv, MASK, **arrays)


@pytest.mark.parametrize('name', losses.PRESETS)
def test_parts_list_their_arrays_and_settings(name):
  o = losses.resolve(name)
  for part in o.parts:
    for field, _, key in part.names:
      assert getattr(part, field) == o[key], (part, field)
    assert set(part.reads) <= set(losses.SHAPES) | {'key', 'high_entropy'}


@dataclasses.dataclass(frozen=True)
class Squared(losses.Part):
  """A custom loss: A (log pi - log ref)^2."""

  scale: float = 2.0
  reads = ('logp', 'ref_logp', 'mask')

  def __call__(self, arrays):
    logp, ref_logp, mask = self.take(arrays)
    return losses.keep(mask, self.scale * jnp.square(logp - ref_logp))


def test_a_custom_part():
  o = dataclasses.replace(losses.resolve('dapo'), policy=Squared(3.0))
  assert o.needs == {'ref_logp'}
  loss, metrics = losses.policy_loss(o, LOGP, ADV, MASK, ref_logp=LOGP - 2)
  close(loss, 12.0, 1e-6)
  assert 'clip_high' not in metrics
  with pytest.raises(ValueError, match='ref_logp'):
    losses.policy_loss(o, LOGP, ADV, MASK)
  bare = losses.Objective(policy=losses.PPOClip(0.1, 0.1), kl=losses.KL(coef=1))
  loss, _ = losses.policy_loss(bare, LOGP, ADV, MASK, ref_logp=LOGP)
  close(loss, 1 / 5, 1e-6)


WRONG = {
  'old_logp': dict(old_logp=LOGP[:1]),
  'ref_logp': dict(ref_logp=LOGP[:1]),
  'sampler_logp': dict(sampler_logp=LOGP[:, :1]),
  'entropy': dict(entropy=LOGP[0]),
  'adv': dict(adv=jnp.ones(3)),
  'logp': dict(logp=LOGP[None]),
  'token_weight': dict(token_weight=jnp.ones(2)),
  'is_offpolicy': dict(is_offpolicy=jnp.ones(2)),
}


@pytest.mark.parametrize('name', WRONG)
def test_a_wrong_shape_is_named(name):
  arrays = dict(old_logp=LOGP, ref_logp=LOGP, logp=LOGP, adv=ADV) | WRONG[name]
  logp, adv = arrays.pop('logp'), arrays.pop('adv')

  def run(arrays):
    return losses.policy_loss('grpo', logp, adv, MASK, **arrays)

  for fn in (run, jax.jit(run)):
    with pytest.raises(ValueError, match=f'{name} has shape|as the arguments'):
      fn(arrays)


def test_parts_check_their_own_arguments():
  x, one = jnp.ones(2), jnp.ones((2, 1))
  calls = {
    'x has shape': lambda: losses.aggregate(x, MASK, 'token_mean'),
    'old_logp': lambda: losses.ppo_clip(LOGP, LOGP[:1], ADV, MASK),
    'adv': lambda: losses.ppo_clip(LOGP, None, jnp.ones(3), MASK),
    'ref_logp': lambda: losses.kl_penalty(LOGP, LOGP[:1]),
    'sampler_logp': lambda: losses.correction_weight(LOGP, LOGP[:1], MASK),
    'values': lambda: losses.gae(x, one, MASK),
    'targets': lambda: losses.value_loss(LOGP, one, MASK),
    'group has shape': lambda: losses.group_mean(x, 4),
    'group holds float32': lambda: losses.group_mean(x, x),
    'reward_parts': lambda: losses.gdpo(x, jnp.zeros(2, int)),
    'part_weights': lambda: losses.gdpo(
      one, jnp.zeros(2, int), part_weights=(1.0, 2.0)
    ),
    'old_values': lambda: losses.value_loss(LOGP, LOGP, MASK, value_clip=0.1),
    'entropy': lambda: losses.top_entropy_tokens(x, MASK),
    'token_mean': lambda: losses.aggregate(LOGP, MASK, 'mean'),
    "ratio='tokens'": lambda: losses.ppo_clip(
      LOGP, LOGP, ADV, MASK, ratio='tokens'
    ),
    "kl='k4'": lambda: losses.kl_penalty(LOGP, LOGP, 'k4'),
    "singleton='none'": lambda: losses.group_mean(
      x, jnp.zeros(2, int), singleton='none'
    ),
    "divergence='js'": lambda: losses.dppo(
      LOGP, LOGP, ADV, MASK, divergence='js'
    ),
    'mask holds 0.5': lambda: losses.aggregate(LOGP, MASK * 0.5, 'token_mean'),
    'holds 2': lambda: losses.row_count(MASK * 2),
  }
  for message, call in calls.items():
    with pytest.raises(ValueError, match=message):
      call()


def test_one_dimension_means_rows_where_both_sizes_are_the_same():
  mask, logp = jnp.ones((2, 2)), -jnp.ones((2, 2))
  x = losses.ppo_clip(logp, None, ADV, mask)
  close(x, [[-1, -1], [1, 1]], 0)


@pytest.mark.parametrize(
  'settings,missing',
  [
    ('vapo', 'sft_mask'),
    ('luffy', 'is_offpolicy'),
    ({'offpolicy': 'sft'}, 'is_offpolicy'),
    ('flash_rl', 'sampler_logp'),
    ({'veto': 0.1}, 'sampler_logp'),
    ({'correction': 'mask', 'correction_normalise': True}, 'sampler_logp'),
    ('top_entropy', 'entropy'),
    ('archer', 'entropy'),
    ({'ratio_to': 'sampler'}, 'sampler_logp'),
    ('clip_cov', 'key'),
  ],
)
def test_no_array_that_needs_names_is_dropped_silently(settings, missing):
  o = losses.resolve(settings)
  everything = dict(
    old_logp=LOGP,
    ref_logp=LOGP,
    sampler_logp=LOGP,
    entropy=-LOGP,
    sft_mask=MASK,
    is_offpolicy=jnp.zeros((2, 3)),
    key=jax.random.key(0),
  )
  assert missing in o.needs
  del everything[missing]
  with pytest.raises(ValueError, match=f"'{missing}', which is missing"):
    losses.policy_loss(o, LOGP, ADV, MASK, **everything)


def test_masks_and_denominators_name_the_arrays_they_need():
  calls = {
    'truncated': lambda: losses.loss_mask({'drop_truncated': True}, MASK),
    'is_offpolicy': lambda: losses.loss_mask({'offpolicy': 'drop'}, MASK),
    'sft_mask': lambda: losses.denominators('vapo', MASK),
    'sampler_logp': lambda: losses.denominators(
      {'correction': 'truncate', 'correction_normalise': True},
      MASK,
      old_logp=LOGP,
    ),
    'old_mean_logp': lambda: losses.bellman_loss(
      'rover', jnp.zeros((2, 3, 4)), MASK, ADV, MASK, old_logp=LOGP
    ),
    'ref_logp': lambda: losses.advantages(
      'rloo', ADV, jnp.zeros(2, int), mask=MASK, old_logp=LOGP
    ),
    'reward_parts': lambda: losses.advantages(
      'gdpo', ADV, jnp.zeros(2, int), mask=MASK
    ),
  }
  for missing, call in calls.items():
    with pytest.raises(ValueError, match=f"'{missing}', which is missing"):
      call()


def test_ties_have_the_subgradient_0():
  """If the policy equals the sampler and the reference, |log ratio| has
  gradient 0 for every token.
  """
  at = jnp.ones((1, 1))

  def slope(fn):
    return jax.grad(lambda lp: fn(lp).sum())(-at)

  close(slope(lambda lp: losses.kl_penalty(lp, -at, 'abs')), 0 * at, 0)
  cov = slope(lambda lp: losses.kl_cov(lp, None, 0 * at, at, at))
  close(cov, 0 * at, 0)
  # A clip of width 0 keeps the whole gradient on its bound, not half of it.
  clip = slope(lambda lp: losses.kl_penalty(lp, -at - 1, 'k1', kl_max=1.0))
  close(clip, at, 0)
  value = slope(
    lambda v: losses.value_loss(v, at, at, old_values=v, value_clip=0.0)
  )
  close(value, -2 * at, 0)
  far = slope(lambda lp: losses.importance_sampling(lp, -41 * at, -at, at))
  close(far, np.exp(40.0) * at, 1e-5)


def test_clip_metrics_count_clipped_tokens():
  """Metrics count exactly the tokens without gradient."""
  ratio = jnp.exp(jnp.array([[-0.45, -0.3, 0.1], [0.35, 0.45, 1.2]]))
  mask, old = jnp.ones((2, 3)), LOGP
  entropy = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
  cases = {
    'gmpo': {},
    'grpo': {'kl_coef': 0.0},
    'dapo': {'dual_clip': 2.0},
    'archer': {'kl_coef': 0.0},
    'cpgd': {'drift_coef': 0.0},
    'dppo': {},
  }
  for name, changes in cases.items():
    o = losses.resolve({'name': name, **changes})
    for sign in (1.0, -1.0):
      adv = jnp.full(2, sign)

      def loss(logp, o=o, adv=adv):
        return losses.policy_loss(
          o, logp, adv, mask, old_logp=old, entropy=entropy
        )

      grad, metrics = jax.grad(loss, has_aux=True)(old + jnp.log(ratio))
      counted = sum(v for k, v in metrics.items() if k.startswith('clip_'))
      close(counted, np.mean(np.asarray(grad) == 0), 1e-6, (name, sign))
  _, metrics = losses.policy_loss(
    'cispo', old + jnp.log(6.0), jnp.full(2, -1.0), mask, old_logp=old
  )
  close(metrics['clip_high'], 1.0, 0)


def test_clamped_kl():
  """'+' keeps the gradient of k2 beyond the clamp; 'weighted' clamps last."""
  logp, ref = jnp.full((1, 1), -1.0), jnp.full((1, 1), -4.0)
  for name in ('k1+', 'k3+', 'abs+'):
    value, slope = jax.value_and_grad(
      lambda lp, k=name: losses.kl_penalty(lp, ref, k, kl_max=1.0).sum()
    )(logp)
    close(value, 1.0, 1e-6)
    close(slope, [[3.0]], 1e-6)
  old, mask, adv = logp - jnp.log(2.0), jnp.ones((1, 1)), jnp.zeros(1)
  for where, want in (('estimate', 2.0), ('weighted', 1.0)):
    s = dict(kl_coef=1.0, kl='k1', kl_max=1.0, kl_weighted=True)
    loss, _ = losses.policy_loss(
      {**s, 'kl_max_on': where}, logp, adv, mask, old_logp=old, ref_logp=ref
    )
    close(loss, want, 1e-6, where)


def test_counts_follow_the_precision():
  assert losses.counts(MASK)['tokens'].dtype == jnp.float32
  with jax.enable_x64(True):
    assert losses.counts(MASK)['tokens'].dtype == jnp.float64
    x = jnp.ones((2, 3), jnp.float32)
    assert losses.aggregate(x, MASK, 'token_mean').dtype == jnp.float32


@pytest.mark.parametrize('name', losses.PRESETS)
def test_a_token_no_policy_can_draw_is_left_out_and_counted(name):
  """With -inf at one token, values are finite and other gradients do not
  change.
  """
  o = losses.resolve(name)
  rng = np.random.default_rng(0)
  one = -np.float32(rng.random((2, 3)) + 0.1)
  logp = one.copy()
  logp[1, 1] = -np.inf
  mask, reward = np.ones((2, 3), bool), np.float32([1.0, -1.0])
  rows = dict(ref_logp=one, sampler_logp=one * 1.1, old_logp=one * 0.9)
  teacher = dict(teacher_logp=one * 1.2, teacher_kl=-one, old_divergence=-one)
  extra = dict(entropy=-one, sft_mask=mask, key=jax.random.key(0))
  extra |= dict(is_offpolicy=~mask, group=np.array([0, 0]))
  if o.takes_logits:
    logits = np.float32(rng.normal(size=(2, 3, 4)))
    logits[1, 1, 0] = -np.inf
    del rows['sampler_logp']

    def loss(x):
      tokens = np.zeros((2, 3), int)
      return losses.bellman_loss(
        o, x, tokens, reward, mask, **rows, old_mean_logp=one
      )

    x = logits
  else:

    def loss(x):
      given = dict(rows, **extra, **teacher)
      return losses.policy_loss(o, x, reward, mask, **given)

    x = logp
  (value, metrics), grad = jax.value_and_grad(loss, has_aux=True)(x)
  assert np.isfinite(value) and np.isfinite(grad).all(), name
  assert all(np.isfinite(m) for m in metrics.values()), metrics
  assert np.any(grad) and not np.any(grad[1, 1])
  close(metrics['nonfinite_tokens'], 1 / 6, 1e-6)


def test_a_kl_in_the_reward_excludes_tokens_the_reference_cannot_draw():
  ref = LOGP.at[0, 0].set(-jnp.inf)
  reward, group = jnp.array([1.0, 0.0]), jnp.zeros(2, int)
  for name in ('rloo', 'reinforce_pp'):
    adv = losses.advantages(
      name, reward, group, mask=MASK, old_logp=LOGP, ref_logp=ref
    )
    assert np.isfinite(adv).all() and np.any(adv), name


def test_lists_are_accepted_as_arrays():
  logp, mask = LOGP.tolist(), [[1, 1, 0], [1, 1, 1]]
  for name in ('grpo', 'prime', 'tree_rl'):
    given = dict(
      process_reward=logp,
      node_ids=[[0, 1, 2], [3, 4, 5]], old_logp=logp, ref_logp=logp,
    )  # fmt: skip
    adv = losses.advantages(name, [1.0, 0.0], [0, 0], mask=mask, **given)
    array = {k: jnp.asarray(x) for k, x in given.items()}
    want = losses.advantages(
      name, jnp.array([1.0, 0]), jnp.zeros(2, int), mask=MASK, **array
    )
    close(adv, want, 0, name)
    d = losses.denominators(name, mask)
    loss, _ = losses.policy_loss(
      name, logp, adv.tolist(), mask, old_logp=logp, ref_logp=logp,
      denominators=d,
    )  # fmt: skip
    assert np.isfinite(loss)


def test_a_missing_divisor_is_named():
  for call in (
    lambda d: losses.policy_loss('dapo', LOGP, ADV, MASK, denominators=d),
    lambda d: losses.aggregate(LOGP, MASK, 'token_mean', denominators=d),
    lambda d: losses.critic_loss('ppo', LOGP, LOGP, MASK, denominators=d),
  ):
    with pytest.raises(ValueError, match='is missing: pass .*denominators'):
      call({'rows': 2.0})


def test_a_soft_mask_inside_jit_makes_the_loss_nan():
  """Values cannot be checked inside jit, so the loss is NaN."""

  @jax.jit
  def loss(mask):
    return losses.policy_loss('dapo', LOGP, ADV, mask)[0]

  want, _ = losses.policy_loss('dapo', LOGP, ADV, MASK)
  close(loss(MASK.astype(float)), want, 1e-6)
  assert np.isnan(loss(MASK * 0.5)) and np.isnan(loss(MASK * 2))


def test_changed_numbers_are_in_all_parts_or_refused():
  o = losses.resolve('dapo').with_numbers({'clip_high': 0.3})
  assert o['clip_high'] == o.policy.high == 0.3 and o['clip_low'] == 0.2
  words = "'cliphigh'. Did you mean 'clip_high'\\? Its parts read"
  with pytest.raises(ValueError, match=words):
    losses.resolve('dapo').with_numbers({'cliphigh': 0.3})
  for wrong in ('cliphigh', 'kl_coef', 'tau_pos'):
    with pytest.raises(ValueError, match=f'no part .* reads {wrong!r}'):
      losses.resolve('dapo').with_numbers({wrong: 0.3})


def test_public_names_are_the_imported_names():
  """No submodule and no helper is a public name of `losses`."""
  tree = ast.parse(pathlib.Path(losses.__file__).read_text())
  imports = [x for x in tree.body if isinstance(x, ast.ImportFrom)]
  names = {alias.name for x in imports for alias in x.names}
  assert set(losses.__all__) == names == set(dir(losses))
  assert len(losses.__all__) == len(names)
  public = [getattr(losses, name) for name in losses.__all__]
  assert not any(inspect.ismodule(x) for x in public)


def test_written_fields_are_those_of_the_function():
  def halve(x, *, power: float = 2.0):
    return x / power

  class Wrong(losses.Part):
    power: float = 3.0

  with pytest.raises(TypeError, match='Wrong has the fields .*3.0.* halve'):
    objective_part.part_of(halve)(Wrong)
