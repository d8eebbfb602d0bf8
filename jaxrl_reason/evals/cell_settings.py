"""Options of an evaluation, and the settings of its cells."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from jaxrl_reason.data import step_labels
from jaxrl_reason.evals import (
  answer_judges,
  contamination,
  leaf_verifiers,
  loading,
  prompts,
  sampling_settings,
)
from jaxrl_reason.evals.suites import Suite
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rollouts import automaton, gumbel_search
from jaxrl_reason.rollouts.power_sampling import Power
from jaxrl_reason.verifiers.named_code import of_named_code

MAX_NEW = 512  # for models without a run that has a completion length


@dataclasses.dataclass(frozen=True)
class Options:
  """The values of the command's flags; see its help."""

  models: Sequence[str]
  suites: Sequence[str]
  out: epath.Path
  prompts: Sequence[str] = (prompts.OWN,)
  temperatures: Sequence[float] = (1.0,)
  k: int | None = None  # None: as many as each suite is reported with
  greedy: bool = True
  batch: int = 256
  max_new: int | None = None
  budgets: Sequence[int] = ()
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  logit_bias: Mapping[str, float] = dataclasses.field(default_factory=dict)
  grammar: str = ''  # regular expression of completions
  chunk: int = 0
  carry: int = 0
  least: int = 0
  wait: str = ''
  most: int = 0
  final: str = ''
  power: float = 1.0
  moves: int = 0
  simulations: int = 0
  candidates: int = 0
  step_tokens: int = 0
  step_end: str = ''
  leaf: str = leaf_verifiers.JUDGE
  seed: int = 0
  dtype: str | None = None
  mesh: Sequence[int] = (-1, 1, 1)
  system: str = ''
  thinking: bool | None = None
  base: str = ''
  judge: str = ''
  top_logprobs: int = 0
  train: Sequence[str] = ()
  ngram: int = contamination.N
  contamination_limit: float = 0.01
  allow_contamination: bool = False
  workers: int = 2
  timeout_s: float = 10.0


def of(
  o: Options,
  model: str,
  suite: Suite,
  variant: prompts.Variant,
  temperature: float,
  of_model: Mapping[str, str],
) -> dict[str, Any]:
  """Returns all settings that the answers of a cell depend on, without settings
  of the computation (batch, devices).

  Args:
    of_model: `versions`, and `prompts.template_of` of the variant.
  """
  run_config = loading.run_of(model)
  max_new = o.max_new
  if max_new is None:
    max_new = run_config.data.completion_len if run_config else MAX_NEW
  chunks = _chunks(o, run_config, max_new)
  k = suite.samples if o.k is None else o.k
  same = ('greedy', 'top_k', 'top_p', 'min_p', 'seed', 'system')
  return {
    'model': model,
    'suite': suite.name,
    'variant': variant.name,
    'temperature': float(temperature),
    'max_new': max_new,
    'k': k,
    'problems': suite.digest(),
    'dtype': o.dtype or loading.default_dtype(),
    'thinking': o.thinking,
    'budgets': sorted(o.budgets),
    'base': _base(o, temperature, k),
    **{k: getattr(o, k) for k in same},
    **of_model,
    **_verified(o, suite),
    **prompts.solved_of(variant, suite),
    **forced(o),
    **_repeats(o),
    **_grammar(o, chunks),
    **chunks,
    **_power(o, temperature, chunks),
    **_search(o, max_new, chunks),
    **_leaf(o, suite),
    **_top(o, chunks),
    **_noise(k, temperature),
    **({'judge': answer_judges.judge_name(o.judge)} if o.judge else {}),
  }


def _verified(o: Options, suite: Suite) -> dict[str, Any]:
  """Returns the settings of verdicts: the time limit, and the code of rewards
  that are not part of the package.
  """
  names = {suite.reward, *(e.get('verifier', '') for e in suite.examples)}
  code = of_named_code(sorted(names))
  return {'timeout_s': o.timeout_s} | ({'verifier': code} if code else {})


def versions(o: Options, model: str) -> dict[str, str]:
  """Returns the versions of the weights of a model, of --base and --judge."""
  out = {'version': loading.version_of(model)}
  if o.base:
    out['base_version'] = loading.version_of(loading.full_name(o.base))
  if o.judge:
    name = answer_judges.judge_name(o.judge)
    out['judge_version'] = loading.version_of(name)
  return out


def _chunks(o: Options, run_config, max_new: int) -> dict[str, int]:
  """Returns the chunks of completions, by default those of the run; {}:
  none.
  """
  found = {'chunk': o.chunk, 'carry': o.carry}
  of_run = run_config.rl.get('chunks') if run_config else None
  if of_run and not o.chunk:  # a run of an older version has none
    found = {'chunk': of_run.tokens, 'carry': of_run.carry}
  return found if 0 < found['chunk'] < max_new else {}


def chunks_of(settings: dict[str, Any]) -> Chunks | None:
  """Returns the chunks of a cell's answers."""
  if 'chunk' not in settings:
    return None
  return Chunks(settings['chunk'], settings['carry'])


def _power(o: Options, temperature: float, chunks: dict) -> dict[str, Any]:
  """Returns the power of the distribution and the moves; {}: none.

  Raises:
    ValueError: one of both is missing, or another setting changes the
      distribution.
  """
  if o.power == 1 and not o.moves:
    return {}
  if o.power == 1 or not o.moves:
    raise ValueError(
      f'--power={o.power:g} and --moves={o.moves} go together: set a power '
      'above 1 and at least one move'
    )
  wrong = _changed(o, temperature) + ['chunk'] * bool(chunks)
  if wrong:
    raise ValueError(
      f"--power={o.power:g} samples from a power of the model's own "
      f'distribution, and cannot be combined with --{wrong[0]}'
    )
  return {'power': o.power, 'moves': o.moves}


def _changed(o: Options, temperature: float) -> list[str]:
  """Returns the settings with which samples are not of the model's own
  distribution.
  """
  own = sampling_settings.NEUTRAL | dict(logit_bias={}, least=0, most=0)
  values = vars(o) | {'temperature': temperature}
  return [k for k in own if values[k] != own[k]]


def _base(o: Options, temperature: float, k: int) -> str | None:
  """Returns the name of the model that a KL is measured to; None: none.

  Raises:
    ValueError: the answers are no samples of the model's own distribution.
  """
  if not o.base:
    return None
  wrong = _changed(o, temperature) + ['k=0'] * (not k)
  wrong += ['power'] * (o.power != 1) + ['simulations'] * bool(o.simulations)
  wrong += ['regex or --json_schema'] * bool(o.grammar)
  if wrong:
    raise ValueError(
      '--base measures the KL with samples at temperature 1 of all tokens, and '
      f'cannot be combined with --{wrong[0]}: evaluate these in a second '
      'command, without --base'
    )
  return loading.full_name(o.base)


def _grammar(o: Options, chunks: dict) -> dict[str, str]:
  """Returns the regular expression of completions; {}: none.

  Raises:
    ValueError: completions are not whole samples.
  """
  if not o.grammar:
    return {}
  wrong = [name for name, value in forced(o).items() if value]
  wrong += ['power'] * (o.power != 1) + ['simulations'] * bool(o.simulations)
  wrong += ['chunk'] * bool(chunks)
  if wrong:
    raise ValueError(
      '--regex and --json_schema follow completions that are sampled from '
      f'their first token, and cannot be combined with --{wrong[0]}'
    )
  return {'grammar': o.grammar}


SEARCH = 'simulations', 'candidates', 'step_tokens', 'step_end'


def _search(o: Options, max_new: int, chunks: dict) -> dict[str, Any]:
  """Returns the settings of a search over steps; {}: none.

  Raises:
    ValueError: a setting is missing, has no effect, or changes the tokens that
      a step can have.
    ImportError: mctx is not installed.
  """
  found = {k: getattr(o, k) for k in SEARCH}
  if not any(found.values()):
    return {}
  judged = o.judge or o.leaf != leaf_verifiers.JUDGE
  if not judged or not 2 <= o.candidates <= o.simulations:
    raise ValueError(
      f'--simulations={o.simulations} with --candidates={o.candidates} and '
      f'--judge={o.judge}: a search needs a judge or --leaf=verifier, at least '
      '2 candidates, and as many simulations as candidates or more'
    )
  if not 0 < o.step_tokens < max_new:
    raise ValueError(
      f'--step_tokens={o.step_tokens} of {max_new} tokens: a search needs '
      'steps of at least 1 token and fewer than a completion has. Without '
      'steps, `judge_best@k` is the completion that the judge chooses'
    )
  wrong = [name for name, value in (forced(o) | _repeats(o)).items() if value]
  wrong += ['power'] * (o.power != 1) + ['chunk'] * bool(chunks)
  wrong = [k for k in wrong if k != 'logit_bias']
  if wrong:
    raise ValueError(
      f'--simulations={o.simulations} searches for whole completions of the '
      f'sampler, and cannot be combined with --{wrong[0]}'
    )
  gumbel_search.library()
  return found


def _leaf(o: Options, suite: Suite) -> dict[str, str]:
  """Returns the setting `leaf` of a search by a verifier. It is {} for a search
  by the judge, as in files of older versions.

  Raises:
    ValueError: there is no search, or no verifier inside the program.
  """
  if o.leaf == leaf_verifiers.JUDGE:
    return {}
  if not o.simulations:
    raise ValueError(
      f'--leaf={o.leaf} is the value function of a search: set --simulations, '
      '--candidates and --step_tokens'
    )
  leaf_verifiers.kernel_of(suite, o.leaf)
  return {'leaf': o.leaf}


def search_of(
  settings: dict[str, Any], tokenizer: Any, judge: answer_judges.Judge | None
) -> gumbel_search.Search | None:
  """Returns the search for a cell's answers.

  Raises:
    ValueError: the end of a step is not one token.
  """
  if 'simulations' not in settings:
    return None
  *numbers, end = (settings[k] for k in SEARCH)
  ends = step_labels.step_ends(end, tokenizer, '--step_end')
  leaf = gumbel_search.LEAVES.get(settings.get('leaf'))
  if leaf is None:
    own = gumbel_search.BEGINNING, gumbel_search.CONTINUED
    leaf = own[not judge.of_beginnings]
  return gumbel_search.Search(*numbers, ends, leaf)


def _top(o: Options, chunks: dict) -> dict[str, int]:
  """Returns the number of likeliest tokens that records have; {}: none.

  Raises:
    ValueError: completions are not whole samples of the model.
  """
  if not o.top_logprobs:
    return {}
  wrong = [name for name, value in forced(o).items() if value]
  if wrong or chunks:
    raise ValueError(
      f'--top_logprobs={o.top_logprobs} and --{(wrong or ["chunk"])[0]} cannot '
      'be combined: the distributions of whole completions are stored, and '
      'these have forced tokens or several contexts'
    )
  return {'top_logprobs': o.top_logprobs}


def _noise(k: int, temperature: float) -> dict[str, str]:
  """Returns the name of the noise of k samples, so that samples of several
  temperatures are independent; {} for temperature 1, as in files of older
  versions, and for greedy answers alone.
  """
  return {'noise': f't{temperature:g}'} if k and temperature != 1 else {}


def power_of(settings: dict[str, Any]) -> Power | None:
  """Returns the power of the distribution of a cell's answers."""
  if 'power' not in settings:
    return None
  return Power(settings['power'], settings['moves'])


def forced(o: Options) -> dict[str, Any]:
  """Returns the forced budget; {}: none, as in files of older versions."""
  found = {k: getattr(o, k) for k in ('least', 'wait', 'most', 'final')}
  return found if any(found.values()) else {}


def _repeats(o: Options) -> dict[str, Any]:
  """Returns the penalties and biases that are set; files of older versions
  have none.
  """
  neutral = sampling_settings.NEUTRAL | {'logit_bias': {}}
  names = [k for k in neutral if k.endswith(('_penalty', '_bias'))]
  return {k: getattr(o, k) for k in names if getattr(o, k) != neutral[k]}


def sampling(
  o: Options, temperature: float, tokenizer: Any, stop: Sequence[int]
) -> Sampling:
  """Returns the settings at one temperature; stop: ends of completions."""
  keys = [k for k in sampling_settings.NEUTRAL if k != 'temperature']
  values = {k: getattr(o, k) for k in keys} | {'temperature': temperature}
  made = sampling_settings.make(values, o.logit_bias, tokenizer)
  if not o.grammar:
    return made
  tokens = tokenizer.token_bytes()
  given = o.grammar, tokens, len(tokens), stop
  return made.replace(automaton=automaton.of_expression(*given))
