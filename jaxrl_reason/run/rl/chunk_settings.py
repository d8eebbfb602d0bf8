"""Chunks of completions, as set by `rl.chunks`."""

from jaxrl_reason.config import RL, Data
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rewards.kernels import reference
from jaxrl_reason.rollouts.views import TOKEN_VIEWS
from jaxrl_reason.update import chunked

# Arrays that a loss may read and that cannot be computed by chunks.
WHOLE = frozenset({'values', 'process_reward', 'full_logits'})


def of(rl: RL, data: Data) -> Chunks | None:
  """Returns the chunks of completions, or None if completions are not
  chunked.
  """
  c = rl.chunks
  whole = c.tokens in (0, data.completion_len)
  return None if whole else Chunks(c.tokens, c.carry)


def check(c: RL, data: Data, needs: frozenset[str]) -> None:
  """Refuses impossible chunks, and settings that do not work with chunks.

  Args:
    needs: of the loss.

  Raises:
    ValueError: names the keys.
  """
  room = data.completion_len
  tokens, carry = c.chunks.tokens, c.chunks.carry
  if tokens > room:
    raise ValueError(
      f'rl.chunks.tokens={tokens} is more than data.completion_len={room}, '
      'the room of a whole completion'
    )
  if (tokens or carry) and not 0 < carry < tokens:
    raise ValueError(
      f'rl.chunks.carry={carry} of rl.chunks.tokens={tokens}: at least 1 and '
      'less than those, or both 0'
    )
  chunks = of(c, data)
  if chunks is None:
    return
  start = data.prompt_len + c.hints.room
  packed = chunked.choose(chunks, start, c.padding).packing
  if packed.length < start + tokens:
    raise ValueError(
      f'rl.padding={c.padding!r} is less than {start} tokens of a prompt and '
      f'rl.chunks.tokens={tokens}'
    )
  if needs & WHOLE:
    raise ValueError(
      f'rl.algorithm={c.algorithm!r} reads a critic, or whole logits, of '
      'completions that are not in chunks; set rl.chunks.tokens=0'
    )
  others = {
    'rl.turns.env': c.turns.env,
    'rl.slots': c.slots,
    'rl.replay_routes': c.replay_routes,
  }
  for key, value in others.items():
    if value:
      raise ValueError(
        f'{key}={value!r} and rl.chunks.tokens={tokens} cannot be combined; '
        'set one of them to its default'
      )


def refuse_views(chunks: Chunks | None, names) -> None:
  """Refuses rewards that read each token's distribution.

  Args:
    names: of the views that rewards read.
  """
  read = sorted(set(names) & {*TOKEN_VIEWS, *reference.VIEWS})
  if chunks is not None and read:
    raise ValueError(
      f'rl.rewards read {", ".join(read)} of whole completions; set '
      'rl.chunks.tokens=0, or use other rewards'
    )
