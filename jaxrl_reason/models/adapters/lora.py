"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685) beside any
projection of a model, including those of each expert.

  y = x W + scale (x a) b     a [in,r] random, b [r,out] zero

with scale alpha / r, or alpha / sqrt(r) (rsLoRA,
https://arxiv.org/abs/2312.03732). The parameters are the model's, plus a
subtree 'lora' with the same paths, so code that reads the model's weights does
not see the adapters. Training computes x a b beside x W and no gradient of W.
Generation adds a b to W once, unless W is int8 (`adapters.frozen`) or sums are
exact (`parts.exact_layers`). Without the subtree the model computes its base,
so the reference needs no second copy.
Dropout is 0.

With k roles, a is [in,k r] and b is [k r,out], and each role has r of the
ranks. Before a forward pass, either `of_role` keeps the ranks of one role, or
`of_rows` adds the role of each row, and each row uses its own ranks.

`save_peft` writes the adapters alone in the format of `peft`.
"""

import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.models import spec, weights
from jaxrl_reason.models.parts import layers

KEY = 'lora'
ROLE = 'lora_role'  # int8 [M], roles of rows or tokens


@dataclasses.dataclass(frozen=True)
class Lora:
  """Settings of the adapters; targets is a regex over weight paths, and every
  one of the roles has adapters of that rank.
  """

  rank: int
  alpha: float
  rslora: bool = False
  targets: str = '.*attn/(q|k|v|o)|.*mlp/(gate|up|down)'
  roles: int = 1

  @property
  def scale(self) -> float:
    return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def _pair(path: str, s: spec.Spec, rank: int) -> dict[str, spec.Spec]:
  """Returns the specs of one projection's adapter, by layer and expert."""
  lead, n = weights.split(path, s)
  n_in = math.prod(s.shape[lead : lead + n])
  n_out = math.prod(s.shape[lead + n :])
  stacked, axes = s.shape[:lead], (*s.axes[:lead], None, None)
  return {
    f'{path}/a': spec.Spec((*stacked, n_in, rank), axes, fan_in=n_in),
    f'{path}/b': spec.Spec((*stacked, rank, n_out), axes, 'zeros'),
  }


def specs(base: Any, c: Lora) -> dict:
  """Returns the specs of the adapters for a model's spec tree.

  Raises:
    ValueError: the targets match no weight, or a weight that is no projection.
  """
  adapters = {}
  for p, s in jax.tree_util.tree_leaves_with_path(base, is_leaf=spec.is_spec):
    path = trees.path_str(p)
    if not re.fullmatch(c.targets, path):
      continue
    if path.rpartition('/')[2] not in weights.N_INPUTS:
      raise ValueError(
        f'lora.targets={c.targets!r} matches {path}, not a projection: '
        f'choose among {", ".join(weights.N_INPUTS)}'
      )
    if f'/{weights.INDEX}/' in path:
      raise ValueError(
        f'lora.targets={c.targets!r} matches {path}: the weights of an indexer '
        'have no gradient'
      )
    adapters |= _pair(path, s, c.rank * c.roles)
  if not adapters:
    raise ValueError(
      f'lora.targets={c.targets!r} matches no weight: the regex must match a '
      'whole path, such as layers/attn/q'
    )
  return trees.unflatten(adapters)


def base_of(params: dict) -> dict:
  """Returns the parameters without the adapters."""
  return {k: v for k, v in params.items() if k not in (KEY, ROLE)}


def of_role(params: dict, role: int, roles: int) -> dict:
  """Returns the parameters with the adapters of one of the roles alone."""
  if KEY not in params:
    return params

  def own(path, x):
    axis = x.ndim - 1 if path.endswith('/a') else x.ndim - 2
    r = x.shape[axis] // roles
    return jax.lax.slice_in_dim(x, role * r, (role + 1) * r, axis=axis)

  return params | {KEY: trees.map_with_path(own, params[KEY])}


def of_rows(params: dict, role: jax.Array) -> dict:
  """Returns the parameters with the roles of rows: int [N] for rows [N,...], or
  of all tokens of rows, in order. Without adapters there are no roles.
  """
  if KEY not in params:
    return params
  return params | {ROLE: role.astype(jnp.int8).reshape(-1)}


def _with(params: dict, f) -> dict:
  """Returns the base's parameters with f(w, a, b) for each adapted w."""
  if KEY not in params:
    return params
  flat = trees.flatten(base_of(params), layers.is_weight)
  ab = trees.flatten(params[KEY])
  # Not in the order of a set, which differs between processes.
  for path in dict.fromkeys(p.rpartition('/')[0] for p in ab):
    flat[path] = f(flat[path], ab[f'{path}/a'], ab[f'{path}/b'])
  return trees.unflatten(flat)


def merged(params: dict, scale: float) -> dict:
  """Returns the base's parameters with the adapters added to them in float32.

  int8 weights (`adapters.frozen`) cannot hold the sum, so their adapters stay
  beside them.
  """

  def add(w, a, b):
    if isinstance(w, layers.Quantized):
      return layers.Adapted(w, a, b, scale)
    delta = jnp.einsum('...ir,...ro->...io', a, b) * scale
    return w + delta.reshape(w.shape)

  return _with(params, add)


def beside(params: dict, scale: float, roles: int = 1) -> dict:
  """Returns the base's parameters as `layers.Adapted`, adapters unmerged."""
  role = params.get(ROLE)

  def pair(w, a, b):
    if role is None or roles == 1:
      return layers.Adapted(w, a, b, scale)
    of_layers = jnp.broadcast_to(role, (*a.shape[:-2], *role.shape))
    return layers.Adapted(w, a, b, scale, of_layers, roles)

  return _with(params, pair)


def require_one(params: dict, c: Lora) -> None:
  """Refuses adapters of several roles if no row has a role.

  Raises:
    ValueError: the adapters of all roles would be added up.
  """
  if c.roles == 1 or ROLE in params or KEY not in params:
    return
  flat = trees.flatten(params[KEY])
  if any(p.endswith('/a') and x.shape[-1] != c.rank for p, x in flat.items()):
    raise ValueError(
      f'these weights have adapters of {c.roles} roles (rl.role_adapters), and '
      'rows without a role are computed with them'
    )


def save_peft(
  folder,
  params: dict,
  c: Lora,
  table,
  specs,
  base_name: str = '',
  stacks=None,
  dtype=None,
) -> None:
  """Writes the adapters alone, in the format that `peft` and vLLM read.

  Adapters of weights that the family stores as one tensor are written as one
  adapter of that tensor, with the sum of their ranks.

  Args:
    params: parameters with the subtree 'lora'.
    table: rows of `models.published.tensors` of the model's family.
    specs: of the model.
    base_name: name of the base model.
    stacks: `Config.stacks` of the model; None: one stack of all layers.
    dtype: of the file; None: that of the parameters.

  Raises:
    ValueError: an adapter is of an expert, or of a weight that the table lacks.
  """
  from safetensors.numpy import save_file

  folder, flat = pathlib.Path(folder), trees.flatten(params[KEY])
  flat = {path: np.asarray(x) for path, x in flat.items()}
  known, specs = {x for row in table for x in row.leaves}, trees.flatten(specs)
  for path in sorted({p.rpartition('/')[0] for p in flat}):
    if path not in known:
      raise ValueError(
        f'{path} has an adapter and no tensor in this family that peft adapts: '
        'export it merged'
      )
    if flat[f'{path}/a'].ndim > 3:  # layers, experts, a matrix
      raise ValueError(
        f'{path} has an adapter per expert, and peft stores all experts as one '
        'fused parameter: export it merged'
      )
  tensors, ranks = {}, {}
  for row in table:
    parts = [leaf for leaf in row.leaves if f'{leaf}/a' in flat]
    if not parts:
      continue
    a, b = _of_tensor(row.leaves, parts, flat, specs)
    stack = (stacks or {}).get(parts[0].partition('/')[0], range(len(a)))
    for i, a_i, b_i in zip(stack, a, b, strict=True):
      name = row.name.removesuffix('.weight').format(i)
      ranks[name] = a.shape[-1]
      for factor, x in (('lora_A', a_i), ('lora_B', b_i)):
        key = f'base_model.model.{name}.{factor}.weight'
        tensors[key] = np.ascontiguousarray(x.T, dtype)
  folder.mkdir(parents=True, exist_ok=True)
  save_file(tensors, folder / 'adapter_model.safetensors', {'format': 'pt'})
  config = _peft_config(c, ranks) | {'base_model_name_or_path': base_name}
  (folder / 'adapter_config.json').write_text(json.dumps(config, indent=2))


def _of_tensor(
  leaves: tuple[str, ...], parts: list[str], flat: dict, specs: dict
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the adapter of a tensor that joins weights: a [L,I,R], b [L,R,O].

  The columns of `a` are those of all parts, and `b` has the parts' factors on
  its diagonal, so the product has the same columns as the parts' products.

  Args:
    leaves: all weights in the tensor; parts: those with an adapter.
  """
  a = np.concatenate([flat[f'{x}/a'] for x in parts], axis=-1)
  if len(leaves) == 1:
    return a, flat[f'{parts[0]}/b']
  columns = [math.prod(specs[x].shape[2:]) for x in leaves]  # after layers, in
  b = np.zeros((*a.shape[::2], sum(columns)), a.dtype)
  row = 0
  for path in parts:
    own, at = flat[f'{path}/b'], sum(columns[: leaves.index(path)])
    b[:, row : row + own.shape[1], at : at + own.shape[2]] = own
    row += own.shape[1]
  return a, b


def _peft_config(c: Lora, ranks: dict[str, int]) -> dict:
  """Returns the settings for `peft`; ranks: by the name of a tensor."""
  other = {name: rank for name, rank in ranks.items() if rank != c.rank}
  # Short names would also match modules of an image or audio model.
  is_part = any('language_model.' in name for name in ranks)
  targets = ranks if is_part else {name.rpartition('.')[2] for name in ranks}
  alphas = {
    name: c.scale * (math.sqrt(rank) if c.rslora else rank)
    for name, rank in other.items()
  }
  return {
    'peft_type': 'LORA',
    'task_type': 'CAUSAL_LM',
    'r': c.rank,
    'lora_alpha': c.alpha,
    'rank_pattern': other,
    'alpha_pattern': alphas,
    'use_rslora': c.rslora,
    'lora_dropout': 0.0,
    'bias': 'none',
    'fan_in_fan_out': False,
    'inference_mode': True,
    'target_modules': sorted(targets),
  }
