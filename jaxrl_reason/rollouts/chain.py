"""Chains of links: the policy continues its own text, and links are rewarded.

  solve, verify    2*3+1%5=  1#2;  ?  y      S2R, RL^V
  draft, refine    2*3+1%5=  1#3;  !  1#2    SCoRe

S2R: https://arxiv.org/abs/2502.12853. RL^V: https://arxiv.org/abs/2505.04842.
SCoRe: https://arxiv.org/abs/2409.12917.

A chain is an environment (`envs`) that only writes the text before the next
link. The reward of a link is one of

  task, or a kernel    the kernel's score of the text of this link
  agrees               1 if its verdict, `yes` or `no`, matches the kernel's
                       verdict on link `of`
  gains                the task's score of this link minus that of link `of`
  (none)               no reward; later links are rewarded instead

`Rollout.views` contains the unweighted scores by link. The reward is the sum of
weight * score; with turn-level credit each link has its own reward.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from jaxrl_reason import trees
from jaxrl_reason.base import Reward, Rollout
from jaxrl_reason.config import rules
from jaxrl_reason.envs import Env, Step
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.rewards import kernels

NAME = 'chain'  # name of the environment
VIEW = 'links'  # scores by link, in `Rollout.views`
OF_OTHERS = 'agrees', 'gains'  # rewards that depend on an earlier link
KEYS = 'ask reward weight of yes no'.split()
LINK = "dict(ask='', reward='task')"  # the first link of an example


@dataclasses.dataclass(frozen=True)
class Link:
  """One link of a chain.

  Attributes:
    ask: written before it.
    reward: in OF_OTHERS, the name of a kernel, or '': none.
    weight: of its score.
    of: number of the earlier link that the reward refers to.
    yes, no: verdicts, of 'agrees'.
  """

  name: str
  ask: str = ''
  reward: str = ''
  weight: float = 1.0
  of: int = 0
  yes: str = 'y'
  no: str = 'n'


def parse(spec: Mapping[str, Mapping], task_kernel: str | None) -> list[Link]:
  """Parses `rl.turns.links`.

  Args:
    spec: name of a link -> its settings, in order; `of` is a name, by default
      that of the preceding link.
    task_kernel: the kernel that 'task' refers to.

  Raises:
    ValueError: names the link and the key.
  """
  if len(spec) < 2:
    raise ValueError(
      f'rl.turns.links={dict(spec)}: a chain has two links or more'
    )
  links, names = [], list(spec)
  for i, (name, own) in enumerate(spec.items()):
    where = f'rl.turns.links.{name}'
    rules.refuse(rules.section, where, own, LINK)
    unknown = sorted(set(own) - set(KEYS))
    if unknown:
      raise ValueError(f'{where}.{unknown[0]}: the keys are {", ".join(KEYS)}')
    if bool(own.get('ask')) != bool(i):
      raise ValueError(
        f'{where}.ask={own.get("ask", "")!r}: text before every link but the '
        'first, which the problem asks for'
      )
    weight = own.get('weight', 1.0)
    if not rules.is_number(weight):
      raise ValueError(f'{where}.weight={weight!r}: a number')
    of = own.get('of', names[max(i - 1, 0)])
    if i and of not in names[:i]:
      raise ValueError(
        f'{where}.of={of!r}: choose an earlier link of {", ".join(names[:i])}'
      )
    link = Link(name, **{**own, 'of': names.index(of)})
    links.append(_with_kernel(link, i, where, task_kernel))
  _check_subjects(links)
  return links


def _with_kernel(link: Link, i: int, where: str, task_kernel) -> Link:
  reward, known = link.reward, kernels.KERNELS
  if reward in OF_OTHERS and not i:
    raise ValueError(f'{where}.reward={reward!r}: there is no link before')
  if reward == 'agrees' and (link.yes == link.no or not link.yes):
    raise ValueError(
      f'{where}.yes={link.yes!r} and {where}.no={link.no!r}: two verdicts that '
      'differ'
    )
  if not reward or reward in OF_OTHERS:
    return link
  kernel = task_kernel if reward == 'task' else reward
  named = isinstance(kernel, str)  # a mixture of tasks has several kernels
  if not named or kernel not in known or known[kernel].reads:
    fit = [k for k, x in known.items() if not x.reads]
    raise ValueError(
      f'{where}.reward={reward!r}: choose task (of data with a kernel), '
      f'{", ".join((*OF_OTHERS, *fit))}, or none'
    )
  return dataclasses.replace(link, reward=kernel)


def _check_subjects(links: Sequence[Link]) -> None:
  """Checks that rewards by an earlier link refer to a link with a kernel."""
  for link in links:
    about = links[link.of]
    if link.reward in OF_OTHERS and about.reward in ('', *OF_OTHERS):
      raise ValueError(
        f'rl.turns.links.{link.name}.of={about.name!r}: that link has no '
        'reward by a kernel; choose one that has'
      )


def graded(links: Sequence[Link]) -> list[Link]:
  """Returns the links with the weights of evaluations: 1 for the last link that
  a kernel verifies, 0 for every other link.
  """
  own = [i for i, x in enumerate(links) if x.reward not in ('', *OF_OTHERS)]
  if not own:
    raise ValueError('rl.turns.links: no link is verified by a kernel')
  return [
    dataclasses.replace(x, weight=float(i == own[-1]))
    for i, x in enumerate(links)
  ]


def _is(text, n, word: str) -> jax.Array:
  """Returns whether n bytes of text are `word`, ignoring blanks around it. The
  result is false if the text was cut off (n exceeds its width).
  """
  data, size = text_lib.constant(word)
  at = jnp.arange(text.shape[0])
  inside = (at < n) & (text != ord(' '))
  first = text_lib.first(inside, 0)
  last = jnp.max(jnp.where(inside, at, -1))
  same = text_lib.byte(text, first + jnp.arange(len(word))) == data
  whole = n <= text.shape[0]
  return whole & jnp.all(same) & (last - first + 1 == size)


def make(links: Sequence[Link], stop: str, width: int) -> Env:
  """Builds the environment of a chain.

  Args:
    stop: text that ends a link; if '', only a stop token ends it.
    width: bytes of a link that kernels read.
  """
  s, asks = len(links), (*(x.ask for x in links[1:]), '')
  weights = jnp.asarray([x.weight for x in links])
  task = next((x.reward for x in links if x.reward not in ('', *OF_OTHERS)), '')
  used = {x.reward for x in links} - {'', *OF_OTHERS}

  def encode(example: dict) -> dict:
    return {k: kernels.KERNELS[k].encode(example) for k in sorted(used)}

  def reset(encoded: dict, key):
    del key
    return {'encoded': encoded, 'at': jnp.int32(0), 'score': jnp.zeros(s)}

  def judged(state: dict, text, n):
    """Returns scores [S] and whether each is malformed (no verdict) [S], by
    link.
    """
    one = trees.take((text, n, state['encoded']), None)
    by = {
      k: kernels.KERNELS[k].score(*one[:2], one[2][k])[0] for k in sorted(used)
    }
    scores, malformed = [], []
    for link in links:
      before, bad = state['score'][link.of], jnp.bool_(False)
      score = by.get(link.reward, jnp.float32(0))
      if link.reward == 'gains':
        score = by[task] - before
      elif link.reward == 'agrees':
        yes, no = (_is(text, n, word) for word in (link.yes, link.no))
        score = jnp.where(before > 0.5, yes, no).astype(jnp.float32)
        bad = ~yes & ~no
      scores.append(score)
      malformed.append(bad)
    return jnp.stack(scores), jnp.stack(malformed)

  def step(state: dict, text, length) -> Step:
    at, end = state['at'], len(stop)
    closed = text_lib.byte(text, length - end + jnp.arange(max(end, 1)))
    closed = closed == text_lib.constant(stop)[0] if end else jnp.array([False])
    n = length - end * jnp.all(closed)
    scores, malformed = judged(state, text, n)
    own = {'at': at + 1, 'score': state['score'].at[at].set(scores[at])}
    reply = text_lib.one_of(asks, at)
    reward, done = weights[at] * scores[at], at + 1 == s
    return Step(state | own, *reply, reward, done, malformed[at])

  return Env(
    encode,
    reset,
    step,
    ''.join(sorted(set(''.join(asks)))),
    stop.encode(),
    width,
    told=lambda state: {VIEW: state['score']},
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
  """Computes the rewards of chains: a part per link (its score), and the total
  by weight.
  """

  def __call__(
    self, rollout: Rollout, answers: dict, control: dict | None = None
  ) -> Reward:
    del answers, control
    total = jnp.nansum(rollout.episode.reward, axis=1)
    return Reward(total, rollout.views[VIEW], jnp.isfinite(total))
