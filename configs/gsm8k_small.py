"""Trains a model of 2.2 M parameters on GSM8K, on the host path.

  tools/run --config=configs/gsm8k_small.py \\
    --workdir=runs/gsm8k --config.data.dir=../shared/data/gsm8k

`data.dir` is a folder with the published train.jsonl and test.jsonl. Without
it, the files are downloaded. A SentencePiece tokenizer of 2,048 tokens is
trained on the train split. The model is first trained on the solutions, then by
RL. The verifier `numbers` runs in two worker processes.

The recipe shows the host path. A model of this size cannot solve the problems.
Examples longer than 96 + 128 tokens are dropped (34% of train). The
figures below are for the remaining test problems: this is no GSM8K score.

Seed 0, two CPU cores shared with other work (6 to 10 busy threads):

                     greedy   pass@1    of 200 test problems, 4 samples
  after sft (250)    0.035    0.019     loss 2.65
  after rl (60)      0.015    0.021     no gain: within the noise (0.005)

  The run took 622 s of CPU time and 19 minutes, including one kill -9 soon
  after rl step 40 and the restart from its checkpoint. With the least other
  work, an sft step took 1.0 s and an rl step 3.4 s, which would be 8 to 9
  minutes. An rl step with other work: perf/rollout_s 1.35 s (3,700 completion
  tokens a second), perf/update_s 4.0 s, perf/verify_wait_s 0.007 s (0.13% of
  the step). The first step after a start takes 2 s longer.

RL gains nothing, because only 1 to 2% of the samples are correct: in 90 to 96%
of the groups every reward is 0. The entropy rose from 3.1 to 3.5. Only one seed
and one learning rate were tried.

Hardware: two CPU cores; or one TPU chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.stages = ('sft', 'rl')
  c.model.update(layers=4, width=192, mlp=512, heads=6, kv_heads=6)
  c.data.update(
    name='gsm8k',
    tokenizer='sentencepiece',
    vocab=2048,
    prompt_len=96,
    completion_len=128,
    too_long='drop',
  )
  c.sft.update(steps=250, rows=32)
  c.sft.optimizer.update(lr=3e-3, schedule='cosine')
  c.rl.update(steps=60, path='host', algorithm='dr_grpo', prompts=8, samples=8)
  c.rl.optimizer.lr = 2e-4
  c.eval.update(every=250, problems=200, samples=4)
  c.checkpoint.every = 20
  return c
