"""A rollout server: `python -m rstar2_jax.engine --model_path=DIR`.

Flags have SGLang's names where SGLang has them, with dashes or underscores.
"""

import argparse
import asyncio
import contextlib
import signal
import socket
import sys

from aiohttp import web
import jax

from rstar2_jax import config
from rstar2_jax.engine import engine as engine_lib
from rstar2_jax.engine import server
from rstar2_jax.engine import text as text_lib
from rstar2_jax.policy import hf_weights


class _Parser(argparse.ArgumentParser):

  def error(self, message: str):
    sys.exit(_say(f"{message}; --help lists the flags"))


def main(argv: list[str]) -> int:
  """Serves until SIGTERM or SIGINT; 2 where it cannot start."""
  args = _parse(argv)
  try:
    listener = _bind(args.host, args.port)
  except OSError as e:
    return _say(f"cannot listen on {args.host}:{args.port}:"
                f" {e.strerror or e}; choose another --port")
  with contextlib.closing(listener):
    try:
      engine, text = _open(args)
    except (ValueError, OSError) as e:
      return _say(str(e))
    with contextlib.closing(engine):
      asyncio.run(_serve(engine, text, args, listener))
  return 0


def _parse(argv: list[str]) -> argparse.Namespace:
  shapes = config.EngineConfig()
  parser = _Parser(prog="python -m rstar2_jax.engine", description=__doc__,
                   formatter_class=argparse.RawDescriptionHelpFormatter)
  def add(name, kind, default, text, **values):
    spellings = {f"--{name}", f"--{name.replace('_', '-')}"}
    parser.add_argument(*sorted(spellings, reverse=True), dest=name, type=kind,
                        default=default, help=text, **values)
  add("model_path", str, None, "Hugging Face folder: config.json,"
      " *.safetensors, tokenizer.json if text is sent", required=True)
  add("host", str, "127.0.0.1", "address to listen on")
  add("port", int, 30000, "port; 0: any free one")
  add("dtype", str, "float32", "compute dtype",
      choices=["auto", "float32", "bfloat16"])
  add("context_length", int, None, "longest prompt and response [tokens];"
      " default: what config.json says")
  add("max_running_requests", int, shapes.num_slots, "sequences at once")
  add("chunked_prefill_size", int, shapes.prefill_chunk,
      "prompt tokens of a sequence per dispatch")
  add("prefill_rows", int, shapes.prefill_rows,
      "sequences prefilled per dispatch")
  add("decode_steps", int, shapes.decode_steps, "decode steps per dispatch")
  add("random_seed", int, 0, "seed of requests that bring none")
  add("weight_version", str, "default", "name of the first weights")
  args = parser.parse_args(argv)
  if not 0 <= args.port <= 65535:
    parser.error(f"--port={args.port}: must be from 0 to 65535")
  return args


def _bind(host: str, port: int) -> socket.socket:
  """A bound socket; it listens once the model is there."""
  listener = socket.socket()
  # A port in use is noticed now, not after the model has been read; so is one
  # of a server that starts meanwhile.
  if port:
    with socket.socket() as probe:
      probe.settimeout(1)
      if probe.connect_ex((host, port)) == 0:
        raise OSError(0, "the port is in use")
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  listener.bind((host, port))
  return listener


def _open(
    args: argparse.Namespace,
) -> tuple[engine_lib.Engine, text_lib.Text | None]:
  """Raises ValueError where the folder is of no use."""
  dtype = "float32" if args.dtype == "auto" else args.dtype
  model_config, params = hf_weights.load(args.model_path, dtype=dtype)
  try:
    text = text_lib.Text(args.model_path)
  except ValueError as e:
    text = None
    print(f"no text, ids only ({e})", file=sys.stderr, flush=True)
  shapes = config.EngineConfig(
      num_slots=args.max_running_requests,
      max_seq_len=args.context_length or model_config.max_position_embeddings,
      prefill_rows=args.prefill_rows, prefill_chunk=args.chunked_prefill_size,
      decode_steps=args.decode_steps)
  num_ids = model_config.vocab_size
  if text is not None:
    num_ids = min(num_ids, text.num_ids)
  return engine_lib.Engine(
      params, model_config, shapes, policy_version=args.weight_version,
      num_ids=num_ids), text


async def _serve(
    engine: engine_lib.Engine, text: text_lib.Text | None,
    args: argparse.Namespace, listener: socket.socket,
) -> None:
  host, port = listener.getsockname()[:2]
  settings = server.Settings(
      model_path=args.model_path, random_seed=args.random_seed, host=host,
      port=port)
  runner = web.AppRunner(
      server.Server(engine, text, settings).make_app(),
      handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
  await runner.setup()
  stopped = asyncio.Event()
  loop = asyncio.get_running_loop()
  for number in (signal.SIGTERM, signal.SIGINT):
    loop.add_signal_handler(number, stopped.set)
  try:
    await web.SockSite(runner, listener).start()
    print(f"rstar2_jax.engine ready at http://{host}:{port} ({args.model_path}"
          f" on {jax.devices()[0].platform})", flush=True)
    await stopped.wait()
  finally:
    await runner.cleanup()


def _say(message: str) -> int:
  """One line for people; the exit code of what a user can mend."""
  print(f"error: {message}", file=sys.stderr, flush=True)
  return 2


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
