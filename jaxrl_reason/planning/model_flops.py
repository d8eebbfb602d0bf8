"""Counts the FLOPs of the phases of a step by the model's formula."""

import math
from collections.abc import Collection, Iterable
from typing import Any

from jaxrl_reason.config import RL
from jaxrl_reason.rollouts import views
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import hidden_settings
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
    # Columns of a prompt that only the teacher reads; 0: there is none.
    self.prompted = c.teacher.prompt_len if c.teacher.prompt else 0

  def forward(
    self, rows: int, n_logits: int, model: Any = None, length: int = 0
  ) -> float:
    """Counts the FLOPs of whole rows; the head multiplies n_logits of a row's
    tokens.

    Args:
      model: None: the policy.
      length: T of the rows; 0: that of the update, with all added columns.
    """
    model = self.model if model is None else model
    t = length or self.length + self.added
    whole = t * model.flops_per_token((t - 1) / 2)
    return rows * (whole - (t - n_logits) * _head(model))

  def teacher(self, learner) -> tuple[float, float]:
    """Counts the FLOPs of the teacher before the update, and inside it."""
    if learner.teacher is None:
      return 0.0, 0.0
    t = self.prompted and self.prompted + self.new + self.added
    one = self.forward(self.rows, self.new, learner.teacher.model, t)
    before = 'teacher_logp' in learner.needs
    inside = learner.epochs * ('teacher_kl' in learner.needs)
    return before * one, inside * one

  def views(
    self, names: Collection[str], hidden: float, learner, judges: Iterable
  ) -> float:
    """Counts the FLOPs of the views that rewards read, in every round.

    Args:
      names: of the views.
      hidden: share of the layers in a pass to hidden states; 0: there is none.
      judges: a `judging.Judge` for each question of the rewards 'verdict'.
    """
    rows, t = self.groups * self.samples, self.length
    whole = self.forward(rows, self.new, length=t)
    flops = views.passes(names, self.samples) * whole
    if views.HIDDEN in names:
      flops += hidden * self.forward(rows, 0, length=t)
    if learner.reward_model:
      flops += self.forward(rows, 0, learner.reward_model.model, t)
    for judge in judges:
      asks, passes = judge.verdicts, judge.passes(self.samples)
      one = self.forward(rows, 1, asks.model, t + asks.columns)
      start, new = judge.thought
      if new:
        start += t
        one += self.forward(rows, 1, asks.model, start)
        one += rows * new * asks.model.flops_per_token(start + new / 2)
      flops += passes * one
    return flops

  def parts(self, c: RL, hidden: float) -> float:
    """Counts the FLOPs of the probe, and of the policy's verdicts before the
    update.
    """
    rows, t = hidden_settings.probe_passes(c) * self.rows, self.length
    if c.views.hidden.token == 'prompt_last' and not rows:
      rows, t = self.groups, self.prompt_len
    probed = hidden * self.forward(rows, 0, length=t)
    return probed + bool(self.added) * self.forward(self.rows, 1)

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
