"""Learning from tokens somebody else wrote: demonstrations and teachers.

Per token, [N, T], 0 outside the mask; hand the result to `aggregate` with the
mask of the demonstration tokens.
"""

import math

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import as_float, keep, safe_exp, stop
from jaxrl_reason.losses.kl import kl_exact


def sft(logp, mask):
  """-log pi(y_t), the negative log-likelihood."""
  return -keep(mask, logp)


def dft(logp, mask):
  """-sg(pi) log pi: DFT, https://arxiv.org/abs/2508.05629.

  Weighting by the probability undoes the 1 / pi that makes plain SFT a policy
  gradient with a badly behaved implicit reward.
  """
  logp = keep(mask, logp)
  return -stop(safe_exp(logp)) * logp


def luffy(logp, adv, mask, *, luffy_gamma=0.1):
  """-f(pi) A, f(p) = p / (p + gamma): policy shaping for off-policy tokens.

  LUFFY, https://arxiv.org/abs/2504.14945, with its behaviour probability of 1.
  The gradient gamma p / (p + gamma)^2 grad log pi is largest at p = gamma, so
  rare but decisive tokens are learnt. No clipping.
  """
  p = safe_exp(keep(mask, logp))
  return keep(mask, -stop(as_float(adv)) * p / (p + luffy_gamma))


def distill_reverse(logp, teacher_logp, mask):
  """-sg(log teacher - log pi) log pi on the student's own samples.

  On-policy distillation (https://arxiv.org/abs/2306.13649,
  https://thinkingmachines.ai/blog/on-policy-distillation): the policy gradient
  of KL(pi || teacher) with the k1 estimate as its reward.
  """
  logp = keep(mask, logp)
  return -stop(keep(mask, teacher_logp) - logp) * logp


def distill_forward(logits, teacher_logits, mask, *, chunk=None):
  """KL(teacher || pi) over the vocabulary [N, T, V], or over a teacher's top k.

  For a top k, hand in both policies' log-probabilities of those k tokens: they
  are renormalised over the k.
  """
  return kl_exact(
    logits, teacher_logits, mask=mask, direction='forward', chunk=chunk
  )


def anneal(step, *, start, end, steps, shape='linear'):
  """A coefficient going from `start` to `end` over `steps`, then held."""
  t = jnp.clip(as_float(step) / steps, 0.0, 1.0)
  if shape == 'cosine':
    t = 0.5 * (1 - jnp.cos(math.pi * t))
  return start + (end - start) * t
