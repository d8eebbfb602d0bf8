"""Code of a user of the public interface, which only a type checker reads.

mypy checks this file (`.ci/run`): the assert_type lines state the types of the
public interface, and every `type: ignore` marks a mistake that has to be found.
"""

from typing import assert_type

import jax
from flax import nnx

import jaxrl_reason as jr
from jaxrl_reason import base


def rollout(module: nnx.Module, prompts: jax.Array, valid: jax.Array) -> None:
  model, params = jr.from_nnx(module)
  assert_type(model, jr.Model)
  out = jr.sample(
    model,
    params,
    prompts,
    valid,
    jax.random.key(0),
    jr.Sampling.make(temperature=0.7, top_p=0.9),
    stop=prompts[0],
    n_samples=8,
    max_new=16,
  )
  assert_type(out, jr.Rollout)
  assert_type(out.tokens, jax.Array)
  assert_type(out.entropy, jax.Array | None)
  rows = jr.Rows(out.tokens, out.valid)
  logp, entropy, _ = jr.score(model, params, rows, jr.Sampling.make())
  assert_type(logp, jax.Array)
  assert_type(entropy, jax.Array)
  jr.sample(model, params, prompts)  # type: ignore[call-arg]
  jr.Sampling.make(heat=1.0)  # type: ignore[call-arg]


def loss(reward: jax.Array, group: jax.Array, logp: jax.Array) -> jax.Array:
  advantage = jr.losses.group_zscore(reward, group, ddof=1)
  assert_type(advantage, jax.Array)
  per_token = jr.losses.ppo_clip(logp, None, advantage, logp > 0)
  assert_type(jr.losses.resolve({'name': 'dapo'}), jr.losses.Objective)
  assert_type(jr.losses.PPOClip(low=0.2, high=0.3).dual, float | None)
  assert_type(jr.losses.KL('k3', coef=0.04).coef, float)
  jr.losses.PPOClip(lo=0.2)  # type: ignore[call-arg]
  jr.losses.DPPO(max_divergence='far')  # type: ignore[arg-type]
  jr.losses.CISPO(ratio_to='old')  # type: ignore[call-arg]
  jr.losses.Reject(reject=2.0)  # type: ignore[call-arg]
  jr.losses.Luffy(gamma=0.1)  # type: ignore[call-arg]
  jr.losses.nothing  # type: ignore[attr-defined]  # noqa: B018
  return jr.losses.aggregate(per_token, logp > 0, 'token_mean')


def functions(model: jr.Model, params: base.Params, tokens: jax.Array) -> None:
  hidden = model.hidden(params, tokens, tokens > 0)
  assert_type(hidden, jax.Array)
  assert_type(model.unembed(params, hidden), jax.Array)
  last, cache = model.prefill(params, tokens, tokens > 0, 4, 16, 16)
  assert_type(last, jax.Array)
  model.decode(params, tokens[:, 0], cache, tokens[0, 0], None)
  model.hidden(params, tokens)  # type: ignore[call-arg]
  model.fork(cache, tokens[0], 2)  # type: ignore[misc]


def verify(completion: str) -> float:
  assert_type(jr.verifiers.math.verify(completion, '1/2'), bool)
  verdict = jr.verifiers.math.grade(completion, '1/2')
  assert_type(verdict, jr.verifiers.Verdict)
  jr.verifiers.physics  # type: ignore[attr-defined]  # noqa: B018
  return verdict.score


def files(workdir: str) -> tuple[list[int], list[float]]:
  config = jr.config.default()
  state = jr.train(config, workdir)
  assert_type(state, base.TrainState | None)
  loaded = jr.load(workdir)
  assert_type(loaded.model, jr.Model)
  assert_type(jr.from_apply(lambda p, x: x, loaded.params), jr.Model)
  return jr.metric_series(jr.read_metrics(workdir), 'train/loss')
