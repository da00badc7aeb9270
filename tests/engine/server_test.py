"""A real server process, spoken to over HTTP."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import jax
import pytest

from rstar2_jax import config
from rstar2_jax import types
from rstar2_jax.chat import vocabulary
from rstar2_jax.engine import engine as engine_lib
from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model
from rstar2_jax.rollout import sampler_client
from tests.engine import server_process

_IDS = server_process.IDS
running, until = server_process.running, server_process.until
call, generate = server_process.call, server_process.generate
load_of = server_process.load_of



@pytest.fixture(scope="module")
def tokenizer():
  return vocabulary.build(512)


@pytest.fixture(scope="module")
def model_config(tokenizer):
  return model.ModelConfig(
      vocab_size=tokenizer.vocab_size, hidden_size=64, intermediate_size=96,
      num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)


@pytest.fixture(scope="module")
def save(tmp_path_factory, tokenizer, model_config):
  """Writes the folder of a random policy by its seed."""
  def save(seed, cfg=model_config):
    folder = tmp_path_factory.mktemp("policy") / f"seed{seed}"
    params = jax.tree.map(
        lambda x: x * 4 if x.ndim > 2 else x, model.init(cfg, seed))
    hf_weights.save(folder, cfg, params, tokenizer=tokenizer)
    return folder
  return save


@pytest.fixture(scope="module")
def folder(save):
  return save(0)


@pytest.fixture(scope="module")
def url(folder):
  with running(folder) as (_, url):
    yield url


@pytest.fixture(scope="module")
def engine(folder):
  """The same policy in this process."""
  model_config, params = hf_weights.load(folder)
  engine = engine_lib.Engine(params, model_config, config.EngineConfig(
      num_slots=16, max_seq_len=320, prefill_rows=4, prefill_chunk=16,
      decode_steps=4))
  with contextlib.closing(engine):
    yield engine


def test_clients_give_equal_tokens_and_logprobs(engine, url, tokenizer):
  requests = [
      types.SampleRequest(
          rid=f"{i:04d}", input_ids=[(7 * i + t) % 400 for t in range(3 + i)],
          max_new_tokens=10 + i, seed=i, temperature=(0.6, 1.0, 1.3)[i % 3],
          top_k=-1 if i % 4 else 20, stop_token_ids=tokenizer.stop_ids)
      for i in range(30)]

  async def sample(client):
    try:
      return await asyncio.gather(*map(client.generate, requests))
    finally:
      await client.close()

  over_http = asyncio.run(
      sample(sampler_client.HttpClient(url, timeout_s=60)))
  here = asyncio.run(sample(sampler_client.InProcessClient(engine)))
  for a, b in zip(over_http, here, strict=True):
    assert a.policy_version == -1  # "default" is no number
    assert a.output_ids == b.output_ids and a.logprobs == b.logprobs
    assert a.finish_reason == b.finish_reason


def test_clients_refuse_alike(engine, url):
  request = types.SampleRequest(rid="a", input_ids=[100_000], max_new_tokens=1)
  for client in (sampler_client.HttpClient(url, timeout_s=60),
                 sampler_client.InProcessClient(engine)):
    async def run(client=client):
      try:
        await client.generate(request)
      finally:
        await client.close()
    with pytest.raises(sampler_client.ServerError, match="100000") as caught:
      asyncio.run(run())
    assert caught.value.status == 400


class TestGenerate:
  """Shapes of /generate, as recorded from SGLang."""

  def test_logprobs(self, url):
    answer = generate(url, return_logprob=True, logprob_start_len=0,
                      top_logprobs_num=2, token_ids_logprob=[5, 6],
                      rid="abc")
    assert answer.keys() == {"text", "output_ids", "meta_info"}
    meta, ids = answer["meta_info"], answer["output_ids"]
    assert meta["id"] == "abc"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (10, 6)
    assert meta["weight_versions"] == [
        {"version": "default", "start": 0, "end": 6}]
    assert meta["input_token_logprobs"][0] == [None, 1, None]
    assert [x[1] for x in meta["input_token_logprobs"]] == _IDS
    assert [x[1] for x in meta["output_token_logprobs"]] == ids
    assert meta["output_token_logprobs_length"] == 6
    for name, num in (("input_top_logprobs", 10), ("output_top_logprobs", 6),
                      ("input_token_ids_logprobs", 10),
                      ("output_token_ids_logprobs", 6)):
      assert len(meta[name]) == num
      assert len(meta[name][-1]) == 2 and len(meta[name][-1][0]) == 3
    best = meta["output_top_logprobs"][0]
    assert best[0][0] >= best[1][0]

  def test_output_logprobs_alone(self, url):
    meta = generate(url, return_logprob=True)["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert len(meta["output_token_logprobs"]) == 6
    assert "output_token_logprobs" not in generate(url)["meta_info"]

  def test_seed(self, url):
    first, again = generate(url), generate(url)
    assert first["output_ids"] == again["output_ids"]
    assert again["meta_info"]["cached_tokens"] == 9
    other = generate(url, params={"sampling_seed": 4})
    assert other["output_ids"] != first["output_ids"]
    unseeded = [generate(url, params={"sampling_seed": None})["output_ids"]
                for _ in range(2)]
    assert unseeded[0] != unseeded[1]

  def test_text(self, url, tokenizer):
    answer = generate(url, text="the quick brown")
    num_ids = len(tokenizer.encode("the quick brown"))
    assert answer["meta_info"]["prompt_tokens"] == num_ids
    assert isinstance(answer["text"], str)

  def test_lists(self, url):
    answer = generate(url, input_ids=[_IDS, _IDS[:5]], rid=["b-0", "b-1"])
    assert [a["meta_info"]["id"] for a in answer] == ["b-0", "b-1"]
    assert [a["meta_info"]["prompt_tokens"] for a in answer] == [10, 5]
    status, answer = call(url, "/generate", {
        "input_ids": [_IDS, _IDS[:5]],
        "sampling_params": [{"max_new_tokens": 6, "ignore_eos": True},
                            {"max_new_tokens": 2, "ignore_eos": True}]})
    assert status == 200
    assert [len(a["output_ids"]) for a in answer] == [6, 2]

  def test_several_samples(self, url):
    answer = generate(url, params={"n": 3})
    assert len({tuple(a["output_ids"]) for a in answer}) == 3

  def test_stop_id(self, url):
    ids = generate(url)["output_ids"]
    answer = generate(url, params={
        "ignore_eos": False, "stop_token_ids": [ids[2]]})
    assert answer["output_ids"] == ids[:ids.index(ids[2]) + 1]
    assert answer["meta_info"]["finish_reason"] == {
        "type": "stop", "matched": ids[2]}
    ignored = generate(url, params={"stop_token_ids": [ids[2]]})
    assert ignored["output_ids"] == ids

  @pytest.mark.parametrize("no_stop_trim", [False, True])
  def test_stop_string(self, url, tokenizer, no_stop_trim):
    ids = generate(url, params={"max_new_tokens": 40})["output_ids"]
    place, stop = next(
        (t, text) for t in range(9, 40)
        if (text := tokenizer.decode(ids[t:t + 1])).isascii()
        and text.isprintable() and len(text) > 1
        and text not in tokenizer.decode(ids[:t]))
    answer = generate(url, return_logprob=True, params={
        "max_new_tokens": 40, "stop": [stop], "no_stop_trim": no_stop_trim})
    assert answer["output_ids"] == ids[:place + 1]
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(meta["output_token_logprobs"]) == place + 1
    assert answer["text"].endswith(stop) == no_stop_trim

  def test_stream(self, url):
    whole = generate(url, return_logprob=True, params={"max_new_tokens": 15})
    request = urllib.request.Request(
        url + "/generate", json.dumps({
            "input_ids": _IDS, "stream": True, "return_logprob": True,
            "sampling_params": {"max_new_tokens": 15, "ignore_eos": True,
                                "sampling_seed": 3}}).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
      assert response.headers["Content-Type"] == "text/event-stream"
      lines = [line.decode().strip() for line in response if line.strip()]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert len(events) >= 3
    for event in events:  # each holds all so far
      n = len(event["output_ids"])
      assert event["output_ids"] == whole["output_ids"][:n]
      assert len(event["meta_info"]["output_token_logprobs"]) == n
    reasons = [e["meta_info"]["finish_reason"] for e in events]
    assert reasons[-1] == {"type": "length", "length": 15}
    assert set(map(str, reasons[:-1])) == {"None"}

  @pytest.mark.parametrize("body, message", [
      ({}, "Either text or input_ids"),
      ({"input_ids": []}, "input_ids is empty"),
      ({"input_ids": ["a"]}, "list of integers"),
      ({"input_ids": [10**12]}, "list of integers"),
      ({"input_ids": [100_000]}, "outside the vocabulary"),
      ({"input_ids": [5] * 400}, "maximum sequence length"),
      ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid has 1 entries"),
      ({"input_ids": [1], "sampling_params": {"temperature": -1}},
       "temperature must be a non-negative finite number, got -1."),
      ({"input_ids": [1], "sampling_params": {"max_new_tokens": "x"}},
       "max_new_tokens must be an integer"),
      ({"input_ids": [1], "sampling_params": {"stop_token_ids": ["x"]}},
       "stop_token_ids must be a list of integers"),
      ({"input_ids": [1], "sampling_params": 5}, "must be an object"),
      ({"input_ids": [1], "stream": True, "sampling_params": {"top_p": 0}},
       "top_p must be"),
      ([1], "must be a JSON object"),
  ])
  def test_refusals(self, url, body, message):
    status, answer = call(url, "/generate", body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert call(url, "/health")[0] == 200


def test_info_routes(url, folder):
  for path in ("/model_info", "/get_model_info"):
    info = call(url, path)[1]
    assert info["model_path"] == str(folder)
    assert info["weight_version"] == "default"
    assert info["architectures"] == ["Qwen3ForCausalLM"]
  for path in ("/server_info", "/get_server_info"):
    info = call(url, path)[1]
    assert info["max_total_num_tokens"] == 16 * 320
    assert info["context_length"] == 320
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 5120
  assert load_of(url)["max_running_requests"] == 16
  assert re.search(r'^sglang:num_running_reqs\{model_name=".*"\} \d+$',
                   call(url, "/metrics")[1], re.MULTILINE)
  assert call(url, "/health")[0] == call(url, "/health_generate")[0] == 200
  assert call(url, "/nothing") == (404, {"detail": "Not Found"})


def test_flush_cache(url):
  generate(url)
  assert generate(url)["meta_info"]["cached_tokens"] == 9
  for method in ("GET", "POST"):
    status, text = call(url, "/flush_cache", method=method)
    assert status == 200 and text.startswith("Cache flushed")
  assert generate(url)["meta_info"]["cached_tokens"] == 0


def test_abort(url):
  long = {"max_new_tokens": 300}
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answers = [pool.submit(generate, url, rid=rid, params=long)
               for rid in ("ab0", "ab1", "b00")]
    until(lambda: load_of(url)["num_running_reqs"] == 3)
    assert call(url, "/abort_request", {"rid": "ab"})[0] == 200
    reasons = [a.result()["meta_info"]["finish_reason"] for a in answers]
  assert reasons[0] == reasons[1] == {
      "type": "abort", "message": "Aborted", "status_code": None,
      "err_type": None}
  assert reasons[2]["type"] == "length"
  assert call(url, "/abort_request", {"rid": "unknown"})[0] == 200


def test_client_that_leaves_stops_sampling(url):
  before = call(url, "/metrics")[1]
  for stream in (False, True):
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/generate", json.dumps({
        "input_ids": _IDS, "stream": stream, "sampling_params": {
            "max_new_tokens": 309, "ignore_eos": True}}))
    until(lambda: load_of(url)["num_running_reqs"] == 1)
    connection.close()
    until(lambda: load_of(url)["num_running_reqs"] == 0)
  name = r"sglang:num_aborted_requests_total\{.*\} (\d+)"
  num_before, num_after = (
      int(re.search(name, text)[1])
      for text in (before, call(url, "/metrics")[1]))
  assert num_after == num_before + 2


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_pause_and_continue(url, mode):
  whole = generate(url, params={"max_new_tokens": 300})
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answer = pool.submit(generate, url, params={"max_new_tokens": 300})
    until(lambda: load_of(url)["num_running_reqs"] == 1)
    status, body = call(url, "/pause_generation", {"mode": mode})
    assert (status, body["status"]) == (200, "ok")
    assert call(url, "/health")[0] == 503
    if mode != "abort":
      assert call(url, "/flush_cache", method="POST")[0] == 400
      assert not answer.done()
    assert call(url, "/continue_generation", {})[0] == 200
    result = answer.result()
  n = len(result["output_ids"])
  assert result["output_ids"] == whole["output_ids"][:n]
  reason = result["meta_info"]["finish_reason"]["type"]
  assert reason == ("abort" if mode == "abort" else "length")
  assert call(url, "/pause_generation", {"mode": "x"})[0] == 400


def test_update_weights_from_disk(save, folder, model_config):
  other, narrow = save(1), save(2, dataclasses.replace(
      model_config, intermediate_size=64))
  with running(folder) as (_, url), running(other) as (_, other_url):
    before, expected = generate(url), generate(other_url)
    status, body = call(url, "/update_weights_from_disk", {
        "model_path": str(other), "weight_version": "7"})
    assert (status, body["success"]) == (200, True)
    assert body["message"].endswith("Weight version updated to 7.")
    after = generate(url)
    assert before["output_ids"] != after["output_ids"]
    assert after["output_ids"] == expected["output_ids"]
    assert after["meta_info"]["cached_tokens"] == 0
    assert after["meta_info"]["weight_version"] == "7"
    info = call(url, "/model_info")[1]
    assert (info["weight_version"], info["model_path"]) == ("7", str(other))
    for bad, message in ((narrow, "another architecture"),
                         (folder / "none", "no such file")):
      status, body = call(url, "/update_weights_from_disk",
                          {"model_path": str(bad), "weight_version": "8"})
      assert (status, body["success"]) == (400, False)
      assert message in body["message"]
    assert generate(url)["output_ids"] == expected["output_ids"]


class TestStart:
  """What the command says where it cannot serve, and how it ends."""

  def fails(self, *flags):
    process = subprocess.run(
        [sys.executable, "-m", "rstar2_jax.engine", *flags],
        capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 2
    assert process.stdout == ""
    assert len(process.stderr.splitlines()) == 1, process.stderr
    return process.stderr

  def test_port_in_use(self, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
      port = taken.getsockname()[1]
      message = self.fails(f"--model_path={folder}", f"--port={port}")
    assert f"127.0.0.1:{port}" in message and "--port" in message

  def test_bad_folder(self, tmp_path):
    message = self.fails(f"--model-path={tmp_path}", "--port=0")
    assert str(tmp_path) in message and "config.json" in message

  def test_bad_flag(self):
    assert "--model_path" in self.fails("--port=0")

  def test_sigterm_ends_it_at_once(self, folder):
    with running(folder) as (process, url):
      with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(call, url, "/generate", {
            "input_ids": _IDS, "sampling_params": {"max_new_tokens": 300}})
        until(lambda: load_of(url)["num_running_reqs"] == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
        with contextlib.suppress(OSError, http.client.HTTPException):
          assert answer.result()[0] == 503
