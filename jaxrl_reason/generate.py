r"""Generates text: to the terminal token by token, or from file to file.

  jaxrl generate --model=DIR --prompt='What is 2 + 3?' --chat
  jaxrl generate --model=DIR --file=prompts.jsonl \
    --out=completions.jsonl

--model is a Hugging Face folder, hf:owner/model[@revision], or the workdir of a
run. A line of --file has `prompt` (text) or `messages` (a conversation, with
--chat). A line of --out has the same fields and those of one completion:
`completion`, `sample` and so on (`verifiers.records`). `jaxrl grade` reads
them. If it is interrupted, the same command continues with the same samples.
Another model, template or sampling is refused: completions.json beside the
output has the settings that it was begun with.

If a flag of sampling (--temperature, --top_k, --top_p, --min_p) is not set, its
value is that of the model's generation_config.json, if the file has it. --top_k
applies before --top_p, and --min_p last, as in transformers.

A completion ends before the first --stop, a text or a special token; `length`
counts its tokens too. With --regex or --json_schema only tokens that continue a
match are sampled, and the completion may end where the match is whole (extra:
structured).
"""

import sys
from collections.abc import Sequence

from jaxrl_reason import command, ranges

THINKING = ('on', 'off', 'low', 'medium', 'high')


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('generate', __doc__)
  p.text('--model', None, 'folder, hf:owner/model, or workdir', required=True)
  p.text('--prompt', None, 'a prompt')
  p.text('--file', None, 'prompts, JSONL')
  p.text('--out', None, 'completions, JSONL, with --file')
  p.switch('--chat', "in the model's chat template")
  p.text('--system', '', 'system message of prompts without one, with --chat')
  p.text('--thinking', '', f'of some templates: {", ".join(THINKING)}')
  p.text('--template', '', 'format of prompts without --chat')
  p.number('--n', 1, 'completions per prompt')
  p.sampling()
  p.texts('--stop', 'text that ends a completion; may be repeated')
  p.number('--max_new', 512, 'tokens of a completion')
  p.number('--temperature', 1.0, '0: greedy')
  p.number('--seed', 0, 'of the noise')
  p.number('--batch', 8, 'prompts of --file at a time')
  p.text('--dtype', '', 'float32 or bfloat16; default: float32 on CPU only')
  p.set_defaults(**dict.fromkeys(ranges.SAMPLING))
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  # Imported late, so that a wrong flag is refused at once.
  from jaxrl_reason import hosts
  from jaxrl_reason.evals import generation

  with command.one_line():
    hosts.find_devices()
    print(generation.run(a), file=sys.stderr)


if __name__ == '__main__':
  main()
