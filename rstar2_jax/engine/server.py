"""The engine over HTTP, with the routes of an SGLang server that we use.

Handlers never block the event loop: they await futures of the engine's thread.
A client that goes away cancels its handler, which ends its requests.
"""

import asyncio
from collections.abc import AsyncIterator
import copy
import dataclasses
import json
import time
from typing import Any

from aiohttp import web

from rstar2_jax import types
from rstar2_jax.engine import engine as engine_lib
from rstar2_jax.engine import protocol
from rstar2_jax.engine import requests
from rstar2_jax.engine import status
from rstar2_jax.engine import text as text_lib
from rstar2_jax.policy import hf_weights

_MAX_BODY_BYTES = 1 << 28
_HEALTH_TIMEOUT_S = 20.0
_MODES = ("abort", "retract", "in_place")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What the server says about itself and does not read from the engine."""

  model_path: str
  random_seed: int = 0
  host: str = "127.0.0.1"
  port: int = 30000


class Server:
  """Handlers of one engine; owns neither engine nor sockets."""

  def __init__(
      self, engine: engine_lib.Engine, text: text_lib.Text | None,
      settings: Settings,
  ):
    self._engine = engine
    self._text = text
    self._reader = protocol.Reader(text, settings.random_seed)
    self._status = status.Status(engine, settings)
    self._updating = asyncio.Lock()

  def make_app(self) -> web.Application:
    """The aiohttp application."""
    app = web.Application(
        middlewares=[_errors], client_max_size=_MAX_BODY_BYTES)
    for path, handler in (
        ("/generate", self._generate),
        ("/flush_cache", self._flush_cache),
        ("/abort_request", self._abort_request),
        ("/pause_generation", self._pause_generation),
        ("/continue_generation", self._continue_generation),
        ("/update_weights_from_disk", self._update_weights_from_disk)):
      app.router.add_post(path, handler)
    for path, handler in (
        ("/health", self._health),
        ("/health_generate", self._health_generate),
        ("/flush_cache", self._flush_cache),
        ("/model_info", self._json(self._status.model_info)),
        ("/get_model_info", self._json(self._status.model_info)),
        ("/server_info", self._json(self._status.server_info)),
        ("/get_server_info", self._json(self._status.server_info)),
        ("/v1/loads", self._json(self._status.loads)),
        ("/metrics", self._metrics)):
      app.router.add_get(path, handler)
    return app

  async def _generate(self, request: web.Request) -> web.StreamResponse:
    body = self._reader.read(await _read_json(request))
    if body.stream:
      return await self._stream(request, body)
    tasks = [asyncio.ensure_future(self._run(i)) for i in body.items]
    try:
      answers = await asyncio.gather(*tasks)
    finally:
      for task in tasks:  # of a batch in which one was refused
        task.cancel()
    return web.json_response(answers if body.is_list else answers[0])

  async def _run(self, item: protocol.Item) -> dict[str, Any]:
    return self._answer(
        item, await self._engine.run(item.sample, item.extras))

  def _answer(
      self, item: protocol.Item, done: requests.Request
  ) -> dict[str, Any]:
    return protocol.answer(
        item, done, text=self._text,
        weight_version=self._engine.weight_version)

  async def _stream(
      self, request: web.Request, body: protocol.Body
  ) -> web.StreamResponse:
    # What is refused is refused with a status, before anything is sent.
    for item in body.items:
      self._engine.check(item.sample, item.extras)
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async for event in self._events(body):
      await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response

  async def _events(
      self, body: protocol.Body
  ) -> AsyncIterator[dict[str, Any]]:
    """Answers of all items as they grow, the last of each finished."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[tuple[int, requests.Request | Exception]] = (
        asyncio.Queue())

    def report(index: int, progressed: requests.Request) -> None:
      """In the engine's thread: copies what will change."""
      snapshot = copy.copy(progressed)
      for name in ("output_ids", "logprobs", "top_logprobs",
                   "chosen_logprobs", "versions"):
        setattr(snapshot, name, list(getattr(progressed, name)))
      loop.call_soon_threadsafe(events.put_nowait, (index, snapshot))

    async def run(index: int, item: protocol.Item) -> None:
      try:
        done = await self._engine.run(
            item.sample, item.extras, lambda r: report(index, r))
      except (ValueError, RuntimeError) as e:
        events.put_nowait((index, e))
      else:
        events.put_nowait((index, done))

    tasks = [asyncio.create_task(run(i, item))
             for i, item in enumerate(body.items)]
    num_left = len(tasks)
    try:
      while num_left:
        index, event = await events.get()
        if isinstance(event, Exception):
          num_left -= 1
          yield {"error": {"message": str(event)}}
          continue
        num_left -= event.finish_reason is not None
        result = self._answer(body.items[index], event)
        yield result | {"index": index} if body.is_list else result
    finally:
      for task in tasks:
        task.cancel()

  async def _health(self, _: web.Request) -> web.Response:
    is_up = self._engine.is_healthy and not self._engine.is_paused
    return web.Response(status=200 if is_up else 503)

  async def _health_generate(self, _: web.Request) -> web.Response:
    if not self._engine.is_healthy or self._engine.is_paused:
      return web.Response(status=503)
    try:
      async with asyncio.timeout(_HEALTH_TIMEOUT_S):
        await self._engine.generate(types.SampleRequest(
            rid=f"HEALTH_CHECK_{time.time()}", input_ids=[0],
            max_new_tokens=1))
    except (TimeoutError, RuntimeError):
      return web.Response(status=503)
    return web.Response()

  async def _flush_cache(self, _: web.Request) -> web.Response:
    if await asyncio.wrap_future(self._engine.flush_cache()):
      return web.Response(text="Cache flushed.\n")
    return web.Response(
        status=400, text="Flush cache failed: there are requests.\n")

  async def _abort_request(self, request: web.Request) -> web.Response:
    body = await _read_json(request)
    rids = body.get("rid") or ""
    for rid in rids if isinstance(rids, list) else [rids]:
      self._engine.abort(str(rid), abort_all=bool(body.get("abort_all")))
    return web.Response()

  async def _pause_generation(self, request: web.Request) -> web.Response:
    mode = (await _read_json(request)).get("mode", "abort")
    if mode not in _MODES:
      raise ValueError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
    await asyncio.wrap_future(self._engine.pause(mode))
    return web.json_response(
        {"message": "Generation paused successfully.", "status": "ok"})

  async def _continue_generation(self, _: web.Request) -> web.Response:
    await asyncio.wrap_future(self._engine.resume())
    return web.json_response(
        {"message": "Generation continued successfully.", "status": "ok"})

  async def _update_weights_from_disk(
      self, request: web.Request
  ) -> web.Response:
    body = await _read_json(request)
    version = body.get("weight_version")
    try:
      async with self._updating:
        await self._update(
            str(body.get("model_path")),
            self._engine.weight_version if version is None else str(version),
            mode="abort" if body.get("abort_all_requests") else "wait",
            flush=bool(body.get("flush_cache", True)))
    except ValueError as e:
      return web.json_response(
          {"success": False, "message": str(e), "num_paused_requests": 0},
          status=400)
    message = "Succeeded to update model weights."
    if version is not None:
      message += f" Weight version updated to {version}."
    return web.json_response(
        {"success": True, "message": message, "num_paused_requests": 0})

  async def _update(
      self, path: str, version: str, *, mode: engine_lib.Mode, flush: bool
  ) -> None:
    config = self._engine.model_config
    found, params = await asyncio.to_thread(
        hf_weights.load, path, dtype=config.dtype)
    found = dataclasses.replace(
        found, max_position_embeddings=config.max_position_embeddings)
    if found != dataclasses.replace(config, remat=False):
      raise ValueError(f"{path}: config.json is of another architecture than"
                       " the model in use")
    await asyncio.wrap_future(self._engine.replace_params(
        params, version, mode=mode, flush=flush))
    self._status.model_path = path

  async def _metrics(self, _: web.Request) -> web.Response:
    return web.Response(text=self._status.metrics())

  def _json(self, describe):
    async def handle(_: web.Request) -> web.Response:
      return web.json_response(describe())
    return handle


@web.middleware
async def _errors(request: web.Request, handler) -> web.StreamResponse:
  """Errors in SGLang's shape."""
  try:
    return await handler(request)
  except web.HTTPException as e:
    return web.json_response({"detail": e.reason}, status=e.status)
  except ValueError as e:
    return web.json_response({"error": {"message": str(e)}}, status=400)
  except RuntimeError as e:  # the engine is closed or has failed
    return web.json_response({"error": {"message": str(e)}}, status=503)


async def _read_json(request: web.Request) -> dict[str, Any]:
  text = await request.text()
  try:
    body = json.loads(text) if text else {}
  except ValueError as e:
    raise ValueError(f"the body is not JSON: {e}") from None
  if not isinstance(body, dict):
    raise ValueError("the body must be a JSON object")
  return body
