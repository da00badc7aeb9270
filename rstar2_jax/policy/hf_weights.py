"""Policies as Hugging Face folders: config.json and safetensors.

Hugging Face keeps a matrix [out, in] per layer; we keep [L, in, out], stacked.
A folder is complete or absent: it is written beside its place and renamed.
"""

from collections.abc import Iterator, Mapping
import json
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from rstar2_jax.policy import model

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_config(
    folder: str | pathlib.Path, *, dtype: str = "float32", remat: bool = False
) -> model.ModelConfig:
  """Reads config.json.

  Raises:
    ValueError: it is missing, no JSON, or of another architecture.
  """
  path = pathlib.Path(folder) / "config.json"
  try:
    values = json.loads(path.read_text())
    if not isinstance(values, dict):
      raise ValueError("not a JSON object")
    return model.ModelConfig.from_hf(values, dtype=dtype, remat=remat)
  except FileNotFoundError:
    raise ValueError(f"{path}: no such file; give a Hugging Face folder"
                     " with config.json and *.safetensors") from None
  except json.JSONDecodeError as e:
    raise ValueError(f"{path}: not JSON ({e})") from None
  except KeyError as e:
    raise ValueError(f"{path}: {e} is missing") from None
  except (ValueError, TypeError, AttributeError) as e:
    raise ValueError(f"{path}: {e}") from None


def load(
    folder: str | pathlib.Path, *, dtype: str = "float32", remat: bool = False
) -> tuple[model.ModelConfig, dict[str, Any]]:
  """Reads a policy.

  Args:
    folder: with config.json and model.safetensors, sharded or not.
    dtype: compute dtype of the configuration returned.
    remat: recompute layers in the backward pass.

  Returns:
    The configuration and float32 numpy parameters as `model` has them.

  Raises:
    ValueError: something is missing, unreadable or of another shape.
  """
  folder = pathlib.Path(folder)
  config = read_config(folder, dtype=dtype, remat=remat)
  expected = {name: (path, shape)
              for name, path, shape in _names(config)}
  stacks: dict[tuple[str, ...], np.ndarray] = {}
  missing = set(expected)
  for name, array in _tensors(folder):
    if name not in expected:
      if name == "lm_head.weight" and config.tie_word_embeddings:
        continue  # a copy of the embedding
      raise ValueError(f"{folder}: unexpected weight {name}")
    path, shape = expected[name]
    array = array.T if _is_matrix(path) else array
    if array.shape != shape:
      raise ValueError(f"{folder}: {name} has shape {list(array.shape)} (our"
                       f" order), config.json says {list(shape)}")
    missing.discard(name)
    if path[0] == "layers":
      stack = stacks.setdefault(
          path, np.empty((config.num_layers, *shape), np.float32))
      stack[int(name.split(".")[2])] = array
    else:
      stacks[path] = np.asarray(array, np.float32)
  if missing:
    raise ValueError(f"{folder}: weight {min(missing)} is missing"
                     f" ({len(missing)} in all)")
  return config, _nest(stacks)


def save(
    folder: str | pathlib.Path, config: model.ModelConfig,
    params: model.Params, *, tokenizer: Any = None,
) -> None:
  """Writes a folder that transformers and SGLang open.

  Args:
    folder: replaced as a whole.
    config: the architecture.
    params: the weights; written as float32.
    tokenizer: has `save(folder)`; written into the same folder. None: none.
  """
  folder = pathlib.Path(folder)
  draft = folder.with_name(f"{folder.name}.draft-{os.getpid()}")
  shutil.rmtree(draft, ignore_errors=True)
  draft.mkdir(parents=True)
  try:
    host = jax.device_get(params)
    tensors = {}
    for name, path, _ in _names(config):
      array = _at(host, path)
      if path[0] == "layers":
        array = array[int(name.split(".")[2])]
      array = np.asarray(array, np.float32)
      tensors[name] = np.ascontiguousarray(
          array.T if _is_matrix(path) else array)
    safetensors_numpy.save_file(
        tensors, draft / _WEIGHTS, metadata={"format": "pt"})
    (draft / "config.json").write_text(
        json.dumps(config.to_hf(), indent=2) + "\n")
    if tokenizer is not None:
      tokenizer.save(draft)
    _swap(draft, folder)
  finally:
    shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: pathlib.Path, folder: pathlib.Path) -> None:
  """Puts `draft` in the place of `folder`."""
  old = folder.with_name(f"{folder.name}.old-{os.getpid()}")
  if folder.exists():
    os.rename(folder, old)
  os.rename(draft, folder)
  shutil.rmtree(old, ignore_errors=True)


def _is_matrix(path: tuple[str, ...]) -> bool:
  return path[-1] == "kernel"


def _names(
    config: model.ModelConfig,
) -> Iterator[tuple[str, tuple[str, ...], tuple[int, ...]]]:
  """(Hugging Face name, path in our dict, shape of one layer in our order)."""
  shapes = jax.eval_shape(lambda: model.init(config, 0))
  for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
    keys = tuple(str(k.key) for k in path)
    suffix = ".".join(
        (*keys[:-1], "bias" if keys[-1] == "bias" else "weight"))
    if keys[0] == "layers":
      for i in range(config.num_layers):
        name = f"model.layers.{i}.{suffix.removeprefix('layers.')}"
        yield name, keys, leaf.shape[1:]
    elif keys[0] == "lm_head":
      yield suffix, keys, leaf.shape
    else:
      yield f"model.{suffix}", keys, leaf.shape


def _tensors(folder: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Every tensor of the folder's safetensors files, as float32."""
  index = folder / _INDEX
  if index.exists():
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
  else:
    files = [_WEIGHTS]
  for file in files:
    path = folder / file
    try:
      # "flax" reads bfloat16, which numpy does not know.
      with safetensors.safe_open(path, framework="flax") as opened:
        for name in opened.keys():
          yield name, np.asarray(opened.get_tensor(name), np.float32)
    except FileNotFoundError:
      raise ValueError(f"{path}: no such file") from None
    except safetensors.SafetensorError as e:
      raise ValueError(f"{path}: not a safetensors file ({e})") from None


def _at(params: Mapping[str, Any], path: tuple[str, ...]) -> Any:
  for key in path:
    params = params[key]
  return params


def _nest(flat: Mapping[tuple[str, ...], np.ndarray]) -> dict[str, Any]:
  nested: dict[str, Any] = {}
  for path, array in flat.items():
    inner = nested
    for key in path[:-1]:
      inner = inner.setdefault(key, {})
    inner[path[-1]] = array
  return nested
