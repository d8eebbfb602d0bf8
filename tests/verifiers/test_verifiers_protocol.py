"""Environments of the package `verifiers`, with the real package."""

import json

import pytest

from jaxrl_reason.verifiers import tools

pytest.importorskip('verifiers.clients')


def rubric(*funcs):
  import verifiers as vf

  return vf.Rubric(list(funcs))


async def said_it(completion, answer):
  return float(completion[-1].content.strip('; ') == answer)


def guess(tries=3, together=False):
  """An environment in which a number is guessed, with hints."""
  import datasets
  import verifiers as vf

  class Guess(vf.MultiTurnEnv):
    async def setup_state(self, state):
      state['hints'] = 0

    async def env_response(self, messages, state, **more):
      number, right = messages[-1].content.strip('; '), state['answer']
      if not number.isdecimal():
        raise vf.ToolCallError(number)
      state['hints'] += 1
      hint = 'right' if number == right else '<>'[number > right]
      answer = [vf.UserMessage(content=hint)]
      if number == right:
        state['final_env_response'] = answer
      return answer

  async def found(state, answer):
    return float(state['trajectory'][-1]['completion'][0].content == answer)

  def compared(states):
    return [0.0 for _ in states]

  async def price(state):
    return -0.1 * state['hints']

  rows = [{'question': f'{i}?', 'answer': str(i)} for i in range(8)]
  funcs = [compared] if together else [found, price]
  return Guess(
    dataset=datasets.Dataset.from_list(rows), rubric=rubric(*funcs),
    max_turns=tries,
  )  # fmt: skip


def doubling():
  """An environment with a tool of one argument."""
  import datasets
  import verifiers as vf

  def twice(x: int) -> int:
    """Doubles."""
    return 2 * x

  rows = [{'question': 'twice 4', 'answer': '8'}]
  return vf.ToolEnv(
    tools=[twice], dataset=datasets.Dataset.from_list(rows),
    rubric=rubric(said_it), max_turns=4,
  )  # fmt: skip


def single():
  import datasets
  import verifiers as vf

  rows = [{'question': 'twice 4', 'answer': '8'}]
  return vf.SingleTurnEnv(
    dataset=datasets.Dataset.from_list(rows), rubric=rubric(said_it)
  )


def made(name, **args):
  return tools.make('verifiers', {'make': f'{__file__}:{name}', **args})


def rows_of(env):
  return env._env.get_dataset().to_list()


def test_an_episode_is_played_turn_by_turn():
  env = made('guess', args={'tries': 3})
  example = {'meta': rows_of(env)[5]}
  assert example['meta']['answer'] == '5'
  said, state, reward, event = env('3', example, None)
  assert (said, reward, event) == ('<', 0.0, '')
  said, state, _, _ = env('7', example, state)
  assert said == '>'
  # Any worker may play a turn, so no state is kept in this one.
  again = made('guess', args={'tries': 3})
  assert again('5', example, state) == (None, [*state, '5'], 0.8, '')
  # The environment's own limit, and its own rubric: the row had two hints.
  assert again('4', example, state) == (None, [*state, '4'], -0.2, '')
  assert env('5', example, None).reward == pytest.approx(0.9)


def test_exceptions_of_an_environment_are_failures():
  """The package stores them in the state; the pool counts them."""
  env = made('guess')
  with pytest.raises(RuntimeError, match='the environment failed: ToolCall'):
    env('five', {'meta': rows_of(env)[5]}, None)


def test_tools_are_called_by_the_policys_text():
  env = made('doubling', form='hermes')
  example = {'meta': rows_of(env)[0]}
  call = '<tool_call>{"name": "twice", "arguments": {"x": 4}}</tool_call>'
  said, state, _, event = env(call, example, None)
  assert (said, event) == ('8', '')
  assert env('8', example, state) == (None, [call, '8'], 1.0, '')
  wrong = call.replace('twice', 'thrice')
  assert 'thrice' in env(wrong, example, None).observation
  assert env(call[:-20], example, None)[2:] == (0.0, 'malformed')
  tags = made('doubling', form='tags')
  assert tags('<twice>4</twice>', example, None).observation


def test_one_turn_is_scored():
  env = made('single')
  example = {'meta': rows_of(env)[0]}
  assert env('8', example, None) == (None, ['8'], 1.0, '')
  assert env('9', example, None).reward == 0


def test_unsupported_environments_are_refused():
  with pytest.raises(ValueError, match='its rubric compares the rollouts'):
    made('guess', args={'together': True})
  with pytest.raises(ValueError, match="form='morse': choose tags"):
    made('guess', form='morse')


@pytest.mark.slow
def test_a_run_with_its_problems(tmp_path):
  """The problems are rows of its data set in a file, the reward is its
  rubric.
  """
  from tiny_recipe import get_config

  from jaxrl_reason.run import train

  rows = rows_of(made('guess')) + [
    row | {'question': f'which {row["answer"]}'}
    for row in rows_of(made('guess'))
  ]
  (tmp_path / 'train.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  c = get_config()
  c.stages = ('sft', 'rl')
  c.sft.steps = c.rl.steps = 2
  c.eval.update(problems=2, samples=1, every=4, harder=False)
  c.data.update(name='files', dir=str(tmp_path), tokenizer='byte')
  c.data.files.update(heldout=0.2)
  c.data.knobs, c.data.harder = {}, {}
  c.rl.update(path='host', algorithm='mt_grpo', epochs=1, minibatches=1)
  c.rl.prompts = 8
  c.rl.update(steps_per_dispatch=1, rewards={})
  c.rl.turns.update(env='verifiers', most=3, tokens=3, observation=8)
  c.rl.turns.update(workers=2, timeout_s=20.0, stops=(';',))
  c.rl.turns.args = {'make': f'{__file__}:guess'}
  c.data.completion_len = 24
  train.run(c, tmp_path / 'run')
  text = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  last = [x for x in map(json.loads, text) if 'train/turns/failed' in x][-1]
  assert last['train/turns/timeout'] == 0
  assert last['train/turns/failed'] + last['train/turns/done'] > 0
  assert last['tools/done'] >= 16
