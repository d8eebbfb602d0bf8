"""Compares our sampler and GRPO step with TRL's on CPU, alternately in one run.

  python -m venv TR && TR/bin/pip install torch==2.13.0 trl==1.16.0 jax==0.10.2
  .venv/bin/python tools/benchmarks/beside_trl.py --trl-python=TR/bin/python
    [--shapes=4x256,2x64,8x512] [--phases=sampler,step] [--repeats=5]

The last shape has 64 + 256 tokens, the others 32 + 64.

Each library has one worker process, and the workers run alternately
(alternate.py). CPU seconds are those of all threads of a worker. The tables
have medians over the repeats.

Phases:
  sampler    64 completions. Ours: `sampler.generate`. Theirs: `generate` of
             transformers, which GRPOTrainer calls without vLLM.
  step       prompts to updated weights, rewards in Python on both sides.
             Ours: `HostStep`. Theirs: one step inside `GRPOTrainer.train`.

Equal: 8 prompts x 8 samples, prompts without padding, vocabulary 512,
temperature 1, no top-k or top-p; a Llama of the same shape and number of
weights (checked), tied embedding; float32; a reference and a KL term of 0.04
(theirs and ours a second model); one update per batch by AdamW (1e-4, 0.9,
0.95) after clipping the global norm at 1; a reward that differs between
samples; no completion stops early, which both sides check.

Not equal, by design of the libraries: TRL prefills each of the 64 rows, we each
prompt once. TRL runs eagerly in PyTorch, our step is compiled. We also compute
entropy and sampler log-probabilities. TRL's logging, saving and gradient
checkpointing are off, and its micro-batch is the whole batch.
"""

import tempfile
from collections.abc import Callable, Iterator

import alternate
import beside
import numpy as np

PHASES = {
  'sampler': {'ours': 'sampler', 'trl': 'sampler'},
  'step': {'ours': 'host step', 'trl': 'step'},
}


def llama(shape: beside.Shape):
  import transformers

  config = transformers.LlamaConfig(
    vocab_size=beside.V,
    hidden_size=shape.width,
    intermediate_size=4 * shape.width,
    num_hidden_layers=shape.layers,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=shape.width // 4,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    max_position_embeddings=2048,
  )
  return transformers.LlamaForCausalLM(config)


def numbers():
  """Returns a tokenizer whose text is the token ids in decimal. The model
  cannot sample the id of its stop token.
  """
  import tokenizers
  import transformers

  words = {str(i): i for i in range(beside.V)} | {'<end>': beside.V}
  inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, '<end>'))
  inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=inner, eos_token='<end>', pad_token='<end>'
  )


def trainer(shape: beside.Shape, callback, folder: str):
  """Returns a GRPOTrainer that saves and logs nothing. It loads its reference
  from the folder of its model.
  """
  import datasets
  from trl import GRPOConfig, GRPOTrainer

  ids = np.random.default_rng(0).integers(beside.V, size=(8, shape.prompt))
  prompts = [beside.Numbers().decode(row) for row in ids]
  rows = beside.B * beside.G
  llama(shape).save_pretrained(f'{folder}/model')
  config = GRPOConfig(
    folder,
    model_init_kwargs={'dtype': 'float32'},
    use_cpu=True,
    bf16=False,  # on by default
    per_device_train_batch_size=rows,
    num_generations=beside.G,
    max_completion_length=shape.new,
    beta=0.04,
    loss_type='grpo',
    learning_rate=1e-4,
    lr_scheduler_type='constant',
    adam_beta2=0.95,
    max_grad_norm=1.0,
    max_steps=10**6,
    save_strategy='no',
    logging_strategy='no',
    report_to='none',
    disable_tqdm=True,
    gradient_checkpointing=False,
    use_cache=True,
  )

  def reward(prompts, completions, **_):
    return beside.scores(completions, shape)

  return GRPOTrainer(
    model=f'{folder}/model',
    reward_funcs=reward,
    args=config,
    train_dataset=datasets.Dataset.from_dict({'prompt': prompts}),
    processing_class=numbers(),
    callbacks=[callback],
  )


def commanded(commands: Iterator[str], reply: Callable, sample: Callable):
  """Returns a callback that waits for a command, then times a step."""
  import transformers

  class Commanded(transformers.TrainerCallback):
    clock = None

    def on_step_begin(self, args, state, control, **_):
      for phase in commands:
        if phase == 'step':
          self.clock = alternate.Clock()
          return
        reply(alternate.timed(sample))
      control.should_training_stop = True

    def on_step_end(self, args, state, control, **_):
      if not control.should_training_stop:
        reply(self.clock.read())

  return Commanded()


def trl(shape: beside.Shape, commands: Iterator[str], reply: Callable, _):
  import torch

  ids = torch.randint(beside.V, (beside.B, shape.prompt))
  ids = ids.repeat_interleave(beside.G, dim=0)

  @torch.no_grad()
  def sample():
    out = grpo.model.generate(
      input_ids=ids,
      attention_mask=torch.ones_like(ids),
      do_sample=True,
      top_k=0,
      max_new_tokens=shape.new,
    )
    beside.check_full(out[:, shape.prompt :], shape)

  with tempfile.TemporaryDirectory() as folder:
    grpo = trainer(shape, commanded(commands, reply, sample), folder)
    n_weights = sum(x.numel() for x in grpo.model.parameters())
    reply(beside.about(('trl', 'transformers', 'torch'), n_weights))
    grpo.train()


def main():
  other = beside.Other('trl', PHASES, trl)
  beside.main(other, beside.parser(other, __doc__))


if __name__ == '__main__':
  main()
