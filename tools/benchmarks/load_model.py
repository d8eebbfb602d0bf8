"""Measures seconds and host memory of loading a Hugging Face folder.

  .venv/bin/python tools/benchmarks/load_model.py [--size=qwen2.5-0.5b]
    [--disk=bfloat16]

Writes a folder of random weights of a published size (or reads --folder), then
loads it in another process into float32 or --dtype. A thread measures the
anonymous memory of that process (RssAnon, since the kernel can drop the pages
of mapped files). The limit is: peak - final memory <= 1.2 x the largest tensor.
On CPU the final memory contains the parameters.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

LIMIT = 1.2  # largest (peak - final memory) / largest tensor


def anonymous_bytes() -> int:
  """Returns the anonymous resident memory of this process."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith('RssAnon'):
      return int(line.split()[1]) * 1024
  raise OSError('/proc/self/status has no RssAnon: Linux is needed')


class Watch(threading.Thread):
  """Records the peak memory, measured every two milliseconds."""

  def __init__(self):
    super().__init__(daemon=True)
    self.peak, self.ended = 0, False

  def run(self):
    while not self.ended:
      self.peak = max(self.peak, anonymous_bytes())
      time.sleep(0.002)


def write(folder: pathlib.Path, size: str, dtype: str) -> None:
  """Writes a folder of random weights, with the memory of one layer."""
  from jaxrl_reason.checkpoints import hf, tensor_files
  from jaxrl_reason.models import families, weights, zoo

  c = zoo.ZOO[size]
  config = families.to_hf(c)
  planned = hf.plan(weights.specs(c), families.tensors_of(config), c.stacks)
  shapes = {name: shape for name, (shape, _) in planned.items()}
  noise = np.random.default_rng(0).standard_normal(1 << 20, np.float32) * 0.02
  listed = {}
  for i, (name, shape) in enumerate(shapes.items()):
    file = f'model-{i:05d}.safetensors'
    tensor = np.resize(noise, math.prod(shape)).astype(hf.DTYPES[dtype])
    tensor_files.library().numpy.save_file(
      {name: tensor.reshape(shape)}, folder / file, metadata={'format': 'pt'}
    )
    listed[name] = file
  (folder / tensor_files.INDEX).write_text(json.dumps({'weight_map': listed}))
  (folder / 'config.json').write_text(json.dumps(config))


def load(folder: str, dtype: str) -> dict:
  """Loads a folder in this process and measures it."""
  import jax

  from jaxrl_reason import trees
  from jaxrl_reason.checkpoints import hf
  from jaxrl_reason.models import families, weights

  config = hf.read_config(folder)
  c = families.from_hf(config)
  plan = hf.plan(weights.specs(c), families.tensors_of(config), c.stacks)
  largest = max(math.prod(shape) for shape, _ in plan.values())
  jax.block_until_ready(jax.numpy.zeros(1))
  before, watch, start = anonymous_bytes(), Watch(), time.perf_counter()
  watch.start()
  params = jax.block_until_ready(hf.load(folder, c, dtype=dtype))
  seconds = time.perf_counter() - start
  watch.ended = True
  watch.join()
  width = np.dtype(hf.DTYPES[dtype]).itemsize
  kept = trees.n_bytes(params)
  return {
    'parameters': trees.n_params(params),
    'seconds': seconds,
    'kept': kept,
    'largest': largest * width,
    'peak': watch.peak - before,
    'ratio': (watch.peak - before - kept) / (largest * width),
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--size', default='qwen2.5-0.5b')
  parser.add_argument('--disk', default='bfloat16')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--folder')
  parser.add_argument('--inside', action='store_true', help='internal')
  args = parser.parse_args()
  if args.inside:
    print(json.dumps(load(args.folder, args.dtype)))
    return
  with tempfile.TemporaryDirectory() as made:
    if not args.folder:
      write(pathlib.Path(made), args.size, args.disk)
    command = [sys.executable, __file__, '--inside', f'--dtype={args.dtype}']
    command += [f'--folder={args.folder or made}']
    done = subprocess.run(command, check=True, capture_output=True, text=True)
  x = json.loads(done.stdout.splitlines()[-1])
  gib = {k: x[k] / 2**30 for k in ('kept', 'largest', 'peak')}
  print(
    f'{args.folder or args.size}: {x["parameters"]:,} parameters in '
    f'{x["seconds"]:.1f} s; kept {gib["kept"]:.2f} GiB, peak '
    f'{gib["peak"]:.2f} GiB, largest tensor {gib["largest"]:.2f} GiB: '
    f'(peak - kept) {x["ratio"]:.2f} x the largest tensor (limit {LIMIT})'
  )


if __name__ == '__main__':
  main()
