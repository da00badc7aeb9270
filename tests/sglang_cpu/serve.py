"""Serves an unmodified SGLang on a CPU without AMX and without CUDA.

    VENV/bin/python tests/sglang_cpu/serve.py --model-path DIR --port PORT

Takes the flags of sglang.launch_server; what a CPU needs is added. SGLang
starts its workers by "spawn", which imports this main module again, so what
stands at its top level holds in every process.
"""

import importlib.machinery
import os
import runpy
import sys
import types

# Before torch is imported. More than one thread is slower as soon as the cores
# are shared; a folder that is missing must not be looked for at a hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402

_FLAGS = {
    "--device": "cpu", "--attention-backend": "torch_native",
    "--disable-cuda-graph": None, "--dtype": "float32",
    "--host": "127.0.0.1", "--max-total-tokens": "32768",
    "--mem-fraction-static": "0.1", "--enable-metrics": None,
    # Else a server without requests burns a core.
    "--sleep-on-idle": None,
}


class _Kernels(types.ModuleType):
  """Stands for sgl_kernel, whose wheels are CUDA's.

  SGLang's CPU path without AMX imports its names and calls none of them, so
  every name is there and says so when it is called.
  """

  def __getattr__(self, name: str):
    if name.startswith("__"):
      raise AttributeError(name)

    def call(*_, **__):
      raise NotImplementedError(f"sgl_kernel.{name} is not there on this CPU")

    return call


def _declare_vision_ops() -> torch.library.Library:
  """Schemas that torchvision registers forms of, whose library is CUDA's."""
  library = torch.library.Library("torchvision", "DEF")
  for name in ("nms", "qnms"):
    library.define(
        f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
  return library


def _install_kernels() -> None:
  module = _Kernels("sgl_kernel")
  module.__version__ = "0.0.0"
  module.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None)
  module.__path__ = []
  sys.modules["sgl_kernel"] = module


_LIBRARY = _declare_vision_ops()
_install_kernels()

if __name__ == "__main__":
  given = {argument.partition("=")[0] for argument in sys.argv[1:]}
  for flag, value in _FLAGS.items():
    if flag not in given:
      sys.argv += [flag] if value is None else [flag, value]
  runpy.run_module("sglang.launch_server", run_name="__main__")
