"""A plan counts the operations of rewards, judges and hidden states."""

import jax
import pytest
from paths import load_recipe
from test_teacher_plan import NAME, TINY, grown, planned, taught

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.models import zoo
from jaxrl_reason.planning import abstract


@pytest.fixture(scope='module')
def alone():
  return planned(rl__algorithm='reinforce')['step']


def test_passes_of_rewards_are_counted(alone):
  """Rewards that read probabilities need passes; G = 8 rows have one prompt."""

  def beside(name):
    part = {'answer': {'reward': name}}
    step = planned(rl__algorithm='reinforce', rl__rewards=part)['step']
    return step.flops - alone.flops

  one = beside('neg_entropy')
  assert one > 0 and beside('majority') == 0
  assert beside('reference_prob') == one
  assert beside('reference_gain') == pytest.approx(one * 9 / 8)


def test_a_reward_model_is_counted(alone):
  """The plan counts its weights with a head, and a pass over rows without
  logits.
  """
  part = {'answer': {'reward': 'reward_model'}}
  own = dict(rl__algorithm='reinforce', rl__rewards=part)
  own['rl__reward_model__weights'] = 'stage:reward_model'
  step = planned(**own)['step']
  n = trees.n_params(alone.state.params)
  assert grown(step, alone) == 4 * (n + 128)
  rows, columns = 64 * 8, 20 + 17
  one = rows * columns * 2 * n
  assert step.flops - alone.flops == pytest.approx(one, rel=0.1)


def body(c, columns: int) -> float:
  """Computes the FLOPs of 64 rows of 8 samples without logits: two per weight
  of a projection and token, and four per layer, head width and attended token.
  """
  weights_of = c.width * (2 * c.heads + 2 * c.kv_heads) * c.head_dim
  weights_of += 3 * c.width * c.mlp
  attended = 4 * c.heads * c.head_dim * (columns - 1) / 2
  return 64 * 8 * columns * c.layers * (2 * weights_of + attended)


def test_a_judge_is_counted_by_its_own_model_and_columns(alone):
  """Its rows have the question '==' and the verdict, and one row of logits."""
  own = dict(rl__algorithm='reinforce', rl__verdict__ask='==')
  own |= dict(rl__verdict__yes='+', rl__verdict__no='-')
  own['rl__rewards'] = {'judge': {'reward': 'verdict'}}
  by = dict(rl__verdict__by='teacher', rl__teacher__weights=f'hf:Qwen/{NAME}')
  columns = 20 + 17 + 2 + 1
  policy = planned(**own)['step'].flops - alone.flops
  small = tiny_shape()
  one = body(small, columns) + 64 * 8 * 2 * small.vocab * small.width
  assert policy == pytest.approx(one, rel=1e-6)
  teacher = planned(**own | by)['step'].flops - alone.flops
  c = zoo.ZOO[NAME]
  one = body(c, columns) + 64 * 8 * 2 * c.vocab * c.width
  assert teacher == pytest.approx(one, rel=1e-6)
  both = planned(**own | by | dict(rl__algorithm='opd'))['step'].flops
  assert both - taught()['step'].flops == pytest.approx(teacher, rel=1e-6)


def test_comparisons_are_counted_in_both_orders(alone):
  """Two passes for each of the rivals, over rows with two completions."""
  own = dict(rl__algorithm='reinforce', rl__verdict__yes='+')
  own |= dict(rl__verdict__no='-')
  asks = dict(ask='={other}=', rivals=2)
  own['rl__rewards'] = {'judge': {'reward': 'verdict', 'kwargs': asks}}
  columns = 20 + 17 + 1 + 2 + 17 + 1 + 1
  small = tiny_shape()
  one = body(small, columns) + 64 * 8 * 2 * small.vocab * small.width
  found = planned(**own)['step'].flops - alone.flops
  assert found == pytest.approx(4 * one, rel=1e-6)


def test_a_thought_of_a_judge_is_counted(alone):
  """A prefill, a loop over 5 tokens, and a pass over rows with the thought."""
  own = dict(rl__algorithm='reinforce', rl__verdict__yes='+')
  own |= dict(rl__verdict__no='-')
  asks = dict(ask='=={thought}=', thought_len=5)
  own['rl__rewards'] = {'judge': {'reward': 'verdict', 'kwargs': asks}}
  small, start = tiny_shape(), 20 + 17 + 1 + 2
  head = 64 * 8 * 2 * small.vocab * small.width
  one = body(small, start) + body(small, start + 5 + 1 + 1 + 1) + 2 * head
  # A token after `seen` others costs as much as one of a row of 2 seen + 1.
  columns = 2 * (start + 5 / 2) + 1
  one += 5 * (body(small, columns) / columns + head)
  found = planned(**own)['step'].flops - alone.flops
  assert found == pytest.approx(one, rel=1e-6)


def test_items_of_a_rubric_are_counted():
  """A pass for each of 3 items, over rows with an item of 5 tokens and an
  answer of at most 17. A plan does not read the file.
  """
  own = dict(data__name='files', data__dir='missing.jsonl', data__knobs={})
  own |= dict(data__harder={}, data__tokenizer='byte')
  own |= dict(rl__algorithm='reinforce')
  asks = dict(ask='={criterion}={answer}', criteria=3, criterion_len=5)
  judge = dict(rl__verdict__yes='+', rl__verdict__no='-')
  judge['rl__rewards'] = {'judge': {'reward': 'verdict', 'kwargs': asks}}
  coin = dict(rl__rewards={'coin': {'reward': 'random'}})
  small = tiny_shape(**own)
  one = body(small, 20 + 17 + 2 + 5 + 17 + 1)
  one += 64 * 8 * 2 * small.vocab * small.width
  found, other = (planned(**own, **x)['step'].flops for x in (judge, coin))
  assert found - other == pytest.approx(3 * one, rel=1e-6)


def test_messages_of_verifiers_have_room_in_the_update():
  """The program of the plan is that of a run, whose rewards have messages."""
  text = dict(rl__teacher__prompt='{prompt}{detail}', rl__path='host')
  text |= dict(rl__teacher__prompt_len=57, rl__teacher__detail_len=7)
  text |= dict(rl__workers=1, rl__steps_per_dispatch=1)
  update = taught(**text)['update']
  lowered = update.lower(jax.tree.leaves(update.state)[0].sharding.mesh)
  state, _ = lowered.out_info
  assert jax.tree.structure(state) == jax.tree.structure(update.state)


def test_a_prompt_of_the_teacher_is_counted():
  text = dict(rl__teacher__prompt='{prompt}', rl__teacher__prompt_len=57)
  more = taught(**text)['step'].flops - taught()['step'].flops
  c = zoo.ZOO[NAME]
  assert more == pytest.approx(body(c, 57 + 17) - body(c, 37), rel=1e-6)


FAR = dict(rl__rewards={'far': {'reward': 'novelty_volume'}})
PROBE = dict(rl__probe__rate=1.0)
OFF_POLICY = dict(rl__staleness=1, rl__loss__policy='ppo_clip')
OFF_POLICY |= dict(rl__old_logp='sampler')


@pytest.mark.parametrize(
  'read, own, passes',
  [
    (FAR | PROBE, {}, 0),
    (FAR | PROBE, dict(rl__refill_rounds=1, rl__filter='dead_groups'), 1),
    (FAR | PROBE, dict(rl__slots=1), 1),
    (FAR | PROBE, dict(rl__slots=1) | OFF_POLICY, 2),
    (FAR, dict(rl__slots=1), 1),
    (PROBE, {}, 0),
  ],
)
def test_passes_to_hidden_states_are_counted(alone, read, own, passes):
  """The sampler reads the states without a pass, unless it decodes fewer slots
  than rows. Rows of several rounds or of an earlier policy have a pass for the
  probe. No pass has logits.
  """

  def flops(**more):
    return planned(rl__algorithm='reinforce', **more)['step'].flops

  plain, one = flops(**own), body(tiny_shape(), 20 + 17)
  for layers, share in (((-1,), 1), ((0,), 1 / 2), ((0, 1), 3 / 2)):  # of 2
    found = flops(**read, **own, rl__views__hidden__layers=layers)
    assert found - plain == pytest.approx(share * passes * one, rel=1e-6)


def test_states_of_prompts_take_a_pass_over_prompts(alone):
  read = PROBE | dict(rl__views__hidden__token='prompt_last')
  found = planned(rl__algorithm='reinforce', **read)['step'].flops
  one = body(tiny_shape(), 20) / 8
  assert found - alone.flops == pytest.approx(one, rel=1e-6)


def tiny_shape(**changes):
  config = config_lib.read(load_recipe(TINY).get_config())
  config = config.changed({k.replace('__', '.'): x for k, x in changes.items()})
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  return abstract.shapes(config, mesh).shape
