"""Passes over a batch without gradient: what its loss reads besides rewards.

Old and reference log-probs, entropies, a critic's output: each is computed
where the loss settings ask for it (`losses.needs`) and nowhere else.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import critics, logprobs, losses
from jaxrl_reason import logits as logits_lib
from jaxrl_reason.base import Batch, TrainState
from jaxrl_reason.learner import Learner
from jaxrl_reason.logits import Sampling


def score(learner: Learner, params, batch: Batch, sampling: Sampling):
  """(log-probs, entropies) [N,T] of the distribution sampled from."""
  return logprobs.score(
    learner.model,
    params,
    batch.tokens,
    batch.valid,
    sampling.replace(temperature=batch.temperature),
    start=learner.start,
    chunk=learner.logprob_chunk,
  )


def by_parts(f, batch: Batch, parts: int):
  """f(batch) of arrays [N,T] without gradient, a part of the rows at a time."""
  return batch_lib.join(jax.lax.map(f, batch_lib.split(batch, parts)))


def whole_logits(learner: Learner, params, batch: Batch, sampling: Sampling):
  """Whole logits [N,C,V] of the columns trained on, as they were drawn from."""
  hidden = learner.model.hidden(params, batch.tokens, batch.valid)
  logits = learner.model.unembed(params, hidden[:, learner.start - 1 : -1])
  heat = batch.temperature[:, None]
  taken = batch.tokens[:, learner.start :]
  return logits_lib.shape(logits, sampling.replace(temperature=heat), taken)


def _mean_logp(learner: Learner, params, batch: Batch, sampling: Sampling):
  """log-probs of the tokens and their mean over the vocabulary, [N,T] each."""
  logits = whole_logits(learner, params, batch, sampling)
  logp = logits_lib.token_logp(logits, batch.tokens[:, learner.start :])
  pad = lambda x: jnp.pad(x, ((0, 0), (learner.start, 0)))
  return pad(logp), pad(losses.mean_logp(logits))


def add_arrays(
  learner: Learner, state: TrainState, batch: Batch, sampling: Sampling
) -> Batch:
  """Old and reference log-probs, entropies and a critic's output, where the
  loss reads them and only there.
  """
  parts = learner.minibatches * learner.micro_batches
  scored = lambda params: by_parts(
    lambda rows: score(learner, params, rows, sampling), batch, parts
  )
  if learner.reads_reference and batch.ref_logp is None:
    batch = batch.replace(ref_logp=scored(state.ref_params)[0])
  early_entropy = learner.settings['entropy_alpha'] != 0
  moves = learner.n_updates > 1 and batch.old_logp is None
  if 'old_mean_logp' in learner.needs:
    read = lambda rows: _mean_logp(learner, state.params, rows, sampling)
    old, mean = by_parts(read, batch, parts)
    batch = batch.replace(old_logp=old, old_mean_logp=mean)
  elif moves or early_entropy:
    old, entropy = scored(state.params)
    batch = batch.replace(entropy=entropy) if early_entropy else batch
    batch = batch.replace(old_logp=old) if moves else batch
  if learner.critic:
    read = lambda rows: critics.evaluate(
      learner.critic, state.critic.params, rows
    )
    output = by_parts(read, batch, parts)
    batch = batch.replace(**{learner.critic.output: output})
  return batch
