"""Feedback in a teacher's prompt: its rows equal the texts, encoded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Batch
from jaxrl_reason.config.rl_sections import Teacher
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.data.tokenizers import EOS_ID, ByteTokenizer, CharTokenizer
from jaxrl_reason.parts import Step
from jaxrl_reason.rollouts import verdict_arrays
from jaxrl_reason.rollouts.feedback import Feedback
from jaxrl_reason.update import scoring
from jaxrl_reason.verifiers.verdict import Verdict

TOKENIZER = CharTokenizer('0123456789+-=#abcdefghijklmnopqrstuvwxyz {}|')
P, C, Q = 6, 5, 64
SETTINGS = Teacher(
  prompt='{prompt}|{verdict}|{sample}|{verdict}{observations}=',
  prompt_len=Q,
  right='good',
  wrong='bad {answer}',
  no_sample='{solution}+',
)
# A text of an example is no field, even if it looks like one.
EXAMPLES = [
  {'task': 't', 'prompt': p, 'solution': s, 'answer': a}
  for p, s, a in (
    ('1+1', '11#2', '2'),
    ('{', '', '{}'),
    ('5-3', '9#2', '2'),
    ('7', '{e}', '4'),
  )
]
# (problem, text, stopped, correct, verified, marks)
ROWS = [
  (0, '4#2', True, True, True, ''),
  (1, '01', True, False, True, ''),
  (0, '333', True, False, True, ''),
  (1, '2', True, True, True, ''),
  (0, '66666', False, True, True, 'observed'),
  (1, '', True, False, False, ''),
  (2, '9#2', True, True, True, 'demo'),
  (2, '4', True, False, True, 'observed'),
  (2, '12', True, True, False, ''),
  (3, '8', True, True, True, 'hinted'),
  (3, '7', True, False, True, ''),
]


# The messages of verifiers, in the order of the rows.
DETAILS = ('', 'b+', 'not 2', '', '{', '0', 'a', 'b', 'c', 'd', '')
M = 5  # tokens of a message


def observed_text(row):
  return row[1][1:3] if row[5] == 'observed' else ''


def batch(settings=SETTINGS, rows=ROWS) -> Batch:
  encoded = [
    informed_prompts.row(i, x, TOKENIZER, settings, C)
    for i, x in enumerate(EXAMPLES)
  ]
  tokens = np.zeros((len(rows), P + C), np.int32)
  valid = np.zeros((len(rows), P + C), bool)
  observed = np.zeros((len(rows), P + C), bool)
  for i, (_, text, stopped, *_, mark) in enumerate(rows):
    ids = TOKENIZER.encode(text) + [EOS_ID] * stopped
    tokens[i, P : P + len(ids)] = ids
    valid[i, P : P + len(ids)] = True
    observed[i, P + 1 : P + 3] = mark == 'observed'
  observed &= valid & (tokens != EOS_ID)
  details = verdict_arrays.Writer(TOKENIZER.encode_data, room=M)
  verdicts = [Verdict(0, detail=text) for text in DETAILS]
  detail = verdict_arrays.to_reward(verdicts, ('reward',), details).detail
  problem, _, stopped, right, verified, marks = map(np.array, zip(*rows))
  return Batch(
    tokens=jnp.asarray(tokens),
    valid=jnp.asarray(valid),
    mask=jnp.asarray(valid & ~observed),
    reward=jnp.float32(right),
    reward_parts=jnp.float32(right)[:, None],
    reward_valid=jnp.asarray(verified),
    group=jnp.asarray(problem),
    truncated=jnp.asarray(~stopped),
    temperature=jnp.ones(len(rows)),
    sampler_logp=None,
    observed=jnp.asarray(observed),
    is_offpolicy=jnp.asarray(valid & (marks == 'demo')[:, None]),
    is_hinted=jnp.asarray(marks == 'hinted'),
    detail=jnp.asarray(detail[: len(rows)]),
    teacher_tokens=jnp.stack([encoded[p]['teacher_tokens'] for p in problem]),
    teacher_valid=jnp.stack([encoded[p]['teacher_valid'] for p in problem]),
  )


def assembled(batch: Batch):
  part = Feedback(P, (EOS_ID,), True)
  step = Step(None, None, None, batch, batch, batch_lib.outcomes(batch))
  _, step, metrics = jax.jit(lambda: part.before(None, step))()
  return step.batch, metrics


def expected(i: int, settings: Teacher, rows=ROWS) -> str:
  """Returns the prompt of row i, by reading the rows one after another."""
  problem, _, _, right, verified, _ = rows[i]
  example = EXAMPLES[problem]
  sample = settings.no_sample.format(**example)
  for other, text, _, correct, known, mark in [*rows[i + 1 :], *rows[:i]]:
    own = mark not in ('demo', 'hinted')
    if other == problem and correct and known and own:
      sample = text
      break
  verdict = settings.right if right else settings.wrong
  return settings.prompt.format(
    **example,
    verdict=verdict.format(**example) if verified else '',
    sample=sample,
    observations=observed_text(rows[i]),
    detail=DETAILS[i],
  )


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'no_sample': ''},
    {'prompt': '{sample}{prompt}', 'right': '', 'wrong': '', 'no_sample': '0'},
    {'prompt': '{prompt}{verdict}', 'no_sample': '', 'right': ''},
    {'prompt': '{sample}{sample}{prompt}{observations}{observations}'},
    {'prompt': '{detail}|{prompt}{verdict}{detail}'},
  ],
  ids=str,
)
def test_a_row_is_the_text_of_its_prompt_encoded(changes):
  settings = SETTINGS.changed(changes)
  out, _ = assembled(batch(settings))
  assert out.teacher_valid.dtype == bool and out.detail is None
  for i in range(len(ROWS)):
    want = TOKENIZER.encode(expected(i, settings))
    valid = np.asarray(out.teacher_valid[i])
    np.testing.assert_array_equal(valid, np.arange(Q) >= Q - len(want))
    np.testing.assert_array_equal(out.teacher_tokens[i, Q - len(want) :], want)
    assert not np.any(out.teacher_tokens[i, : Q - len(want)])


def test_messages_are_cut_and_hold_no_special_tokens():
  """A message that is too long ends in the mark `~`, if there is a token for
  it. A failed verifier has no message of the completion.
  """
  details = verdict_arrays.Writer(ByteTokenizer().encode_data, room=4)
  verdicts = [
    Verdict(0, detail='a long message'),
    Verdict(0, detail='\0\1'),
    Verdict(1),
    Verdict(0, 'error', detail='a bug'),
  ]
  found = verdict_arrays.to_reward(verdicts, ('reward',), details).detail
  texts = [ByteTokenizer().decode(x) for x in found]
  assert texts == ['a l~', '\0\1', '', ''] and found.dtype == np.int32
  assert not np.isin(found, ByteTokenizer().special_ids).any()
  assert verdict_arrays.to_reward(verdicts, ('reward',)).detail is None


@pytest.mark.parametrize('room, text', [(1, ' '), (2, ' ~'), (3, 'a ~')])
def test_a_mark_of_several_tokens_fits_the_room(room, text):
  def encode(text):
    return [*text.replace('~', ' ~').encode()]

  ids, cut = verdict_arrays.Writer(encode, room=room)('a long message')
  assert bytes(ids).decode() == text and cut


def test_the_table_of_samples():
  """The rows cover a sample before and after, and a group without one."""
  found = [expected(i, SETTINGS).split('|')[2] for i in range(len(ROWS))]
  assert found[:6] == ['66666', '2', '66666', '+', '4#2', '2']
  assert found[6:] == ['9#2+'] * 3 + ['{e}+'] * 2
  _, metrics = assembled(batch())
  np.testing.assert_allclose(metrics['feedback/sample'], 5 / 11, rtol=1e-6)


def test_other_groups_change_nothing():
  """Replaces the texts and verdicts of every other group."""
  want, _ = assembled(batch())
  changed = [
    (p, '9' * len(text), stopped, not right, verified, mark)
    if p else (p, text, stopped, right, verified, mark)
    for p, text, stopped, right, verified, mark in ROWS
  ]  # fmt: skip
  got, _ = assembled(batch(rows=changed))
  mine = [i for i, row in enumerate(ROWS) if row[0] == 0]
  for name in ('teacher_tokens', 'teacher_valid'):
    a, b = (np.asarray(getattr(x, name)) for x in (want, got))
    np.testing.assert_array_equal(a[mine], b[mine])
    assert not np.array_equal(a, b)


def test_shaped_rewards_and_filters_change_nothing():
  """The part reads the batch as it was sampled."""
  seen = batch()
  other = seen.replace(
    reward=-seen.reward,
    reward_parts=1 - seen.reward_parts,
    mask=jnp.zeros_like(seen.mask),
    reward_valid=jnp.zeros_like(seen.reward_valid),
  )
  part = Feedback(P, (EOS_ID,), True)
  step = Step(None, None, None, seen, other, batch_lib.outcomes(seen))
  got = part.before(None, step)[1].batch
  want, _ = assembled(seen)
  np.testing.assert_array_equal(got.teacher_tokens, want.teacher_tokens)
  np.testing.assert_array_equal(got.reward, other.reward)


def test_a_batch_before_its_verdicts_is_not_scored():
  class Learner:
    needs = {'teacher_logp'}

  assert not scoring.may_teach(Learner, batch())
  assert scoring.may_teach(Learner, assembled(batch())[0])


@pytest.mark.parametrize(
  'changes, n',
  [
    # 'bad 2' is longer than 'good', and a sample of 5 than '11#2'.
    ({'prompt': '{prompt}{verdict}{sample}', 'no_sample': '{solution}'}, 13),
    ({'prompt': '{prompt}{observations}{sample}', 'no_sample': '012345'}, 14),
    ({'prompt': '{prompt}{detail}{sample}', 'detail_len': 9}, 3 + 9 + 5),
  ],
)
def test_a_prompt_has_room_for_its_longest_texts(changes, n):
  """The row of alternatives may need more columns than the prompt."""
  settings = SETTINGS.changed(changes | {'prompt_len': 30})
  informed_prompts.row(0, EXAMPLES[0], TOKENIZER, settings, C)
  pieces = 'good' + 'bad 2' + '11#2' + '1+1' + 'S'
  n = max(n, len(pieces)) if '{verdict}' in settings.prompt else n
  for room, fits in ((n, True), (n - 1, False)):
    tight = settings.changed({'prompt_len': room})
    if fits:
      informed_prompts.row(0, EXAMPLES[0], TOKENIZER, tight, C)
      continue
    with pytest.raises(ValueError, match=f'has {n} tokens and rl.teacher'):
      informed_prompts.row(0, EXAMPLES[0], TOKENIZER, tight, C)


def test_the_chat_template_is_around_the_prompt():
  """It has the texts of the template before and after the problem."""
  example = EXAMPLES[0] | {'rendered': 'abc1+1def'}
  settings = SETTINGS.changed({'prompt': '{sample}{prompt}{verdict}'})
  row = informed_prompts.row(0, example, TOKENIZER, settings, C)
  ids, kinds = row['teacher_tokens'], row['teacher_valid']
  always = ids[kinds == informed_prompts.ALWAYS]
  assert TOKENIZER.decode(always) == 'abc1+1def'
  assert (
    kinds.dtype == np.int8 and (kinds == informed_prompts.SAMPLE).sum() == 1
  )
