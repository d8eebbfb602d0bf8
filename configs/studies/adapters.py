"""LoRA and a steering vector against training all weights.

  tools/run study --config=configs/studies/adapters.py \\
    --out=studies/adapters

https://thinkingmachines.ai/blog/lora finds that LoRA of small rank does in RL
what full training does, at ten times its learning rate;
https://arxiv.org/abs/2505.18706 that one vector a layer, added to the residual
stream, comes close. The warm start of all is trained whole; the adapters begin
at no effect. Their learning rates were chosen beforehand, 10 and 40 times that
of full training.

Written before the first run. LoRA is equal here if its pass@1 on held-out
problems is within 0.02 of `full`, or less than two standard errors of the
difference below it; so is the vector if it makes up at least four fifths of
what `full` gains over the warm start.

Result (5 seeds, 128 problems, warm start 0.467 ± 0.006): `full` ends at
0.566 ± 0.017, `lora4` at 0.363 ± 0.032, below the warm start and below `full`
by 0.203 ± 0.022: it is not equal. Its reward falls in the first steps, so that
ten times the learning rate is likely too much for so small a model; other rates
were not tried. `steering` ends at 0.478 ± 0.008, a gain of +0.010 ± 0.005:
far from four fifths of full training's.
"""

from jaxrl_reason.studies.grid import Study, recipe_beside


def get_study():
  c = recipe_beside(__file__, 'small.py')
  c.eval.update(problems=128, samples=16)  # nothing is asked of large k
  return Study(
    recipe=c,
    settings={
      'full': {},
      'lora4': {'lora.rank': 4, 'rl.optimizer.lr': 5e-3},
      'steering': {'steering': True, 'rl.optimizer.lr': 2e-2},
    },
    shown=('eval/heldout/pass@1', 'eval/harder/pass@1', 'train/entropy'),
  )
