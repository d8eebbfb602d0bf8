r"""Text from a model: to the terminal as it is drawn, or from file to file.

  jaxrl generate --model=DIR --prompt='What is 2 + 3?' --chat
  jaxrl generate --model=DIR --file=prompts.jsonl \
    --out=completions.jsonl

--model is a Hugging Face folder, hf:owner/model[@revision], or the workdir of a
run. A line of --file has `prompt` (text) or `messages` (a conversation, with
--chat); --out gets a line for each completion, with the same and `completion`,
`sample` and so on (`rewards.records`), as `jaxrl grade` reads them. The
same command goes on where it was stopped, and draws what it would have drawn.
Another model, template or sampling is refused: the file completions.json
beside the output has those it was begun with.

Flags of sampling that are not given (--temperature, --top_k, --top_p, --min_p)
are those of the model's generation_config.json, if it has them. --top_k
applies before --top_p, and --min_p last, as in transformers.
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
  p.text('--system', '', 'message of the system, with --chat')
  p.text('--thinking', '', f'of some templates: {", ".join(THINKING)}')
  p.text('--template', '', 'format of prompts without --chat')
  p.number('--n', 1, 'completions per prompt')
  p.sampling()
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
  # Imported here: a wrong flag is refused at once.
  from jaxrl_reason.evals import generation

  with command.one_line():
    print(generation.run(a), file=sys.stderr)


if __name__ == '__main__':
  main()
