"""Published runs on TPUs, as recipes with the same model, lengths and chips.

  tools/run plan --config=configs/published/runs.py:mllm_3b_v6e \\
    --topology=v6e:2x4 --nolargest

The argument is a name in RUNS. `tools/ledger.py` plans all of them and prints
the plans beside the published figures; docs/predictions.md is its output.
Weights, problems and optimizer settings are not those of the published runs,
because a plan does not depend on them.
"""

import dataclasses

from jaxrl_reason import config as config_lib


@dataclasses.dataclass(frozen=True)
class Run:
  """A published run.

  Attributes:
    model: name on the Hub; topology: that of `plan --topology`.
    mesh: sizes of the axes data, fsdp and tensor.
    rows: (prompts, samples of each); tokens: (prompt, completion).
    figure: the published figure, in words.
    source: address of the page with the figure.
    seconds: seconds of a step of `rows`, by the figure; 0: not published.
    only: the phases that the figure contains.
    differs: differences between the published run and the recipe, in words.
    by_depth: compile three depths, and extrapolate.
    changes: changes of further keys, by path.
  """

  model: str
  topology: str
  mesh: tuple[int, int, int]
  rows: tuple[int, int]
  tokens: tuple[int, int]
  figure: str
  source: str
  seconds: float = 0.0
  only: tuple[str, ...] = ('generate', 'update')
  differs: str = ''
  by_depth: bool = False
  changes: dict = dataclasses.field(default_factory=dict)


MAXTEXT = (
  'https://maxtext.readthedocs.io/en/maxtext-v0.2.2/reference/models/'
  'tiering.html'
)
MLLM = 'https://github.com/demon2036/MLLM-JAX/tree/main/docs'
MARIN = 'https://github.com/marin-community/marin/issues/'
WHOLE = 'completions of the limit; published lengths vary'


def _pretraining(model, topology, fsdp, rows, length, rate) -> Run:
  """Returns a row of MaxText's table; `rate` is in tokens/s of a chip."""
  return Run(
    model,
    topology,
    (1, fsdp, 1),
    (rows, 1),
    (length // 2, length // 2),
    f'{rate:,} tokens/s a chip',
    MAXTEXT,
    seconds=rows * length / fsdp / rate,
    only=('pretrain',),
    by_depth=True,
    differs='batch and settings',
  )


def _decoding(model, topology, tensor, rows, tokens, rate, figure, source, **k):
  """Returns a run that only generates; `rate` is in tokens/s of all chips."""
  return Run(
    model,
    topology,
    (1, 1, tensor),
    (rows, 1),
    tokens,
    figure,
    source,
    seconds=rows * tokens[1] / rate,
    only=('generate',),
    **k,
  )


RUNS = {
  'mllm_3b_v6e': Run(
    'Qwen/Qwen2.5-3B-Instruct',
    'v6e:2x4',
    (1, 8, 1),
    (16, 8),
    (512, 1024),
    '12.1 to 12.9 s a step (one step: generation 9.12 s, update 3.89 s)',
    MLLM,
    seconds=12.1,
    differs=f'{WHOLE}, about 200 tokens in the mean',
    changes={'rl.micro_batches': 4},
  ),
  'mllm_7b_v4': Run(
    'Qwen/Qwen2.5-7B-Instruct',
    'v4:2x2x1',
    (1, 1, 4),
    (32, 1),
    (512, 1024),
    '22.92 s a step',
    MLLM,
    seconds=22.92,
    differs=f'{WHOLE}; Lion in bfloat16, since the state of AdamW does not fit',
    changes={
      'rl.micro_batches': 8,
      'rl.optimizer.name': 'lion',
      'rl.optimizer.state_dtype': 'bfloat16',
    },
  ),
  'maxtext_4b_v6e': Run(
    'Qwen/Qwen3-4B',
    'v6e:2x4',
    (1, 8, 1),
    (8, 4),
    (256, 768),
    'rewards only',
    'https://github.com/AI-Hypercomputer/maxtext/pull/4393',
    only=(),
    differs='it generates with vLLM',
    changes={'rl.micro_batches': 4, 'rl.loss.kl_coef': 0.08},
  ),
  'maxtext_1b7_v6e': Run(
    'Qwen/Qwen3-1.7B',
    'v6e:8x8',
    (1, 32, 2),
    (32, 16),
    (256, 256),
    'rewards only',
    'https://github.com/AI-Hypercomputer/maxtext/pull/4015',
    only=(),
    differs='rows and lengths are not published: those here are assumed',
    changes={'rl.loss.kl_coef': 0.01},
  ),
  'marin_8b_v5p': _decoding(
    'Qwen/Qwen3-8B',
    'v5p:2x2x1',
    4,
    32,
    (512, 512),
    5215.67,
    'vLLM 5,216 tokens/s, Levanter 3,132',
    MARIN + '6227',
  ),
  'marin_8b_v5p_8': _decoding(
    'Qwen/Qwen3-8B',
    'v5p:2x2x1',
    4,
    8,
    (512, 512),
    1264,
    'vLLM 1,264 tokens/s, Levanter 957.7',
    MARIN + '6227',
    differs='lengths are not published with this figure: those of 32 rows',
  ),
  'marin_8b_v6e': _decoding(
    'Qwen/Qwen3-8B',
    'v6e:2x4',
    8,
    8,
    (2048, 128),
    1212.15,
    'vLLM 1,212 tokens/s, Levanter 899',
    MARIN + '6229',
  ),
  'vllm_32b_tpu7x': _decoding(
    'Qwen/Qwen3-32B',
    'tpu7x:1x1x1',
    2,
    128,
    (1024, 8192),
    4054.9,
    'vLLM 4,055 tokens/s',
    'https://github.com/vllm-project/tpu-inference/pull/1961',
    differs='float8 there, int8 here; at most 135 of 320 requests at a time',
    changes={
      'lora.rank': 1,
      'frozen_dtype': 'int8',
      'model.cache_dtype': 'int8',
    },
  ),
  'maxtext_llama3_8b': _pretraining(
    'meta-llama/Llama-3.1-8B', 'v6e:16x16', 256, 768, 8192, 7207
  ),
  'maxtext_llama2_70b_v5p': _pretraining(
    'meta-llama/Llama-2-70b', 'v5p:8x8x8', 512, 1024, 4096, 692
  ),
  'maxtext_llama2_70b_v6e': _pretraining(
    'meta-llama/Llama-2-70b', 'v6e:16x16', 256, 768, 4096, 900
  ),
  'maxtext_llama3_70b': _pretraining(
    'meta-llama/Llama-3.1-70B', 'v6e:16x16', 256, 512, 8192, 960
  ),
}


@config_lib.recipe(RUNS)
def get_config(name: str):
  run = RUNS[name]
  c = config_lib.default()
  c.mesh = run.mesh
  c.model.update(dtype='bfloat16', remat='full')
  c.data.update(name='files', tokenizer='hf', template='boxed')
  c.data.update(prompt_len=run.tokens[0], completion_len=run.tokens[1])
  c.model_dir = f'hf:{run.model}'
  if run.only == ('pretrain',):
    c.stages = ('pretrain',)
    c.pretrain.update(rows=run.rows[0], logprob_chunk=256)
    return c
  c.stages = ('rl',)
  c.rl.update(path='host', algorithm='grpo', parts=1, logprob_chunk=128)
  c.rl.update(prompts=run.rows[0], samples=run.rows[1])
  if run.rows[1] == 1:
    c.rl.algorithm = 'reinforce'
  c.update_from_flattened_dict(run.changes)
  return c
