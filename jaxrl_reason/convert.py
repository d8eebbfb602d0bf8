"""Weights between Hugging Face folders and our checkpoints.

  python -m jaxrl_reason.convert --from=DIR --to=DIR [--dtype=bfloat16]

--from is a Hugging Face folder (config.json, *.safetensors), a file *.gguf
(`checkpoints.gguf_files` has its families), or the workdir of a run, of which
the newest checkpoint's parameters are taken. --to becomes a Hugging Face folder
that `transformers` opens, or with --format=orbax a checkpoint of ours. Adapters
are merged; with --format=peft they are written alone. A run from scratch brings
its own tokenizer along. Steering vectors become biases, where there is a family
with those. Weights kept as int8 are multiplied out: what was trained beside
them is given back exactly, what quantizing them lost is not.

--dtype is that on disk. Without it, that of the source; of a run that of the
model it began from (which rounds float32 weights to a bfloat16 model's own
dtype), or float32 where it began from none or kept weights as int8.
"""

import pathlib
import sys

from absl import app, flags, logging

from jaxrl_reason.checkpoints import conversion, files, gguf_files, hf
from jaxrl_reason.data import hf_export, problems

_FROM = flags.DEFINE_string('from', None, 'Hugging Face folder, or a workdir.')
_TO = flags.DEFINE_string('to', None, 'Folder to write; new or empty.')
_DTYPE = flags.DEFINE_enum(
  'dtype', None, sorted(hf.DTYPES), "On disk; default: the source's."
)
_FORMAT = flags.DEFINE_enum('format', 'hf', ('hf', 'orbax', 'peft'), 'Of --to.')


def from_gguf(source: str, target: str, dtype: str | None, form: str) -> str:
  """Converts a GGUF file; returns a line that says what was written."""
  if form != 'hf':
    raise ValueError(f'--format={form}: a GGUF file becomes a folder, hf')
  if not pathlib.Path(source).is_file():
    raise ValueError(f'--from={source} does not exist')
  with files.new_folder('--to', target) as folder:
    line = gguf_files.convert(source, folder, dtype)
  return line.replace(str(folder), target)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1:]}: write --from={argv[1]}')
  if not _FROM.value or not _TO.value:
    raise app.UsageError('--from and --to are needed')
  try:
    logging.set_verbosity(logging.WARNING)
    form = _FORMAT.value
    if _FROM.value.endswith('.gguf'):
      print(from_gguf(_FROM.value, _TO.value, _DTYPE.value, form))
      return 0

    def add_tokenizer(folder):
      hf_export.write(problems.tokenizer_of_run(_FROM.value), folder)

    line = conversion.convert(
      _FROM.value,
      _TO.value,
      dtype=_DTYPE.value,
      form=form,
      finish=add_tokenizer,
    )
    print(line)
  except (ValueError, OSError, ImportError) as e:
    print(f'convert: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  app.run(main)
