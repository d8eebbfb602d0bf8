"""Counts the FLOPs of the phases of a step by the model's formula."""

import math
from typing import Any

from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.update.scoring import OF_LOGITS


class Costs:
  """Counts FLOPs by the model's formula: forward 1 and gradient 2 passes."""

  def __init__(self, parts: Prepared, columns: int = 0):
    """Args: columns: that parts of a step add to rows."""
    d, c = parts.config.data, parts.config.rl
    prompt_len, self.added = parts.config.prompt_columns, columns
    self.length, self.new = prompt_len + d.completion_len, d.completion_len
    self.rows, self.samples = c.trained_rows, c.samples
    self.groups = c.sampled_groups
    self.prompt_len, self.of = prompt_len, parts.model.flops_per_token
    self.model = parts.model

  def forward(self, rows: int, n_logits: int, model: Any = None) -> float:
    """Counts the FLOPs of whole rows; the head multiplies n_logits of a row's
    tokens.

    Args:
      model: None: the policy.
    """
    model = self.model if model is None else model
    t = self.length + self.added
    whole = t * model.flops_per_token((t - 1) / 2)
    return rows * (whole - (t - n_logits) * _head(model))

  def teacher(self, learner) -> tuple[float, float]:
    """Counts the FLOPs of the teacher before the update, and inside it."""
    if learner.teacher is None:
      return 0.0, 0.0
    one = self.forward(self.rows, self.new, learner.teacher.model)
    before = 'teacher_logp' in learner.needs
    inside = learner.epochs * ('teacher_kl' in learner.needs)
    return before * one, inside * one

  def reward(self, learner) -> float:
    """Counts the FLOPs of a reward model, and of verdicts before the update."""
    critic = learner.reward_model
    rated = self.forward(self.rows, 0, critic.model) if critic else 0.0
    return rated + bool(self.added) * self.forward(self.rows, 1)

  def sample(self) -> float:
    """Counts the FLOPs of all completions of a step."""
    return self.generate(self.groups, self.samples)

  def generate(self, prompts: int, samples: int) -> float:
    p, c = self.prompt_len, self.new
    prefill = p * self.of((p - 1) / 2) - (p - 1) * _head(self.model)
    return prompts * (prefill + samples * c * self.of(p + c / 2))


def _head(model: Any) -> float:
  """Counts the FLOPs of a token's logits."""
  return 2.0 * math.prod(model.specs['embed'].shape)


def passes_of(learner) -> tuple[int, float]:
  """Returns (scoring passes before the update, passes of the update)."""
  early = learner.reads_entropy_early or learner.needs & {*OF_LOGITS}
  networks = 1 + bool(learner.critic)
  scored = learner.reads_reference + bool(learner.moves or early)
  beside = 'old_divergence' in learner.needs  # a forward of the old policy
  return scored + networks - 1, learner.epochs * (3.0 * networks + beside)
