"""Sampling settings of commands: flags, and those of a model's folder."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_reason import ranges
from jaxrl_reason.data import hf_tokenizers, token_bias
from jaxrl_reason.logits import Sampling

# Values of flags that neither the command nor the model sets.
NEUTRAL = {
  'temperature': 1.0,
  'top_k': 0,
  'top_p': 1.0,
  'min_p': 0.0,
  'repetition_penalty': 1.0,
  'presence_penalty': 0.0,
  'frequency_penalty': 0.0,
}
# Settings of a generation_config.json that greedy decoding reads too.
OF_GREEDY = ('repetition_penalty',)


def of_model(texts, flags: Mapping[str, float | None]) -> dict[str, float]:
  """Returns the sampling settings of a model.

  Args:
    texts: folder of the model's generation_config.json, or None.
    flags: settings that replace those of the file; None: not given.

  Raises:
    ValueError: a setting is outside its range; names the file or the flag.
  """
  found = {}
  if texts is not None:
    found = hf_tokenizers.read_json(texts / hf_tokenizers.GENERATION)
  if found.get('do_sample') is False:  # the others have no effect there
    found = {k: x for k, x in found.items() if k in OF_GREEDY}
  out = dict(NEUTRAL)
  for values, prefix in (found, f'{hf_tokenizers.GENERATION}: '), (flags, '--'):
    given = {k: values[k] for k in NEUTRAL if values.get(k) is not None}
    ranges.check(given, ranges.SAMPLING, prefix)
    out |= given
  return out


def stops(texts: Sequence[str], tokenizer: Any) -> tuple[list[str], list[int]]:
  """Splits the texts that end a completion into those that a decoded text may
  contain, and special tokens, which it never contains.

  Raises:
    ValueError: names the text with a special token and others.
  """
  rest, ids, spelled = [], [], tokenizer.token_bytes()
  name = getattr(tokenizer, 'token_text', None)  # of a folder's tokenizer
  for text in texts:
    found = tokenizer.encode(text) if name else []
    special = [i for i in found if not spelled[i] and name(i) in text]
    if special and len(found) > 1:
      raise ValueError(
        f'--stop={text!r}: {name(special[0])!r} is a special token, which is '
        'in no decoded text: pass it as a --stop on its own'
      )
    ids += special
    rest += [] if special else [text]
  return rest, ids


def make(
  values: Mapping[str, float], biases: Mapping[str, float], tokenizer: Any
) -> Sampling:
  """Returns the Sampling of values by key, and of biases by token.

  Raises:
    ValueError: names the bias that is wrong.
  """
  bias = token_bias.make(biases, tokenizer, '--logit_bias')
  return Sampling.fixed(**values, logit_bias=bias)
