"""Device rewards: kernels composed to (rollout, answers) -> Reward.

  encode, reward_fn = make({'answer': {'reward': 'task'}}, 'integer', ...)

`encode(example)` runs in the data pipeline and returns the encoded answer for a
kernel; `reward_fn` runs inside the compiled step. If `reads` names views, the
source adds them to the Rollout first (`rollouts.views`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Reward, Rollout
from jaxrl_reason.data import mixture
from jaxrl_reason.names import nearest
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rewards.kernels import asked, final, reference
from jaxrl_reason.verifiers import compose, resolve


def routed(routes: mixture.Routes) -> kernels.Kernel | None:
  """Makes the kernel that scores every row by the kernel of its source; None if
  a source has no kernel.
  """
  kinds = list(dict.fromkeys(routes.kernels))
  chosen = [kernels.KERNELS.get(kind) for kind in kinds]
  if None in chosen or len(kinds) == 1:
    return chosen[0] if len(kinds) == 1 else None
  firsts = [routes.examples[routes.kernels.index(kind)] for kind in kinds]
  # Shapes depend only on the kernel, so zeros replace other kernels' answers.
  blank = [
    jax.tree.map(np.zeros_like, kernel.encode(example))
    for kernel, example in zip(chosen, firsts)
  ]

  def encode(example: dict) -> dict:
    own = kinds.index(routes.kernels[example['source']])
    out = {str(i): x for i, x in enumerate(blank)}
    return out | {'kind': np.int32(own), str(own): chosen[own].encode(example)}

  def score(text, length, answer):
    out = jnp.zeros(text.shape[0])
    for i, kernel in enumerate(chosen):
      mine = answer['kind'] == i
      out = jnp.where(mine, kernel.score(text, length, answer[str(i)]), out)
    return out

  return kernels.Kernel(score, encode)


def named(name: str, task_kernel) -> kernels.Kernel | None:
  """Returns the kernel of that name ('task': the task's own), or None."""
  name = task_kernel if name == 'task' else name
  if isinstance(name, mixture.Routes):
    return routed(name)
  return kernels.KERNELS.get(name) if isinstance(name, str) else None


def _beside(score: Callable, verifier: kernels.Kernel) -> kernels.Kernel:
  """Makes the kernel of a stated confidence beside the verifier of the
  answer.
  """

  def of(text, length, answer, *views):
    right = verifier.score(text, length, answer, *views) > 0.5
    return score(text, length, answer, right)

  return dataclasses.replace(verifier, score=of, knobs=('correct',))


def _kernel(
  part: str, spec: dict, task_kernel: str | mixture.Routes | None
) -> kernels.Kernel:
  """Returns the kernel of a reward part ('task': the task's own), with
  knobs.
  """
  host_only = sorted(spec.keys() - {'reward', 'weight', 'kwargs'})
  name, kwargs, near = spec['reward'], dict(spec.get('kwargs', {})), ''
  score = kernels.OF_CONFIDENCE.get(name)
  if score is not None:
    name = kwargs.pop('correct', 'task')
  kernel = named(name, task_kernel)
  if score is not None and kernel is not None:
    kernel = _beside(score, kernel)
  if kernel is None and name == 'task':
    problem = 'the verifier of this task runs in Python'
  elif kernel is None:
    near = nearest(
      f'{name}', ['task', *kernels.KERNELS, *kernels.OF_CONFIDENCE]
    )
    problem = f'there is no device kernel for {name!r} (kernels: '
    problem += f'{", ".join([*kernels.KERNELS, *kernels.OF_CONFIDENCE])})'
  elif host_only:
    problem = f'{host_only[0]!r} is for rewards in Python'
  elif kwargs.keys() - set(kernel.knobs):
    known = ', '.join(kernel.knobs) or 'none'
    problem = f'kwargs {sorted(kwargs)} for a kernel with {known}'
  else:
    score = functools.partial(kernel.score, **kwargs)
    return dataclasses.replace(kernel, score=score)
  raise ValueError(f'rl.rewards.{part}: {problem}.{near} Set rl.path="host".')


def _now(weight: float | dict, control: dict | None) -> float | jax.Array:
  """Returns a weight, or its schedule's current value (as
  `compose.weight_at`).
  """
  if not isinstance(weight, dict):
    return weight
  x = control['progress'][weight['by']].astype(jnp.float32)
  at, values = jnp.float32(weight['at']), jnp.float32(weight['values'])
  return jnp.interp(x, at, values)


def reads(spec: dict[str, dict], task_kernel: str | None) -> tuple[str, ...]:
  """Returns the views that the parts of a spec read, by name."""
  parts = [_kernel(k, v, task_kernel) for k, v in spec.items()]
  return tuple(sorted({name for kernel in parts for name in kernel.reads}))


def refuse_on_host(spec: dict[str, dict]) -> None:
  """Raises ValueError for parts that only the compiled step can compute."""
  for part, value in spec.items():
    kernel = kernels.KERNELS.get(value['reward'])
    here = value['reward'] in resolve.SHORT
    if kernel is not None and kernel.reads and not here:
      raise ValueError(
        f'rl.rewards.{part}: {value["reward"]!r} reads '
        f'{", ".join(kernel.reads)}, which rewards in Python do not see. Set '
        'rl.path="fused".'
      )


def make(
  spec: dict[str, dict],
  task_kernel,
  tokenizer,
  max_new: int,
  weights: Sequence | None = None,
) -> tuple[Callable, Callable]:
  """Makes (encode, reward_fn) of weighted kernels.

  Args:
    spec: part -> {'reward': kernel or 'task', 'weight': number, 'kwargs'}; a
      'verdict' has its question among the kwargs.
    task_kernel: the kernel that 'task' means: a name, or Routes of a mixture.
    tokenizer: its `token_bytes` are the completions' bytes.
    max_new: C.
    weights: replace those of the spec, in its order; they may be traced.
  """
  parts = {k: _kernel(k, v, task_kernel) for k, v in spec.items()}
  weights = weights or [
    compose.checked_weight(k, v.get('weight', 1.0)) for k, v in spec.items()
  ]
  table, lengths = kernels.token_bytes_table(tokenizer)
  max_bytes = max_new * table.shape[1]

  for part, value in spec.items():
    if value['reward'] == asked.NAME:
      question = asked.Question(**value['kwargs'])
      own = asked.encoder(question, tokenizer, max_new)
      parts[part] = dataclasses.replace(parts[part], encode=own)
  of_reference = bool(reference.VIEWS & {*reads(spec, task_kernel)})
  if of_reference and reference.PART in spec:
    raise ValueError(
      f'rl.rewards.{reference.PART}: that name is of the encoded reference '
      'answers; choose another'
    )

  def encode(example: dict) -> dict:
    out = {part: kernel.encode(example) for part, kernel in parts.items()}
    if of_reference:
      out[reference.PART] = reference.encode(example, tokenizer, max_new)
    return out

  def reward_fn(
    rollout: Rollout, answers: dict, control: dict | None = None
  ) -> Reward:
    text, n = kernels.to_bytes(
      rollout.tokens, rollout.sampled, table, lengths, max_bytes=max_bytes
    )
    scores = []
    for part, kernel in parts.items():
      views = (rollout.views,) if kernel.reads else ()
      scores.append(kernel.score(text, n, answers[part], *views))
    # A sum, not a product with the weights: TPUs multiply in bf16.
    total = sum(_now(w, control) * s for w, s in zip(weights, scores))
    # A log-probability may be -inf by underflow, which is no reward.
    valid, answer_ids = jnp.isfinite(total), final.answer_ids(text, n)
    return Reward(total, jnp.stack(scores, axis=1), valid, answer_ids)

  return encode, reward_fn
