"""Measures the step of accelerator.py with transformers and plain torch.

  .venv/bin/python tools/benchmarks/torch_step.py
    [--models=qwen2.5-0.5b,qwen2.5-1.5b]
    [--prompts=32 --samples=8] [--prompt-len=256 --completion-len=1024]
    [--micro-batches=32] [--layers=N] [--repeats=3]

Runs in any Python with torch and transformers (it imports nothing of this
project), on a GPU if there is one. Equal: shapes, random weights, float32 with
bfloat16 products, a reference and a KL term, clipping at 1, AdamW, no early
stops. Generation is `generate` of a bfloat16 copy with scaled-dot-product
attention, and prefills every row. The update is eager, with activation
checkpointing if --checkpoint is set.
"""

import argparse
import copy
import statistics
import time

import torch
import transformers

MODELS = {
  'qwen2.5-0.5b': dict(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
  ),
  'qwen2.5-1.5b': dict(
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
  ),
}
VOCAB = 151_936
KL = 0.04


def arguments() -> argparse.Namespace:
  p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  p.add_argument('--models', default=','.join(MODELS))
  p.add_argument('--prompts', type=int, default=32)
  p.add_argument('--samples', type=int, default=8)
  p.add_argument('--prompt-len', type=int, default=256)
  p.add_argument('--completion-len', type=int, default=1024)
  p.add_argument('--micro-batches', type=int, default=32)
  p.add_argument('--checkpoint', action='store_true')
  p.add_argument('--layers', type=int, default=0, help='0: all')
  p.add_argument('--repeats', type=int, default=3)
  return p.parse_args()


def policy(a: argparse.Namespace, name: str, device: str):
  """Returns (policy in float32, frozen copy in bfloat16)."""
  config = transformers.Qwen2Config(
    vocab_size=VOCAB,
    tie_word_embeddings=True,
    eos_token_id=None,
    bos_token_id=None,
    **MODELS[name],
  )
  config.num_hidden_layers = a.layers or config.num_hidden_layers
  config._attn_implementation = 'sdpa'
  model = transformers.Qwen2ForCausalLM(config).to(device)
  frozen = copy.deepcopy(model).to(torch.bfloat16).eval()
  if a.checkpoint:
    model.gradient_checkpointing_enable()
  return model.train(), frozen


@torch.no_grad()
def sample(model, prompts: torch.Tensor, new: int) -> torch.Tensor:
  """Samples rows [N,P+C] for prompts [N,P]."""
  return model.generate(
    input_ids=prompts,
    attention_mask=torch.ones_like(prompts),
    do_sample=True,
    top_k=0,
    max_new_tokens=new,
    min_new_tokens=new,
    pad_token_id=0,
  )


def logp(model, rows: torch.Tensor, new: int) -> torch.Tensor:
  """Computes log-probabilities [n,C] of the completions."""
  logits = model(rows, logits_to_keep=new + 1).logits[:, :-1].float()
  targets = rows[:, -new:]
  losses = torch.nn.functional.cross_entropy(
    logits.flatten(0, 1), targets.flatten(), reduction='none'
  )
  return -losses.view_as(targets)


def update(model, frozen, optimizer, rows, advantages, a) -> float:
  """Makes an on-policy GRPO update: ratio 1, and the k3 estimate of the KL."""
  new, total = a.completion_len, 0.0
  for part, advantage in zip(
    rows.chunk(a.micro_batches), advantages.chunk(a.micro_batches)
  ):
    with torch.autocast(rows.device.type, torch.bfloat16):
      policy_logp = logp(model, part, new)
      with torch.no_grad():
        reference = logp(frozen, part, new)
    ratio = torch.exp(policy_logp - policy_logp.detach())
    gap = reference - policy_logp
    loss = -ratio * advantage[:, None] + KL * (gap.exp() - gap - 1)
    loss = loss.mean() * len(part) / len(rows)
    loss.backward()
    total += loss.detach()
  torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
  optimizer.step()
  optimizer.zero_grad(set_to_none=True)
  return float(total)  # waits for the device


def timed(f, repeats: int) -> float:
  """Measures median seconds of f(), which is warm and waits for its device."""
  seconds = []
  for _ in range(repeats):
    begun = time.perf_counter()
    f()
    seconds.append(time.perf_counter() - begun)
  return statistics.median(seconds)


def measure(a: argparse.Namespace, name: str, device: str) -> dict[str, float]:
  model, frozen = policy(a, name, device)
  fused = dict(fused=True) if device == 'cuda' else {}
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
  prompts = torch.randint(VOCAB, (a.prompts, a.prompt_len), device=device)
  prompts = prompts.repeat_interleave(a.samples, dim=0)
  rows = sample(frozen, prompts, a.completion_len)
  if rows.shape[1] != a.prompt_len + a.completion_len:
    raise RuntimeError(f'rows of {rows.shape[1]} tokens')
  scores = (rows[:, a.prompt_len] % 7).float().view(a.prompts, -1)
  spread = scores.std(dim=1, keepdim=True, correction=0) + 1e-6
  advantages = ((scores - scores.mean(dim=1, keepdim=True)) / spread).flatten()

  def sampler():
    # item() waits for the device.
    return sample(frozen, prompts, a.completion_len)[0, -1].item()

  def learn():
    return update(model, frozen, optimizer, rows, advantages, a)

  seconds = {'sampler': timed(sampler, a.repeats)}
  learn()
  seconds['update'] = timed(learn, a.repeats)
  return seconds | {'step': sum(seconds.values())}


def main():
  a = arguments()
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  kind = torch.cuda.get_device_name() if device == 'cuda' else device
  print(
    f'{kind}, torch {torch.__version__}, transformers '
    f'{transformers.__version__}; {a.prompts} x {a.samples} rows, '
    f'{a.prompt_len} + {a.completion_len} tokens'
  )
  print(f'{"model":14} {"phase":8} {"wall s":>9} {"tokens/s":>9}')
  for name in a.models.split(','):
    for phase, seconds in measure(a, name, device).items():
      tokens = a.prompts * a.samples * a.completion_len / seconds
      print(f'{name:14} {phase:8} {seconds:9.3f} {tokens:9.0f}', flush=True)


if __name__ == '__main__':
  main()
