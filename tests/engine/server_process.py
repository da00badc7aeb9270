"""The engine's server as a process, and calls to it over HTTP."""

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

IDS = [1, 75, 76, 77, 198, 80, 81, 82, 83, 84]
_SHAPES = {"max_running_requests": 16, "context_length": 320,
           "prefill_rows": 4, "chunked-prefill-size": 16, "decode-steps": 4}


def launch(folder, *flags):
  """Starts a server of small shapes."""
  shapes = [f"--{name}={value}" for name, value in _SHAPES.items()]
  return subprocess.Popen(
      [sys.executable, "-m", "rstar2_jax.engine", f"--model_path={folder}",
       *shapes, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      text=True)


@contextlib.contextmanager
def running(folder, *flags):
  """(process, url) of a server that is ready; killed at the end."""
  process = launch(folder, "--port=0", *flags)
  try:
    line = process.stdout.readline()
    match = re.search(r"ready at (http://127\.0\.0\.1:\d+)", line)
    assert match, (line, process.stderr.read())
    yield process, match[1]
  finally:
    process.kill()
    process.communicate()


def call(url, path, body=None, method=None):
  """(status, parsed body or text)."""
  request = urllib.request.Request(
      url + path, None if body is None else json.dumps(body).encode(),
      {"Content-Type": "application/json"}, method=method)
  try:
    with urllib.request.urlopen(request, timeout=60) as response:
      status, text = response.status, response.read().decode()
  except urllib.error.HTTPError as e:
    status, text = e.code, e.read().decode()
  try:
    return status, json.loads(text)
  except ValueError:
    return status, text


def generate(url, **body):
  """The answer of /generate to a short request."""
  params = {"max_new_tokens": 6, "ignore_eos": True, "sampling_seed": 3}
  params |= body.pop("params", {})
  if "text" not in body:
    body = {"input_ids": IDS} | body
  status, answer = call(url, "/generate", body | {"sampling_params": params})
  assert status == 200, answer
  return answer


def load_of(url):
  """What /v1/loads says."""
  return call(url, "/v1/loads")[1]["loads"][0]


def until(condition, timeout_s=20.0):
  """Waits for a condition; fails if it does not come."""
  end = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < end, "did not happen in time"
    time.sleep(0.01)
