"""Asks a rollout server for one turn: in this process or over SGLang's HTTP.

Failures to reach a server are retried a few times, then raised as
ConnectionError; an answer that is an error is a ServerError and is not
retried, since the same request would be refused again.
"""

import asyncio
from collections.abc import Mapping, Sequence
import json
import random
from typing import Any, NamedTuple, Protocol

import aiohttp

from rstar2_jax import types

_MAX_TRIES = 3
_FIRST_BACKOFF_S = 0.1


class ServerError(Exception):
  """A rollout server refused a request, or answered what cannot be read.

  Attributes:
    status: HTTP status; 200 where the body was at fault.
  """

  def __init__(self, message: str, status: int):
    super().__init__(message)
    self.status = status


class TopLogprobs(NamedTuple):
  """About one id of a sequence [nats]."""

  logprob: float  # of the id itself
  top: tuple[float, ...]  # of the likeliest ids, in falling order


class SamplerClient(Protocol):
  """Samples turns on one rollout server."""

  async def generate(self, request: types.SampleRequest) -> types.SampleResult:
    """Samples one turn.

    Raises:
      ConnectionError: the server cannot be reached, or closed half-way.
      TimeoutError: no answer in time.
      ServerError: the server refused the request.
    """

  async def abort(self, rid: str) -> None:
    """Ends requests whose id starts with `rid`; they return what they have."""

  async def close(self) -> None:
    """Closes connections, not the server."""


class InProcessClient:
  """A SamplerClient of an engine in this process."""

  def __init__(self, engine: Any):
    """Takes an engine.engine.Engine; does not own it."""
    self._engine = engine

  async def generate(self, request: types.SampleRequest) -> types.SampleResult:
    """See SamplerClient."""
    try:
      return await self._engine.generate(request)
    except ValueError as e:
      raise ServerError(str(e), 400) from e
    except RuntimeError as e:
      raise ConnectionError(str(e)) from e

  async def abort(self, rid: str) -> None:
    """See SamplerClient."""
    self._engine.abort(rid)

  async def close(self) -> None:
    """See SamplerClient."""


class HttpClient:
  """A SamplerClient of a server that speaks SGLang's API."""

  def __init__(self, url: str, *, timeout_s: float):
    """Connects on first use.

    Args:
      url: e.g. "http://127.0.0.1:30000".
      timeout_s: deadline of one request, retries included [s].
    """
    self.url = url.rstrip("/")
    self._timeout_s = timeout_s
    self._session: aiohttp.ClientSession | None = None
    self.num_retries = 0

  async def generate(self, request: types.SampleRequest) -> types.SampleResult:
    """See SamplerClient."""
    body = await self._post("/generate", request_json(request))
    return read_result(body, self.url)

  async def score(
      self, token_ids: Sequence[int], *, num_top: int
  ) -> list[TopLogprobs]:
    """What the server thinks of each id given those before, at temperature 1.

    Args:
      token_ids: n ids, one fewer than the server's longest sequence.
      num_top: likeliest ids asked for at each place.

    Returns:
      n - 1 items, the first about the second id.

    Raises:
      ConnectionError, TimeoutError, ServerError: see SamplerClient.
    """
    body = await self._post("/generate", {
        "input_ids": [int(i) for i in token_ids],
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True, "logprob_start_len": 0,
        "top_logprobs_num": num_top})
    try:
      meta = body["meta_info"]
      scored = zip(meta["input_token_logprobs"][1:],
                   meta["input_top_logprobs"][1:], strict=True)
      found = [TopLogprobs(float(own[0]), tuple(float(x[0]) for x in top))
               for own, top in scored]
    except (KeyError, TypeError, ValueError, IndexError) as e:
      raise ServerError(
          f"rollout server {self.url}: /generate answered what SGLang would"
          f" not ({type(e).__name__}: {e})", 200) from e
    if len(found) != len(token_ids) - 1:
      raise ServerError(
          f"rollout server {self.url}: {len(token_ids)} ids were to be scored,"
          f" {len(found) + 1} were", 200)
    return found

  async def abort(self, rid: str) -> None:
    """See SamplerClient."""
    await self._post("/abort_request", {"rid": rid})

  async def close(self) -> None:
    """See SamplerClient."""
    if self._session is not None:
      await self._session.close()
      self._session = None

  async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
    """Posts within the deadline; tries again where no answer came.

    A second try cannot change what is sampled: the seed is in the request. A
    reader that gave up leaves no work behind: servers drop requests whose
    connection has closed.
    """
    try:
      async with asyncio.timeout(self._timeout_s):
        for attempt in range(_MAX_TRIES):
          try:
            return await self._post_once(path, body)
          except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError,
                  ConnectionError) as e:
            if attempt + 1 == _MAX_TRIES:
              raise ConnectionError(
                  f"rollout server {self.url} does not answer ({e})") from e
          self.num_retries += 1
          await asyncio.sleep(
              _FIRST_BACKOFF_S * 2**attempt * (0.5 + random.random()))
    except TimeoutError as e:
      raise TimeoutError(f"rollout server {self.url} did not answer {path}"
                         f" within {self._timeout_s} s") from e

  async def _post_once(self, path: str, body: Mapping[str, Any]) -> Any:
    if self._session is None:
      self._session = aiohttp.ClientSession(
          connector=aiohttp.TCPConnector(limit=0),
          timeout=aiohttp.ClientTimeout(total=None))
    async with self._session.post(self.url + path, json=body) as response:
      text = await response.text()
      if response.status >= 500:  # starting, shutting down, or broken
        raise ConnectionError(f"status {response.status} {_message(text)}")
      if response.status != 200:
        raise ServerError(
            f"rollout server {self.url}{path}: status {response.status}:"
            f" {_message(text)}", response.status)
      return _parse(text) if text else None


def request_json(request: types.SampleRequest) -> dict[str, Any]:
  """The body of SGLang's /generate for a request."""
  return {
      "rid": request.rid,
      "input_ids": [int(i) for i in request.input_ids],
      "sampling_params": {
          "temperature": request.temperature,
          "top_p": request.top_p,
          "top_k": request.top_k,
          "max_new_tokens": request.max_new_tokens,
          "stop_token_ids": list(request.stop_token_ids),
          "sampling_seed": request.seed,
          # The policy's own end ids are among stop_token_ids, and the text is
          # never read: ids go in and ids come out.
          "skip_special_tokens": False,
      },
      "return_logprob": True,
      "logprob_start_len": -1,
  }


def read_result(body: Any, url: str) -> types.SampleResult:
  """Reads SGLang's answer.

  Raises:
    ServerError: a field is missing, or ids and logprobs do not match.
  """
  try:
    meta = body["meta_info"]
    output_ids = tuple(int(i) for i in body["output_ids"])
    pairs = meta.get("output_token_logprobs") or []
    result = types.SampleResult(
        output_ids=output_ids,
        logprobs=tuple(float(pair[0]) for pair in pairs),
        finish_reason=meta["finish_reason"]["type"],
        policy_version=_version_number(meta.get("weight_version", "")),
        cached_tokens=int(meta.get("cached_tokens") or 0))
  except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
    raise ServerError(
        f"rollout server {url}: /generate answered what SGLang would not"
        f" ({type(e).__name__}: {e})", 200) from e
  if tuple(int(pair[1]) for pair in pairs) != output_ids:
    raise ServerError(
        f"rollout server {url}: {len(output_ids)} ids but logprobs of"
        f" {len(pairs)} others; is it an SGLang server?", 200)
  return result


def _version_number(version: str) -> int:
  return int(version) if str(version).isdecimal() else -1


def _parse(text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError:
    return text


def _message(text: str) -> str:
  """The message of SGLang's error body, or the body's beginning."""
  body = _parse(text)
  if isinstance(body, dict):
    error = body.get("error", body)
    if isinstance(error, dict) and "message" in error:
      return str(error["message"])
  return text[:300]
