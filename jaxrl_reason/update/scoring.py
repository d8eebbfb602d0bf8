"""Passes over a batch without gradient: what its loss reads besides rewards.

Old and reference log-probs, entropies, a critic's output: each is computed
where the loss settings ask for it (`losses.needs`) and nowhere else. `views`
is what rewards read of the policy, before there is a batch.
"""

import math

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import logits as logits_lib
from jaxrl_reason import losses
from jaxrl_reason.base import Batch, Prompts, Rollout, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards.kernels import likelihood
from jaxrl_reason.update import critics, logprobs, packing
from jaxrl_reason.update.learner import Learner, reference

# (logits [N,c,V], tokens [N,c]) -> [N,c]: views of every token. Of the policy
# itself: a filter that leaves one token would make any token certain.
TOKEN_VIEWS = {
  'logp': logits_lib.token_logp,
  'entropy': lambda logits, tokens: logits_lib.entropy(logits),
  'uniform_kl': lambda logits, tokens: likelihood.uniform_kl(logits),
}


def forward(learner: Learner, params, batch: Batch, packed=None):
  """(hidden [N,T,D], load balance of experts or None), the batch's routes
  replayed where it has any; of packed rows [R,L,D].
  """
  rows = batch.tokens, batch.valid, batch.routes, packed
  return logprobs.forward(learner.model, params, *rows)


def score(
  learner: Learner,
  params,
  batch: Batch,
  sampling: Sampling,
  packed=None,
  hidden=None,
):
  """(log-probs, entropies) [N,T] of the distribution sampled from.

  Args:
    packed: where the rows' tokens lie in packed rows, or None.
    hidden: of `forward`, where the caller has them already.
  """
  return logprobs.score(
    learner.model,
    params,
    batch.tokens,
    batch.valid,
    sampling.replace(temperature=batch.temperature),
    start=learner.start,
    chunk=learner.logprob_chunk,
    routes=batch.routes,
    hidden=hidden,
    packed=packed,
  )


def by_parts(f, batch: Batch, parts: int):
  """f(batch) of arrays [N,T] without gradient, a part of the rows at a time."""
  return batch_lib.join(jax.lax.map(f, batch_lib.split(batch, parts)))


def fitted(learner: Learner, f, batch: Batch, parts: int):
  """`by_parts` of f(batch, packed), every part at the smallest shape that holds
  it (`packing`).
  """
  t = batch.tokens.shape[1]
  whole = lambda x: jnp.pad(x, ((0, 0), (0, t - x.shape[1])))
  at_size = lambda rows, packed: jax.tree.map(whole, f(rows, packed))
  of_part = lambda rows: packing.fit(learner.packing, rows.valid, rows, at_size)
  batch, order = packing.arranged(learner.packing, batch.valid, batch, parts)
  out = by_parts(of_part, batch, parts)
  if order is None:
    return out
  return jax.tree.map(lambda x: x[jnp.argsort(order)], out)


def scores(learner: Learner, params, batch: Batch, sampling, parts: int):
  """`score` of the whole batch without gradient, in parts of its rows."""
  of = lambda rows, packed: score(learner, params, rows, sampling, packed)
  return fitted(learner, of, batch, parts)


def whole_logits(
  learner: Learner, params, hidden, batch: Batch, sampling: Sampling
):
  """Whole logits [N,C,V] of the columns trained on, as they were drawn from;
  hidden: of `forward`.
  """
  logits = learner.model.unembed(params, hidden[:, learner.start - 1 : -1])
  heat = batch.temperature[:, None]
  taken = batch.tokens[:, learner.start :]
  return logits_lib.shape(logits, sampling.replace(temperature=heat), taken)


def _mean_logp(
  learner: Learner, params, batch: Batch, sampling: Sampling, packed
):
  """log-probs of the tokens and their mean over the vocabulary, [N,T] each."""
  sampling = sampling.replace(temperature=batch.temperature)

  def part(logits, taken, heat):
    drawn = sampling.replace(temperature=heat)
    logits = logits_lib.shape(logits, drawn, taken)
    return logits_lib.token_logp(logits, taken), losses.mean_logp(logits)

  return logprobs.over_columns(
    learner.model,
    params,
    batch.tokens,
    batch.valid,
    part,
    logprobs.heat_of(sampling, batch.tokens),
    start=learner.start,
    chunk=learner.logprob_chunk,
    routes=batch.routes,
    packed=packed,
  )


def views(
  learner: Learner,
  params,
  prompts: Prompts,
  rollout: Rollout,
  key: jax.Array,
  names: tuple[str, ...],
) -> Rollout:
  """The rollout with what its rewards read: `rollout.views`, by name.

    logp, entropy, uniform_kl   f32 [N,C], of the policy; see TOKEN_VIEWS
    group                       i32 [N], equal for the samples of a prompt
    uniform                     f32 [N], noise by (key, row)
    mask                        bool [N,C], tokens sampled; always there

  Token views take one more forward pass, of micro-batches and chunks of
  columns, as the update's own. The entropy and the divergence are over the
  model's V, the few ids past the tokenizer's included.
  """
  n, c = rollout.tokens.shape
  out = {'mask': jnp.arange(c) < rollout.length[:, None]}
  if 'group' in names:
    out['group'] = jnp.arange(n) // (n // prompts.tokens.shape[0])
  if 'uniform' in names:
    out['uniform'] = likelihood.uniforms(key, n)
  wanted = {k: f for k, f in TOKEN_VIEWS.items() if k in names}
  if wanted:
    of = lambda logits, tokens: {
      k: f(logits, tokens) for k, f in wanted.items()
    }
    look = lambda rows: logprobs.over_columns(
      learner.model,
      params,
      *rows[:2],
      of,
      start=learner.start,
      chunk=learner.logprob_chunk,
      routes=rows[2],
    )
    # Greedy completions are fewer rows than the micro-batches may divide.
    parts = math.gcd(n, learner.minibatches * learner.micro_batches)
    rows = by_parts(look, batch_lib.rows_of(prompts, rollout), parts)
    out |= {k: x[:, -c:] for k, x in rows.items()}
  return rollout.replace(views=out)


def add_arrays(
  learner: Learner, state: TrainState, batch: Batch, sampling: Sampling
) -> Batch:
  """Old and reference log-probs, entropies and a critic's output, where the
  loss reads them and only there.
  """
  parts = learner.minibatches * learner.micro_batches
  scored = lambda params, batch: scores(learner, params, batch, sampling, parts)
  if learner.reads_reference and batch.ref_logp is None:
    # Of its own routers' choice: with the policy's experts it would be no
    # fixed distribution, and would follow the policy.
    own = batch.replace(routes=None)
    batch = batch.replace(ref_logp=scored(reference(learner, state), own)[0])
  if learner.old_logp == 'sampler' and batch.old_logp is None:
    batch = batch.replace(old_logp=batch.sampler_logp)
  early_entropy = learner.settings['entropy_alpha'] != 0
  moves = learner.n_updates > 1 and batch.old_logp is None
  if 'old_mean_logp' in learner.needs:
    read = lambda rows, packed: _mean_logp(
      learner, state.params, rows, sampling, packed
    )
    old, mean = fitted(learner, read, batch, parts)
    batch = batch.replace(old_logp=old, old_mean_logp=mean)
  elif moves or early_entropy:
    old, entropy = scored(state.params, batch)
    batch = batch.replace(entropy=entropy) if early_entropy else batch
    batch = batch.replace(old_logp=old) if moves else batch
  if learner.critic:
    read = lambda rows: critics.evaluate(
      learner.critic, state.critic.params, state.params, rows
    )
    output = by_parts(read, batch, parts)
    batch = batch.replace(**{learner.critic.output: output})
  return batch
