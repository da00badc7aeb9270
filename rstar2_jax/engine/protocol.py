"""SGLang's /generate: its request bodies read, its answers written.

Names and shapes are SGLang's, from version 0.5; so are its habits: end ids of
the model stop a request, `ignore_eos` turns off stop_token_ids too, logprobs
of a prompt are at temperature 1, and the first entry of a prompt's is null.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import random
import time
from typing import Any
import uuid

import numpy as np

from rstar2_jax import types
from rstar2_jax.engine import requests
from rstar2_jax.engine import text as text_lib

_DEFAULT_MAX_NEW_TOKENS = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  """One sequence to sample, and how to answer."""

  sample: types.SampleRequest
  extras: requests.Extras
  return_logprob: bool = False
  return_text_in_logprobs: bool = False
  skip_special: bool = True
  no_stop_trim: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Body:
  """A request body."""

  items: tuple[Item, ...]
  is_list: bool  # answered by a list
  stream: bool


class Reader:
  """Reads request bodies for one model."""

  def __init__(self, text: text_lib.Text | None, seed: int):
    """`seed` is of the seeds of requests that bring none."""
    self._text = text
    self._random = random.Random(seed)

  def read(self, body: Any) -> Body:
    """Reads a body.

    Raises:
      ValueError: in one line, what is wrong with it.
    """
    if not isinstance(body, Mapping):
      raise ValueError("the body must be a JSON object")
    prompts, is_list = self._prompts(body)
    num = len(prompts)
    params = _spread(body.get("sampling_params"), num, "sampling_params", {})
    rids = _spread(body.get("rid"), num, "rid", None)
    options = {
        name: _spread(body.get(name), num, name, default)
        for name, default in (
            ("return_logprob", False), ("logprob_start_len", -1),
            ("top_logprobs_num", 0))}
    chosen = body.get("token_ids_logprob")
    if not (chosen and isinstance(chosen[0], list)):
      chosen = [chosen] * num
    items = []
    for i, ids in enumerate(prompts):
      if not isinstance(params[i], Mapping):
        raise ValueError("sampling_params must be an object")
      num_samples = _integer(params[i], "n", 1)
      for sample in range(num_samples):
        items.append(self._item(
            ids, params[i], sample=sample,
            rid=rids[i] if num_samples == 1 else None,  # as SGLang
            chosen=chosen[i], stream=bool(body.get("stream")),
            with_text=bool(body.get("return_text_in_logprobs")),
            **{k: v[i] for k, v in options.items()}))
    return Body(items=tuple(items), is_list=is_list or len(items) > 1,
                stream=bool(body.get("stream")))

  def _prompts(self, body: Mapping[str, Any]) -> tuple[list[list[int]], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
      raise ValueError("Either text or input_ids should be provided, not both.")
    if ids is None:
      texts = text if isinstance(text, list) else [text]
      if self._text is None:
        raise ValueError("the model's folder has no tokenizer.json; send"
                         " input_ids instead of text")
      if not all(isinstance(t, str) for t in texts):
        raise ValueError("text must be a string or a list of strings")
      return [self._text.encode(str(t)) for t in texts], isinstance(text, list)
    if not isinstance(ids, list):
      raise ValueError("input_ids must be a list of integers")
    is_list = bool(ids) and isinstance(ids[0], list)
    prompts = ids if is_list else [ids]
    for prompt in prompts:
      if not isinstance(prompt, list) or not all(
          isinstance(i, int) and not isinstance(i, bool)
          and abs(i) < 2**31 for i in prompt):
        raise ValueError("input_ids must be a list of integers, or a list of"
                         " such lists")
    return prompts, is_list

  def _item(
      self, ids: list[int], params: Mapping[str, Any], *, rid: str | None,
      sample: int, return_logprob: bool, logprob_start_len: int,
      top_logprobs_num: int, chosen: Sequence[int] | None, stream: bool,
      with_text: bool,
  ) -> Item:
    ignore_eos = bool(params.get("ignore_eos", False))
    stop_ids = [] if ignore_eos else _integers(
        params.get("stop_token_ids"), "stop_token_ids")
    start = _integer({"logprob_start_len": logprob_start_len},
                     "logprob_start_len", -1)
    num_top = _integer({"top_logprobs_num": top_logprobs_num},
                       "top_logprobs_num", 0)
    if self._text is not None and not ignore_eos:
      stop_ids += [i for i in self._text.end_ids if i not in stop_ids]
    seed = params.get("sampling_seed")
    seed = (self._random.getrandbits(32) if seed is None
            else _integer(params, "sampling_seed", 0) + sample)
    has_start = return_logprob and start >= 0
    return Item(
        sample=types.SampleRequest(
            rid=str(rid) if rid is not None else uuid.uuid4().hex,
            input_ids=ids,
            max_new_tokens=_integer(
                params, "max_new_tokens", _DEFAULT_MAX_NEW_TOKENS),
            temperature=_float(params, "temperature", 1.0),
            top_p=_float(params, "top_p", 1.0),
            top_k=_integer(params, "top_k", -1),
            stop_token_ids=tuple(stop_ids), seed=seed),
        extras=requests.Extras(
            min_p=_float(params, "min_p", 0.0),
            stop_finder=self._stop_finder(params.get("stop")),
            logprob_start=start if has_start else None,
            num_top_logprobs=num_top if return_logprob else 0,
            chosen_ids=(tuple(_integers(chosen, "token_ids_logprob"))
                        if return_logprob else ()),
            report_progress=stream),
        return_logprob=bool(return_logprob),
        return_text_in_logprobs=with_text,
        skip_special=bool(params.get("skip_special_tokens", True)),
        no_stop_trim=bool(params.get("no_stop_trim", False)))

  def _stop_finder(self, stop: Any) -> text_lib.StopStrings | None:
    strings = [stop] if isinstance(stop, str) else list(stop or ())
    if not strings:
      return None
    if not all(isinstance(s, str) and s for s in strings):
      raise ValueError("stop must be a string or a list of strings")
    if self._text is None:
      raise ValueError("the model's folder has no tokenizer.json; use"
                       " stop_token_ids instead of stop")
    return text_lib.StopStrings(self._text, strings)


def answer(
    item: Item, done: requests.Request, *, text: text_lib.Text | None,
    weight_version: str,
) -> dict[str, Any]:
  """The answer for one sequence, finished or not.

  Args:
    item: what was asked.
    done: a request, or a copy of it half-way.
    text: the vocabulary; None: answers hold no text.
    weight_version: of the server now.
  """
  n = len(done.output_ids)
  last_version = done.versions[-1][0] if done.versions else weight_version
  meta: dict[str, Any] = {
      "id": item.sample.rid,
      "finish_reason": done.finish_reason,
      "prompt_tokens": len(done.prompt_ids),
      "completion_tokens": n,
      "cached_tokens": done.cached_tokens or 0,
      "weight_version": last_version,
      "num_retractions": done.num_retractions,
      "request_received_ts": done.arrived_s,
      "queue_time": max(0.0, done.started_s - done.arrived_s),
  }
  if done.finish_reason is not None:
    meta["weight_versions"] = done.version_spans()
    meta["e2e_latency"] = (done.finished_s or time.time()) - done.arrived_s
    if done.first_token_s:
      meta["first_token_latency"] = done.first_token_s - done.arrived_s
  if item.return_logprob:
    meta |= _logprobs(item, done, text)
  return {"text": "" if text is None else _text(item, done, text),
          "output_ids": list(done.output_ids), "meta_info": meta}


def _text(
    item: Item, done: requests.Request, text: text_lib.Text
) -> str:
  """The sampled text; what ended it is cut off unless it is wanted."""
  ids = done.output_ids
  reason = done.finish_reason or {}
  matched = reason.get("matched")
  if isinstance(matched, int) and not item.no_stop_trim:
    ids = ids[:-1]
  result = text.decode(ids, skip_special=item.skip_special)
  if isinstance(matched, str) and not item.no_stop_trim:
    head, found, _ = result.rpartition(matched)
    result = head if found else result
  return result


def _logprobs(
    item: Item, done: requests.Request, text: text_lib.Text | None
) -> dict[str, Any]:
  """The logprob fields of meta_info."""
  def triple(logprob: float | None, i: int) -> list[Any]:
    shown = (text.decode([i]) if item.return_text_in_logprobs
             and text is not None else None)
    return [logprob, int(i), shown]

  meta: dict[str, Any] = {
      "input_token_logprobs": [],
      "output_token_logprobs": [
          triple(x, i) for x, i in zip(
              done.logprobs, done.output_ids, strict=True)],
      "output_token_logprobs_length": len(done.output_ids),
  }
  extras, prompt = item.extras, done.prompt_logprobs
  start = extras.logprob_start or 0
  if prompt is not None:
    # Nothing is said about the first id that is asked for.
    meta["input_token_logprobs"] = [
        triple(None if t == start else float(prompt.logprobs[t]), i)
        for t, i in enumerate(done.prompt_ids.tolist()) if t >= start]
  if extras.num_top_logprobs:
    meta["output_top_logprobs"] = [
        [triple(x, i) for x, i in step] for step in done.top_logprobs]
    meta["input_top_logprobs"] = [] if prompt is None else [
        None if t == start else [
            triple(float(x), i) for x, i in zip(
                prompt.top_logprobs[t], prompt.top_ids[t], strict=True)]
        for t in range(start, len(done.prompt_ids))]
  if extras.chosen_ids:
    def chosen(logprobs: np.ndarray | Sequence[float]) -> list[Any]:
      return [triple(float(x), i)
              for x, i in zip(logprobs, extras.chosen_ids, strict=True)]
    meta["output_token_ids_logprobs"] = [
        chosen(step) for step in done.chosen_logprobs]
    meta["input_token_ids_logprobs"] = [] if prompt is None else [
        None if t == start else chosen(prompt.chosen_logprobs[t])
        for t in range(start, len(done.prompt_ids))]
  return meta


def _spread(value: Any, num: int, name: str, default: Any) -> list[Any]:
  """One value per prompt: a list as it is, anything else for all."""
  if value is None:
    value = default
  if not isinstance(value, list):
    return [value] * num
  if len(value) != num:
    raise ValueError(f"{name} has {len(value)} entries for {num} prompts")
  return value


def _integers(value: Any, name: str) -> list[int]:
  if value is None:
    return []
  if not isinstance(value, list) or not all(
      isinstance(i, int) and not isinstance(i, bool) for i in value):
    raise ValueError(f"{name} must be a list of integers, got {value!r}")
  return list(value)


def _integer(values: Mapping[str, Any], name: str, default: int) -> int:
  value = values.get(name)
  if value is None:
    return default
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f"{name} must be an integer, got {value!r}")
  return value


def _float(values: Mapping[str, Any], name: str, default: float) -> float:
  value = values.get(name)
  if value is None:
    return default
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f"{name} must be a number, got {value!r}")
  return value
