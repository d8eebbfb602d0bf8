"""Rules of what changes the distribution of tokens: penalties and grammars."""

from jaxrl_reason import losses
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.losses.imitation import VERDICT
from jaxrl_reason.rollouts import automaton
from jaxrl_reason.run.checks import teacher_checks
from jaxrl_reason.run.rl import chunk_settings as chunks
from jaxrl_reason.run.rl import generation_settings
from jaxrl_reason.update import packing


def check(c: RL, d: Data, objective: losses.Objective) -> None:
  """Refuses penalties and a grammar where the update cannot compute them.

  Raises:
    ValueError: names the key.
  """
  chunked = chunks.of(c, d) is not None
  rules.refuse(penalty_rules, c, losses.needs(objective), chunked)
  rules.refuse(grammar_rules, c, objective, chunked)


def penalty_rules(c: RL, needs: frozenset[str], chunked: bool) -> rules.Rows:
  """Refuses penalties where the update cannot count a row's earlier tokens."""
  neutral = {'repetition': 1, 'presence': 0, 'frequency': 0}
  keys = {f'{name}_penalty': x for name, x in neutral.items()}
  key = next((key for key, x in keys.items() if c[key] != x), None)
  if key is None:
    return ()
  packed = not chunked and isinstance(packing.choose(c, 1), packing.Packing)
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
      rl__teacher__weights=needs & teacher_checks.OF_TEACHER
      and c.teacher.weights,
    ),
  )


def grammar_rules(
  c: RL, objective: losses.Objective, chunked: bool
) -> rules.Rows:
  """Refuses a grammar where the update cannot follow a row's states.

  Raises:
    ValueError: the grammar is wrong.
  """
  if not automaton.expression_of(*generation_settings.grammar_of(c)):
    return ()
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
      rl__teacher__weights=needs & teacher_checks.OF_TEACHER
      and c.teacher.weights,
    ),
  )
