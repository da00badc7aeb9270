"""Experiments at a size that takes seconds, as processes of their own.

SFT on six short conversations, half of them wrong, makes a policy that answers
one of three problems right about every second time. So groups have signal, the
tool is called, and a step takes less than a tenth of a second.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from rstar2_jax.chat import template
from tests.sandbox_runner import servers

ROOT = pathlib.Path(__file__).resolve().parents[2]
_ANSWERS = {f"What is {a} + {a}?": 2 * a for a in (2, 3, 4)}
_FLAGS = """
--policy.num_layers=1
--policy.hidden_size=32
--policy.num_heads=2
--policy.num_kv_heads=1
--policy.head_dim=16
--policy.intermediate_size=48
--sft.num_demonstrations=96
--sft.num_epochs=40
--sft.batch_size=2
--sft.optimizer=muon
--sft.learning_rate=0.01
--optimizer.learning_rate=4e-4
--data.max_prompt_tokens=16
--batch.row_tokens=64
--batch.rows_per_micro_batch=4
--engine.num_slots=16
--engine.max_seq_len=64
--engine.prefill_rows=4
--engine.prefill_chunk=16
--eval.num_problems=3
--eval.num_samples=2
--rollout.max_response_tokens=40
--rollout.prompts_per_step=2
--rollout.group_size=8
--roc.keep=4
--num_steps=20
--checkpoint.every_updates=10
"""


class Place:
  """A work directory with data and flags of the tiny experiments."""

  def __init__(self, folder: pathlib.Path):
    """Writes data and flags beside the work directory, which is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    self.workdir = folder / "runs"
    self.conversations = folder / "sft.jsonl"
    self.problems = folder / "problems.jsonl"
    self.conversations.write_text("".join(
        json.dumps(_conversation(problem, answer + off)) + "\n"
        for problem, answer in _ANSWERS.items() for off in (0, 1)) * 16)
    self.problems.write_text("".join(
        json.dumps({"problem": p, "answer": a}) + "\n"
        for p, a in _ANSWERS.items()))
    self.children: list[int] = []  # of the last experiment that was stopped
    self._flagfile = folder / "flags.txt"
    self._flagfile.write_text(
        f"{_FLAGS}\n--workdir={self.workdir}\n--sft.data={self.conversations}\n"
        f"--data.train={self.problems}\n--data.heldout={self.problems}\n")

  def copy(self, folder: pathlib.Path, *names: str) -> "Place":
    """Another place with the same data and some of the runs.

    Args:
      folder: of the other place.
      *names: of stages.
    """
    other = Place(folder)
    # The configuration of a run holds the paths of its data.
    other._flagfile.write_text(f"{self._flagfile.read_text()}\n"
                               f"--workdir={other.workdir}\n")
    for name in (".compiled", *(f"laptop-s0-{name}" for name in names)):
      shutil.copytree(self.workdir / name, other.workdir / name)
    return other

  def run(self, stage: str) -> pathlib.Path:
    """The run folder of a stage."""
    return self.workdir / f"laptop-s0-{stage}"

  def call(
      self, experiment: str, *flags: str
  ) -> subprocess.CompletedProcess[str]:
    """Runs an experiment to its end."""
    return subprocess.run(
        self.command(experiment, *flags), cwd=ROOT, text=True,
        capture_output=True, timeout=300, check=False)

  def stop(
      self, experiment: str, *flags: str, number: int, after: int, stage: str,
      times: int = 1,
  ) -> subprocess.CompletedProcess[str]:
    """Runs an experiment and sends it a signal; SIGINT as a terminal does.

    Args:
      experiment: its name.
      *flags: more flags.
      number: of the signal.
      after: steps in metrics.jsonl at which it is sent.
      stage: whose metrics.jsonl.
      times: signals sent, a hundredth of a second apart.
    """
    process = subprocess.Popen(
        self.command(experiment, *flags), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    path = self.run(stage) / "metrics.jsonl"
    deadline_s = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline_s:
      if path.exists() and path.read_bytes().count(b"\n") >= after:
        self.children = servers.processes_below(process.pid)
        for _ in range(times):
          # Ctrl-C goes to all processes of the terminal's job.
          (os.killpg if number == signal.SIGINT else os.kill)(
              process.pid, number)
          time.sleep(0.01)
        break
      time.sleep(0.001)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(
        process.args, process.returncode, out, err)

  def metrics(self, stage: str) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what the clock decides."""
    text = (self.run(stage) / "metrics.jsonl").read_text()
    return [{k: v for k, v in json.loads(line).items()
             if not k.startswith("time/") and not k.endswith(("_ms", "_s"))
             # Which trajectories hold room at once depends on their speed.
             and k not in ("rollout/kv_use", "rollout/server_idle")}
            for line in text.splitlines()]

  def policy(self, stage: str) -> bytes:
    """The parameters that a finished stage has left."""
    return (self.run(stage) / "policy" / "model.safetensors").read_bytes()

  def summary(self, stage: str) -> dict:
    """The summary of a finished stage."""
    return json.loads((self.run(stage) / "summary.json").read_text())

  def command(self, experiment: str, *flags: str) -> list[str]:
    """The command line of an experiment here."""
    return [sys.executable, "-m", f"experiments.{experiment}",
            f"--flagfile={self._flagfile}", *flags]


def _conversation(problem: str, said: int) -> dict[str, list]:
  turns = (
      ("system", template.SYSTEM),
      ("user", template.user_content(problem)),
      ("assistant", f"<reason>\n{template.call_text(f'print({said})')}"),
      ("tool", f"{said}"),
      ("assistant",
       f"<reason> </reason>\n<answer>\\boxed{{{said}}}</answer>"))
  return {"messages": [
      {"role": role, "content": content} for role, content in turns]}
