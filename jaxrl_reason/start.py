r"""Writes a recipe for your model, your data and your reward.

  jaxrl start --data=problems.jsonl --reward=mine.py:reward
  jaxrl start --model=hf:Qwen/Qwen3-1.7B --data=hf:openai/gsm8k \
    --reward=mine.py:reward --on=v5e-8

It looks at the data, chooses lengths by the model's tokenizer, tries the reward
on ten problems, and chooses trained weights, mesh, remat and micro-batches:
with --on by compiling for these chips, which needs no TPU (the extra `tpu`);
without --on by arithmetic, and the batch by trials of two steps on this
machine. It prints what a step costs, and the command that trains.
"""

import os
import pathlib
import sys
from collections.abc import Sequence

from jaxrl_reason import command


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('start', __doc__)
  p.text('--model', '', 'as model_dir of a recipe; if empty, a small new one')
  p.text(
    '--data', None, 'a file, a folder, hf:owner/name, gsm8k or a task',
    required=True,
  )  # fmt: skip
  p.text('--reward', '', "a name, or FILE.py:FUNCTION; if empty, the data's")
  p.text('--on', '', 'chips, such as v5e-8 or h100; if empty, this machine')
  p.text('--out', '', 'file to write; if empty, named by model and data')
  p.number('--prompt_len', 0, 'tokens of a prompt; 0: by the data')
  p.number('--completion_len', 0, 'tokens of a completion; 0: by the data')
  p.keys()
  p.switch('--notrial', 'without the two steps on this machine')
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  if a.on:  # libtpu looks for the chips of this machine, with warnings
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  # Imported here: a wrong flag is refused at once.
  from absl import logging

  from jaxrl_reason.planning import first_recipe, recipe_draft

  logging.set_verbosity(logging.ERROR)
  name = recipe_draft.file_name(a.model, a.data)
  options = first_recipe.Options(
    a.model,
    a.data,
    a.reward,
    a.on,
    pathlib.Path(a.out or name),
    a.prompt_len,
    a.completion_len,
    not a.notrial,
    a.changes,
  )
  with command.one_line():
    print(first_recipe.run(options, lambda t: print(t, file=sys.stderr)))


if __name__ == '__main__':
  main()
