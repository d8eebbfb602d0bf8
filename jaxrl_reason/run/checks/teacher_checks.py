"""Rules of the models beside the policy: `rl.teacher`, `rl.reward_model`, and
`sft.teacher`.
"""

from collections.abc import Mapping

from jaxrl_reason import losses
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.config.training import Supervised
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.models.adapters import frozen
from jaxrl_reason.run.rl import teachers, turn_settings
from jaxrl_reason.update import critics
from jaxrl_reason.update.learner import POLICY, SAME

REWARD_MODEL = 'rl.reward_model'


def check(c: RL, needs: frozenset[str]) -> None:
  """Refuses a teacher or a reward model that cannot work, or settings without
  effect.

  Raises:
    ValueError: names the key.
  """
  rules.refuse(teacher_rules, c, needs)
  if c.teacher.weights:
    rules.refuse(prompt_rules, c, needs)
    rules.refuse(feedback_rules, c)
  rules.refuse(reward_weights_rules, c)


def teacher_rules(c: RL, needs: frozenset[str]) -> rules.Rows:
  t, key = c.teacher, 'rl.teacher'
  reads = needs & teachers.NEEDS
  if not t.weights:
    missing = (
      f'rl.algorithm={c.algorithm!r} learns from a teacher: set {key}.weights '
      'to a run, a folder of weights, hf:owner/model, reference or policy'
    )
    return ((reads, missing),)
  same = t.weights in SAME
  return (
    (
      not reads and c.verdict.by != 'teacher',
      f'{key}.weights={t.weights!r}: rl.algorithm={c.algorithm!r} reads no '
      'teacher; set rl.loss.distill_coef above 0',
    ),
    rules.choice(f'{key}.dtype', t.dtype, frozen.DTYPES),
    rules.choice(f'{key}.memory', t.memory, ('device', 'host')),
    (
      same and t.dtype != 'float32',
      f'{key}.dtype={t.dtype!r} with {key}.weights={t.weights!r}: there are no '
      'weights of a teacher; set it to float32',
    ),
    (
      same and t.memory != 'device',
      f'{key}.memory={t.memory!r} with {key}.weights={t.weights!r}: there are '
      'no weights of a teacher; set it to device (rl.reference_memory is the '
      "reference's)",
    ),
    (
      'teacher_kl' in needs and not c.logprob_chunk,
      'rl.logprob_chunk=0: a divergence over the vocabulary would hold the '
      'logits of two models at once; set it to the columns that may be held, '
      'such as 64',
    ),
    (
      t.weights == POLICY and not t.prompt,
      "rl.teacher.weights='policy' agrees with the policy under the same "
      'prompt, and teaches nothing: set rl.teacher.prompt',
    ),
    *rules.apart(
      ': a teacher scores the whole vocabulary, and the policy would be '
      'filtered; set it to its default',
      rl__top_k=reads and c.top_k,
      rl__top_p=reads and c.top_p < 1 and c.top_p,
      rl__min_p=reads and c.min_p,
      rl__logit_bias=reads and c.logit_bias,
    ),
  )


def stored_rules(kind: str, c: Supervised, d: Data) -> rules.Rows:
  """Refuses settings of a teacher whose distributions are stored."""
  return (
    (
      c.loss == 'topk' and (kind != 'sft' or not c.teacher),
      f"{kind}.loss='topk' reads the stored distributions of a teacher: in a "
      'stage of kind sft, set sft.teacher to a file that `jaxrl evaluate '
      '--top_logprobs=K` wrote',
    ),
    (
      c.teacher and kind != 'sft',
      f'{kind}.teacher={c.teacher!r} has no effect: only stages of kind sft '
      'learn from the answers of a teacher',
    ),
    (
      c.least_score and not c.teacher,
      f'{kind}.least_score={c.least_score:g} has no effect without the answers '
      'of a teacher: set sft.teacher, or leave it at 0',
    ),
    rules.choice(f'{kind}.divergence', c.divergence, losses.DIVERGENCES),
    *rules.apart(
      f' and {kind}.teacher={c.teacher!r} cannot be combined: the rows are the '
      "teacher's; set it to its default",
      sft__weights=c.teacher and c.weights,
      sft__behaviour=c.teacher and c.behaviour,
      data__solutions=c.teacher and d.solutions,
    ),
  )


def reward_weights_rules(c: RL) -> rules.Rows:
  key, reads = f'{REWARD_MODEL}.weights', 'reward_model'
  name = next((k for k, v in c.rewards.items() if reads in _kernels(v)), '')
  part, value = f'rl.rewards.{name}', c.reward_model.weights
  if not name and not value:
    return ()
  return (
    (
      name and not value,
      f'{part} reads a reward model: set {key} to a stage of kind reward_model '
      'before this one, or to the workdir of a run with such a stage',
    ),
    (
      value and not name,
      f"{key}={value!r}: no reward reads it; add a part with reward='"
      f"{reads}' to rl.rewards",
    ),
    rules.choice(
      f'{REWARD_MODEL}.steps', c.reward_model.steps, ('', *critics.OVER)
    ),
    (
      c.reward_model.steps and not c.reward_model.separator,
      f'{REWARD_MODEL}.steps={c.reward_model.steps!r}: set '
      f'{REWARD_MODEL}.separator to the text that ends a step',
    ),
    *rules.apart(
      f' and {part} cannot be combined: a reward model scores whole '
      'completions alone; set it to its default',
      rl__chunks__tokens=name and c.chunks.tokens,
      rl__turns__env=name and c.turns.env,
    ),
  )


def _kernels(part: Mapping) -> tuple:
  """Returns the names of the kernels that a part of `rl.rewards` calls."""
  return part['reward'], part.get('kwargs', {}).get('correct')


def prompt_rules(c: RL, needs: frozenset[str]) -> rules.Rows:
  t = c.teacher
  key = f'rl.teacher.prompt={t.prompt!r}'
  return (
    (
      t.prompt and not needs & teachers.NEEDS,
      f'{key} has no effect: a teacher reads it for the loss, and '
      f'rl.algorithm={c.algorithm!r} reads no teacher; set it to '
      "'', or rl.loss.distill_coef above 0",
    ),
    (
      t.prompt and 'prompt' not in informed_prompts.FIELDS.findall(t.prompt),
      f'{key} lacks {{prompt}}, the problem: write it in',
    ),
    (
      bool(t.prompt) != bool(t.prompt_len),
      f'{key} and rl.teacher.prompt_len={t.prompt_len}: set both, the prompt '
      'and the most tokens that it has, or neither',
    ),
    *rules.apart(
      f' and {key} cannot be combined: the teacher scores whole completions '
      'alone; set it to its default',
      rl__chunks__tokens=t.prompt and c.chunks.tokens,
      rl__hints__learn=t.prompt and c.hints.learn,
    ),
  )


def feedback_rules(c: RL) -> rules.Rows:
  """Refuses fields of a teacher's prompt without a text, and texts without
  their field.
  """
  t, names = c.teacher, informed_prompts.fields(c.teacher.prompt)
  key = f'rl.teacher.prompt={t.prompt!r}'
  texts = {'right': t.right, 'wrong': t.wrong, 'no_sample': t.no_sample}
  of_field = {'right': 'verdict', 'wrong': 'verdict', 'no_sample': 'sample'}
  unread = next((k for k in texts if texts[k] and of_field[k] not in names), '')
  inner = next((k for k in texts if informed_prompts.fields(texts[k])), '')
  return (
    (
      unread,
      f'rl.teacher.{unread}={texts.get(unread)!r} has no effect: {key} lacks '
      f'{{{of_field.get(unread)}}}',
    ),
    (
      inner,
      f'rl.teacher.{inner}={texts.get(inner)!r} may have {{prompt}}, '
      '{solution} and {answer} only: remove the other field',
    ),
    (
      'verdict' in names and t.right == t.wrong,
      f'{key} has a {{verdict}} that is always {t.right!r}: set '
      'rl.teacher.right and rl.teacher.wrong to two texts',
    ),
    (
      'sample' in names and c.samples == 1,
      f'{key} has the {{sample}} of another row of the group, and '
      'rl.samples=1: set it to 2 or more',
    ),
    (
      'observations' in names and not c.turns.env,
      f'{key} has {{observations}}, and completions have none without '
      'rl.turns.env: remove the field, or set an environment',
    ),
    (
      'detail' in names and c.path != 'host',
      f'{key} has the {{detail}} of a verifier in Python, and kernels have no '
      "messages: set rl.path='host', or remove the field",
    ),
    (
      ('detail' in names) != bool(t.detail_len),
      f'{key} and rl.teacher.detail_len={t.detail_len}: set both, {{detail}} '
      'in the prompt and the most tokens of a message, or neither',
    ),
    *rules.apart(
      f' and {key} cannot be combined: a completion after a hint lacks its '
      'beginning; set it to its default',
      rl__hints__room='sample' in names and c.hints.room,
    ),
    *rules.apart(
      f' and {key} cannot be combined: the sample may be the row of the other '
      'player, with a card that this one cannot see; leave {sample} out',
      rl__turns__env='sample' in names
      and turn_settings.is_game(c)
      and c.turns.env,
    ),
  )
