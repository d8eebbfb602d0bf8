"""A plan counts a teacher's bytes, their memory, and its operations."""

import json

import jax
import numpy as np
import pytest
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.data import teacher_answers
from jaxrl_reason.models import spec, weights, zoo
from jaxrl_reason.planning import (
  abstract,
  costs,
  phases,
  plan_table,
  planner,
  roofline,
  second_models,
)
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run.process import chips

NAME = 'qwen3-0.6b'
TINY = ROOT / 'configs' / 'arithmetic_tiny.py'


def planned(**changes):
  """Returns the phases of a recipe with a teacher, by name."""
  config = config_lib.read(load_recipe(TINY).get_config())
  config = config.changed({k.replace('__', '.'): x for k, x in changes.items()})
  teacher = abstract.sized_teacher(config.rl.teacher.weights)
  config = config.changed(rl__teacher__weights=teacher)
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  parts = abstract.shapes(config, mesh)
  return {p.name: p for p in phases.phases(parts)}


def taught(**changes):
  own = dict(rl__algorithm='opd', rl__teacher__weights=f'hf:Qwen/{NAME}')
  return planned(**own | changes)


@pytest.fixture(scope='module')
def alone():
  return planned(rl__algorithm='reinforce')['step']


def grown(step, alone) -> float:
  return described.on_chip(step.state) - described.on_chip(alone.state)


def test_bytes_of_a_teacher_are_counted_in_their_memory(alone):
  n = trees.n_params(spec.abstract(weights.specs(zoo.ZOO[NAME])))
  float32 = grown(taught()['step'], alone)
  assert float32 == 4 * n
  half = grown(taught(rl__teacher__dtype='bfloat16')['step'], alone)
  assert half == pytest.approx(2 * n, rel=0.01)
  # A quarter of this small model are embeddings, which stay bfloat16.
  assert n < grown(taught(rl__teacher__dtype='int8')['step'], alone) < 1.4 * n
  assert grown(taught(rl__teacher__memory='host')['step'], alone) == 0


def test_passes_of_a_teacher_are_counted():
  """A teacher has one pass before the update, or one per epoch inside it."""
  once = taught()['step'].flops
  rows, columns = 64 * 8, 20 + 17
  one = rows * columns * zoo_flops((columns - 1) / 2)
  assert once == pytest.approx(one, rel=0.3)  # logits in only 17 columns
  changes = dict(rl__algorithm='kdrl', rl__logprob_chunk=8, rl__epochs=3)
  changes |= dict(rl__loss__distill='jsd')
  assert taught(**changes)['step'].flops == pytest.approx(3 * once, rel=0.1)


def test_passes_over_whole_distributions_are_counted(alone):
  """`otb` sums squares before the update. `dppo_top_k` computes the old policy
  inside the update.
  """

  def flops(**changes):
    return planned(**changes)['step'].flops

  one = flops(rl__algorithm='otb') - alone.flops
  assert one > 0
  twice = dict(rl__epochs=2, rl__logprob_chunk=8)
  plain = flops(rl__algorithm='dppo', **twice)
  beside = flops(rl__algorithm='dppo_top_k', **twice)
  assert beside - plain == pytest.approx(2 * one, rel=1e-6)


def zoo_flops(context: float) -> float:
  """Computes two FLOPs per parameter and token, and four per layer, head width
  and attended token.
  """
  c = zoo.ZOO[NAME]
  n = trees.n_params(spec.abstract(weights.specs(c)))
  return 2 * n + 4 * c.layers * c.heads * c.head_dim * context


def test_the_host_path_has_its_pass_in_the_scoring_program():
  host = dict(rl__path='host', rl__steps_per_dispatch=1)
  assert taught(**host)['score'].flops > 0
  assert 'score' not in planned(rl__algorithm='reinforce', **host)


def test_an_unknown_teacher_is_refused():
  with pytest.raises(ValueError, match="rl.teacher.weights='runs/none' is no"):
    taught(rl__teacher__weights='runs/none')


def test_stages_of_pairs_are_counted(alone):
  """No file of pairs is needed. A reward model is a second model, and has no
  logits.
  """
  stages = {'stages': ('preference', 'reward_model')}
  stages |= {f'{kind}__pairs': 'none.jsonl' for kind in stages['stages']}
  stages |= {f'{kind}__rows': 8 for kind in stages['stages']}
  found = planned(**stages)
  one = found['reward_model'].flops / 3  # forward passes
  assert one < found['preference'].flops / 4  # with logits, and a reference
  n = trees.n_params(found['reward_model'].state.params)
  bytes_of = described.on_chip(found['reward_model'].state)
  # The policy, a copy with its head, and two moments of the copy.
  assert bytes_of == pytest.approx(4 * (4 * n + 3 * 128), rel=1e-3)


def test_the_third_block_of_kto_is_counted():
  own = {'stages': ('preference',), 'preference__pairs': 'none.jsonl'}
  one, more = (
    planned(**own | {'preference__loss': loss})['preference'].flops
    for loss in ('dpo', 'kto')
  )
  assert more == pytest.approx(1.5 * one)


@pytest.mark.parametrize(
  'kind, passes', [('preference', 2), ('reward_model', 1)]
)
def test_an_evaluation_of_held_out_pairs_is_counted(kind, passes):
  """It has only forward passes, over all held-out pairs."""
  own = {'stages': (kind,), f'{kind}__pairs': 'none.jsonl'}
  own |= {f'{kind}__rows': 8, f'{kind}__heldout': 24}
  found = planned(**own)
  assert list(found) == ['evaluate', kind, f'heldout_{kind}']
  assert phases.of_a_step(found) == [kind]
  held = found[f'heldout_{kind}']
  one = found[kind].flops / (2 + passes)
  assert held.flops == 3 * passes * one and held.calls == 1
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  text = held.lower(mesh).compile().as_text()
  # Attention computes masked scores too; the formula has the causal half.
  assert 0.9 < costs.of(text, mesh).total().flops / held.flops < 1.4


def test_the_time_of_evaluations_is_counted_by_stage():
  config = config_lib.Run().changed({
    'stages': ('sft', 'preference'), 'sft.steps': 100, 'preference.steps': 70,
    'eval.every': 30,
  })  # fmt: skip
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  seconds = {'evaluate': 2.0, 'sft': 9.0, 'heldout_preference': 0.5}
  each = [{'phase': k, 'step_seconds': x} for k, x in seconds.items()]
  found = plan_table.evaluation_facts(config, mesh, each)['stages']
  # Steps 0, 30, 60, 90 and 100; then steps 30, 60 and 70 of the second stage.
  assert found['sft'] == {'times': 5, 'heldout': 0, 'seconds': 10.0}
  assert found['preference'] == {'times': 3, 'heldout': 0.5, 'seconds': 7.5}


def test_the_rows_of_a_stored_teacher_are_counted(tmp_path):
  """Their width is that of the file, and there is no second model."""
  path = tmp_path / 'answers.jsonl'
  top = teacher_answers.field([1], np.zeros((1, 5)), np.zeros((1, 6)), 'x')
  path.write_text(json.dumps({'prompt': '1+1=', 'top': top}) + '\n')
  own = {'stages': ('sft',), 'sft__teacher': str(path)}
  soft, hard = (planned(**own, sft__loss=x)['sft'] for x in ('topk', 'sft'))
  assert soft.args[2]['teacher_top'].ids.shape[-1] == 5
  assert 'teacher_top' not in hard.args[2]
  assert soft.flops == hard.flops


def misfit(config, facts, has=16.0):
  """Returns the end of the error of a plan with one phase."""
  facts = facts | {'phase': 'update', 'fits': False, 'needs_gib': 20.0}
  facts['remedy'] = second_models.remedy(config.rl, facts, has)
  text = planner.misfits({'phases': [facts], 'hbm_gib': has})
  start = f'update does not fit: needs 20.00 of {has:.2f} GiB a chip'
  assert text.startswith(start)
  return text.removeprefix(start)


def test_the_models_without_room_are_named_with_their_settings():
  config = config_lib.read(load_recipe(TINY).get_config()).changed({
    'rl.teacher.weights': 'a', 'rl.reward_model.weights': 'runs/b',
  })  # fmt: skip
  facts = {'beside_gib': {'reference': 0.5, 'teacher': 6.0}}
  assert misfit(config, facts) == (
    ", with 6.00 of the teacher. Less memory: rl.teacher.memory='host', "
    "rl.teacher.dtype='int8', a larger fsdp axis"
  )
  # Host memory is no remedy: the weights would be copied to a chip on which
  # they do not fit.
  assert 'teacher.memory' not in misfit(config, facts, 5.0)
  assert ', with 6.00 of the teacher and 0.50 of the reference. ' in misfit(
    config, facts, 8.0
  )
  assert "rl.reference_memory='host'" in misfit(config, facts, 8.0)
  small = config.changed({'rl.teacher.dtype': 'int8'})
  assert 'dtype' not in misfit(small, facts)
  rewards = misfit(config, {'beside_gib': {'reward model': 5.0}})
  assert "a smaller model than rl.reward_model.weights='runs/b', a" in rewards
  assert misfit(config, {}) == misfit(config, {'beside_gib': {}}) == ''


def test_a_phase_without_room_has_the_models_of_its_state(monkeypatch):
  """The compiler's message becomes an error that names them. A model in host
  memory is not named.
  """
  n = trees.n_params(spec.abstract(weights.specs(zoo.ZOO[NAME])))
  found = taught()['step']

  def full(*rest):
    raise jax.errors.JaxRuntimeError(
      'RESOURCE_EXHAUSTED: Used 20.00G of 15.75G hbm.'
    )

  monkeypatch.setattr(phases.Phase, 'lower', full)
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  with pytest.raises(described.DoesNotFit) as e:
    described.measure(found, mesh)
  facts = plan_table.no_room(e.value, found.state)
  assert facts['beside_gib'] == {'teacher': pytest.approx(4 * n / 2**30)}
  assert facts['needs_gib'] == 20.0
  host = taught(rl__teacher__memory='host')['step']
  assert plan_table.no_room(e.value, host.state)['beside_gib'] == {}


def sampled_and_trained(**changes) -> tuple[float, float]:
  """Returns the FLOPs of (sampling, one epoch) of a step of 8 problems and 4
  samples.
  """
  own = dict(rl__prompts=8, rl__samples=4, rl__algorithm='grpo')
  own |= {'rl__loss__kl_coef': 0.0} | changes
  once, twice = (
    planned(**own | {'rl__epochs': n, 'rl__old_logp': 'sampler'})['step'].flops
    for n in (1, 2)
  )
  return 2 * once - twice, twice - once


@pytest.mark.parametrize(
  'changes, sampled, trained',
  [
    # Four proposals to each of 8 problems, and four answers to each proposal.
    ({'rl__propose': '?', 'data__name': 'proposed'}, 5, 5),
    ({'rl__extra__groups': 4}, 1.5, 1.5),
    ({'rl__refill_rounds': 2, 'rl__filter': 'dead_groups'}, 3, 1),
    ({'rl__replay__rows': 8, 'rl__replay__capacity': 8}, 1, 1.25),
  ],
)
def test_the_rows_of_every_round_are_counted(changes, sampled, trained):
  plain, update = sampled_and_trained()
  found = sampled_and_trained(**changes)
  assert found == pytest.approx((sampled * plain, trained * update))


def test_failed_problems_are_sampled_again_with_a_hint():
  """With a hint the prompt has more columns in both rounds."""
  hints = {'rl__hints__room': 4, 'rl__hints__at': (0.0,)}
  again = sampled_and_trained(**hints, rl__hints__when='failed')
  first = sampled_and_trained(**hints)
  assert again == pytest.approx((2 * first[0], first[1]))


@pytest.mark.parametrize(
  'key, value, others',
  [
    ('rl__refill_rounds', 2, {'rl__filter': 'dead_groups'}),
    ('rl__extra__groups', 4, {}),
    ('rl__hints__room', 4, {}),
    (
      'rl__replay__rows',
      8,
      {'rl__replay__capacity': 64, 'rl__old_logp': 'sampler'},
    ),
  ],
)
def test_further_rounds_on_the_host_are_refused(key, value, others):
  name, host = key.replace('__', '.'), dict(rl__path='host')
  host |= {'rl__steps_per_dispatch': 1, key: value}
  with pytest.raises(ValueError, match=f"{name}={value}: .*rl.path='host'"):
    planned(**host, **others)


def test_settings_of_rl_do_not_refuse_a_supervised_stage():
  """Only the evaluation depends on tools in Python."""
  tools = {'rl__path': 'host', 'rl__turns__env': 'calculator'}
  tools['rl__steps_per_dispatch'] = 1
  chunks = {'rl__chunks__tokens': 4, 'rl__chunks__carry': 2}
  for changes in ({'rl__tree__width': 2}, chunks, tools):
    found = planned(stages=('sft',), **changes)
    wanted = ['sft'] if changes is tools else ['evaluate', 'sft']
    assert list(found) == wanted
    with pytest.raises(ValueError, match='a plan counts'):
      planned(stages=('sft', 'rl'), **changes)


def test_tokens_a_second_are_those_of_every_round():
  """Four answers to each of 32 proposals, besides the proposals."""
  config = config_lib.read(load_recipe(TINY).get_config()).changed({
    'stages': ('rl',), 'rl.prompts': 8, 'rl.samples': 4, 'rl.propose': '?',
  })  # fmt: skip
  keys = 'step_seconds', 'serial_seconds', 'ordered_seconds'
  step = {'phase': 'step', 'fits': True, **dict.fromkeys(keys, 2.0)}
  step |= {'flops': 1.0, 'model_flops': 1.0, 'calls_per_step': 1}
  step |= {'exposed_seconds': 0.0}
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  machine = roofline.Machine(chips.CHIPS['v5e'], (1, 1))
  given = config, mesh, [step], ['step'], machine
  rate = plan_table.plan_facts(*given)['tokens_per_s']
  assert rate == (32 + 32 * 4) * config.data.completion_len / 2.0
