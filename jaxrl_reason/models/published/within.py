"""Text models in folders that contain more, such as towers for images."""

# By model_type of the folder: (key of the text model in config.json, (prefix of
# tensor names in our tables, prefix in the folder), regex of tensors that are
# not read).
WITHIN = {
  **dict.fromkeys(
    ('gemma3', 'mistral3'),
    (
      'text_config',
      ('', 'language_model.'),
      r'(vision_tower|multi_modal_projector)\..*',
    ),
  ),
  **dict.fromkeys(
    ('gemma3n', 'gemma4', 'gemma4_unified'),
    (
      'text_config',
      ('model.', 'model.language_model.'),
      r'model\.((vision|audio)_tower|vision_embedder|embed_(vision|audio))\..*',
    ),
  ),
  'llama4': (
    'text_config',
    ('', 'language_model.'),
    r'(vision_model|multi_modal_projector)\..*',
  ),
  **dict.fromkeys(
    ('qwen3_5', 'qwen3_5_moe', 'qwen3_vl', 'qwen3_vl_moe'),
    (
      'text_config',
      ('model.', 'model.language_model.'),
      r'(model\.visual|mtp)\..*',
    ),
  ),
}


def text_of(h: dict) -> dict:
  """Returns the config.json of a folder's text model, usually the whole file.

  Raises:
    ValueError: the key of the text model is missing.
  """
  name = h.get('model_type')
  if not isinstance(name, str) or name not in WITHIN:
    return h
  key = WITHIN[name][0]
  if not isinstance(h.get(key), dict):
    raise ValueError(
      f'config.json: model_type {name} needs {key}, its text model'
    )
  # `transformers` ties the weights by the outer key, whatever the inner one is.
  tied = {k: h[k] for k in ('tie_word_embeddings',) if k in h}
  return {'model_type': f'{name}_text', **h[key], **tied}


def is_within(h: dict) -> bool:
  """Returns whether a folder contains more than its text model."""
  return text_of(h) is not h


def name_in(h: dict, name: str) -> str:
  """Returns the name in a folder of a tensor of its text model."""
  if not is_within(h):
    return name
  own, there = WITHIN[h['model_type']][1]
  return there + name.removeprefix(own) if name.startswith(own) else name


def beside_of(h: dict) -> str:
  """Returns a regex over the names of the folder's other tensors; '': none."""
  return WITHIN[h['model_type']][2] if is_within(h) else ''
