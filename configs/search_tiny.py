"""Trains a policy to search an archive for facts that are not in its weights.

  tools/run --config=configs/search_tiny.py \\
    --workdir=runs/search --config.seed=0

  problem   kob?                                 or  kob 417?
  episode   <s>kob</s>  kob: 417  #417               #417

Python processes search the archive (configs/archive, 600 documents) by BM25
(`bm25s`, the extra `search`), between two compiled programs. A tenth of the
problems contain the number. In the warm start, one of five worked solutions
searches, independently of the problem. Held-out problems have other names.

128 held-out problems x 4 samples, sampled pass@1 (greedy):

          untrained  warm start     20 RL steps    40
  seed 0  0.000      0.277 (0.063)  0.738 (0.898)  0.855 (0.898)
  seed 1  0.000      0.264 (0.117)  0.717 (0.891)  0.875 (0.969)
  seed 2  0.000      0.330 (0.094)  0.697 (0.930)  0.820 (0.891)
  mean               0.29 +- 0.02   0.72 +- 0.01   0.85 +- 0.02

+-: standard error of three seeds. In the last steps 95 to 98% of the samples
search. A run takes 3 to 5 minutes on two cores shared with other work.

Hardware: two CPU cores; or one TPU chip, v5e:1x1 (planned without the tool).
"""

import pathlib

from jaxrl_reason import config as config_lib
from jaxrl_reason.verifiers import resolve

ARCHIVE = pathlib.Path(__file__).resolve().parent / 'archive'
resolve.load_file(str(ARCHIVE / 'problems.py'))  # registers the tasks


@config_lib.recipe()
def get_config():
  c = config_lib.default()
  c.data.update(name='archive', prompt_len=8, completion_len=32)
  c.model.update(layers=2, width=128, mlp=256, heads=4, kv_heads=4)
  c.model.update(head_dim=32, qk_norm=True)
  c.sft.update(steps=300, rows=64, steps_per_dispatch=5)
  c.sft.optimizer.update(lr=1e-3)
  c.rl.update(steps=40, prompts=32, samples=8, path='host', algorithm='dapo')
  c.rl.turns.update(env='tools', most=3, tokens=12, observation=12)
  c.rl.turns.tools = {'s': {'tool': 'search', 'args': {'folder': str(ARCHIVE)}}}
  c.rl.optimizer.update(lr=3e-4, b2=0.99)
  c.eval.update(every=20, problems=128, samples=4, harder=False)
  c.checkpoint.update(every=10)
  c.log_every = 5
  return c
