"""Settings of generation, as set by the rl section, and their rules."""

from itertools import pairwise

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.data import step_labels, token_bias
from jaxrl_reason.logits import Automaton, Sampling
from jaxrl_reason.losses.imitation import VERDICT
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rewards.kernels import reference
from jaxrl_reason.rollouts import automaton
from jaxrl_reason.rollouts.fused import Generation
from jaxrl_reason.rollouts.tree import Tree
from jaxrl_reason.rollouts.views import TOKEN_VIEWS
from jaxrl_reason.run.rl import (
  hidden_settings,
  search_settings,
  teachers,
  turn_settings,
)
from jaxrl_reason.update import chunked, packing

# Arrays that a loss may read and that cannot be computed by chunks.
WHOLE = frozenset({'values', 'process_reward', 'full_logits'})


def generation(c: RL, data: Data, model: Model, tokenizer) -> Generation:
  """Returns the settings of generation that select a program.

  Raises:
    ValueError: rl.tree.step_end or rl.search.step_end cannot be the end of a
      step.
  """
  return Generation(
    model=model,
    n_samples=c.samples,
    max_new=data.completion_len,
    demos=0 if c.demos_after else c.demos,
    slots=c.slots,
    segments=c.cache_segments,
    routes=c.replay_routes,
    chunks=chunks_of(c, data),
    tree=tree_of(c, tokenizer) if c.tree.width else None,
    search=search_settings.search_of(c, tokenizer)
    if c.search.simulations
    else None,
    hidden=hidden_settings.of_sampler(c, model),
  )


def chunks_of(rl: RL, data: Data) -> Chunks | None:
  """Returns the chunks of completions, or None if completions are not
  chunked.
  """
  c = rl.chunks
  whole = c.tokens in (0, data.completion_len)
  return None if whole else Chunks(c.tokens, c.carry)


def tree_of(c: RL, tokenizer) -> Tree:
  """Returns the forks of completions.

  Raises:
    ValueError: the end of a step is not one token, or ends a completion.
  """
  t, key = c.tree, 'rl.tree.step_end'
  ends = step_labels.step_ends(t.step_end, tokenizer, key)
  if set(ends) & set(tokenizer.eos_ids):
    raise ValueError(
      f'{key}={t.step_end!r} ends a completion, so no row goes on after it; '
      'name another token'
    )
  return Tree(t.width, tuple(t.columns), ends, tuple(t.turns), t.forks)


def sampling_of(c: RL, tokenizer) -> Sampling:
  """Returns the traced settings of generation.

  Raises:
    ValueError: names the bias that is wrong, or that of `grammar`.
  """
  return Sampling.fixed(
    c.temperature,
    c.top_k,
    c.top_p,
    c.min_p,
    c.repetition_penalty,
    c.presence_penalty,
    c.frequency_penalty,
    token_bias.make(c.logit_bias, tokenizer, 'rl.logit_bias')
    if c.logit_bias
    else None,
    grammar(c, tokenizer),
  )


def grammar(c: RL, tokenizer) -> Automaton | None:
  """Returns the automaton of the completions that are allowed; None: all are.

  Raises:
    ValueError: no token continues the grammar.
  """
  if not (c.regex or c.json_schema):
    return None
  expression = automaton.expression_of(c.regex, c.json_schema, 'rl.')
  tokens, eos = tokenizer.token_bytes(), tokenizer.eos_ids
  return automaton.of_expression(expression, tokens, len(tokens), eos)


def _places(key: str, places: tuple, most: int, limit: str) -> rules.Rows:
  """Refuses forks outside of 1 to most - 1, or not in rising order.

  Args:
    limit: name of `most` in the message.
  """
  numbers = all(isinstance(x, int) and not isinstance(x, bool) for x in places)
  inside = numbers and all(0 < x < most for x in places)
  rising = inside and all(a < b for a, b in pairwise(places))
  return (
    (
      not rising,
      f'{key}={places}: indices from 1 to {most - 1}, in rising order, since '
      f'{limit} is {most}',
    ),
  )


def _limit(c: RL, d: Data) -> tuple[int, str]:
  """Returns the most tokens of a row, or turns of an episode, and its name."""
  if turn_settings.is_chain(c):
    return len(c.turns.links), 'the number of rl.turns.links'
  if c.turns.env:
    return c.turns.most, 'rl.turns.most'
  return d.completion_len, 'data.completion_len'


def _forks_of_turns(c: RL, columns: tuple, turns: tuple) -> rules.Rows:
  """Refuses forks of episodes that cannot be."""
  on, key = bool(c.turns.env), f'rl.tree.width={c.tree.width}'
  env = f'rl.turns.env={c.turns.env!r}'
  within = 'would fork within a turn, and a turn is one action; set it to its '
  within += 'default, or use rl.tree.turns'
  return (
    (
      turns and not on,
      f'rl.tree.turns={turns}: without rl.turns.env, a completion has no '
      'turns; set it, or use rl.tree.columns',
    ),
    (on and columns, f'rl.tree.columns={columns} and {env}: it {within}'),
    (
      on and c.tree.step_end,
      f'rl.tree.step_end={c.tree.step_end!r} and {env}: it {within}',
    ),
    (
      on and c.path == 'host',
      f'{env} and {key}: a fork copies the state of the environment, and that '
      "of rl.path='host' is in other processes; set rl.tree.width=0",
    ),
    (
      turn_settings.is_game(c),
      f'{env} and {key}: the two players of a game have a row each, and a fork '
      'would copy one of them; set rl.tree.width=0',
    ),
  )


def tree_rules(c: RL, d: Data) -> rules.Rows:
  """Refuses trees that cannot be, and what they do not work with."""
  columns, turns = tuple(c.tree.columns), tuple(c.tree.turns)
  tree = Tree(c.tree.width, columns, turns=turns, forks=c.tree.forks)
  key, (most, limit) = f'rl.tree.width={tree.width}', _limit(c, d)
  given = {'rl.tree.columns': columns, 'rl.tree.turns': turns}
  fixed = next((name for name, x in given.items() if x), None)
  name = fixed or 'rl.tree.forks'
  forks = f'{name}={given.get(name, tree.forks)}'
  return (
    (
      tree.width == 1,
      f'{key}: a fork has at least 2 children; set it to 2 or more, or 0',
    ),
    *_forks_of_turns(c, columns, turns),
    *rules.apart(
      f' and {forks}: {fixed} fixes the forks of all rows; set one of them to '
      'its default',
      rl__tree__step_end=fixed and c.tree.step_end,
      rl__tree__forks=fixed and tree.forks > 1 and tree.forks,
    ),
    (
      len(given.get(name, range(tree.forks))) >= most,
      f'{forks}: {limit} is {most}, so there are {most - 1} places for forks; '
      'choose fewer forks, or set rl.tree.width=0',
    ),
    *(row for x in given.items() for row in _places(*x, most, limit)),
    (
      c.samples % tree.leaves,
      f'rl.samples={c.samples}: a tree of {key} and {forks} has {tree.leaves} '
      f'leaves; set it to a multiple of {tree.leaves}',
    ),
    (
      c.cache_segments not in (1, RL.cache_segments),
      f'rl.cache_segments={c.cache_segments} and {key}: the cache of a tree '
      f'grows with its forks; set it to {RL.cache_segments}',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      rl__slots=c.slots,
      rl__demos=c.demos,
      rl__replay_routes=c.replay_routes,
      rl__chunks__tokens=c.chunks.tokens,
      rl__in_flight__batches=c.in_flight.batches,
      rl__repetition_penalty=c.repetition_penalty != 1 and c.repetition_penalty,
      rl__presence_penalty=c.presence_penalty,
      rl__frequency_penalty=c.frequency_penalty,
    ),
  )


def check_chunks(c: RL, data: Data, needs: frozenset[str]) -> None:
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
      'less than rl.chunks.tokens, or both 0'
    )
  chunks = chunks_of(c, data)
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


def refuse_chunked_views(chunks: Chunks | None, names) -> None:
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


def penalty_rules(c: RL, needs: frozenset[str], chunked: bool) -> rules.Rows:
  """Refuses penalties where the update cannot count a row's earlier tokens."""
  neutral = {'repetition': 1, 'presence': 0, 'frequency': 0}
  keys = {f'{name}_penalty': x for name, x in neutral.items()}
  key = next(key for key, x in keys.items() if c[key] != x)
  moves = packing.Packing, packing.Tree  # tokens to other places
  packed = not chunked and isinstance(packing.choose(c, 1), moves)
  name = f'rl.{key}={c[key]}'
  return (
    (
      'full_logits' in needs,
      f'{name}: rl.algorithm={c.algorithm!r} reads whole logits, and the '
      f'counts of earlier tokens would be as large; set it to {keys[key]}',
    ),
    (
      not c.logprob_chunk,
      f'{name} counts the earlier tokens of every column: with '
      'rl.logprob_chunk=0 all counts would be held at once; set it to the '
      'columns that may be held, such as 64',
    ),
    *rules.apart(
      f' and {name} cannot be combined: penalties read the earlier tokens of a '
      'single completion in a row of its own; set one of them to its default',
      rl__turns__env=c.turns.env,
      rl__chunks__tokens=chunked and c.chunks.tokens,
      rl__padding=packed and c.padding,
      rl__hints__learn=c.hints.learn,
      rl__teacher__weights=needs & teachers.NEEDS and c.teacher.weights,
    ),
  )


def grammar_rules(
  c: RL, objective: losses.Objective, chunked: bool
) -> rules.Rows:
  """Refuses a grammar where the update cannot follow a row's states.

  Raises:
    ValueError: the grammar is wrong.
  """
  automaton.expression_of(c.regex, c.json_schema, 'rl.')
  needs = losses.needs(objective)
  name = f'rl.regex={c.regex!r}' if c.regex else ''
  name = name or f'rl.json_schema={c.json_schema!r}'
  return (
    (
      'full_logits' in needs,
      f'{name}: rl.algorithm={c.algorithm!r} compares the logits of all '
      'tokens, and a grammar excludes most; remove one of them',
    ),
    (
      objective.likelihood_on(VERDICT),
      f'rl.loss.sft_on={VERDICT!r} and {name} cannot be combined: the token of '
      'the verdict is no part of the grammar; remove one of them',
    ),
    *rules.apart(
      f' and {name} cannot be combined: the states of a grammar are followed '
      'in a completion that is sampled from its first token; set one of them '
      'to its default',
      rl__turns__env=c.turns.env,
      rl__chunks__tokens=chunked and c.chunks.tokens,
      rl__propose=c.propose,
      rl__slots=c.slots,
      rl__tree__width=c.tree.width,
      rl__in_flight__batches=c.in_flight.batches,
      rl__demos=c.demos,
      rl__hints__learn=c.hints.learn,
      rl__teacher__weights=needs & teachers.NEEDS and c.teacher.weights,
    ),
  )
