"""A session's interpreter: runs one cell after another in one namespace.

Unlike a call, a session is told its next cell by a socket that it holds while
user code runs. A program that looks for it can forge its own session's
replies; it reaches nothing else. Limits are kept from outside as for calls.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
import struct

from sandbox_runner import harness
from sandbox_runner import wire

# Cell -> supervisor: exit code, compiled, has value, CPU seconds; then value.
REPLY = struct.Struct('<iBBd')
_SOCKET_FD = 200  # out of the way of a program's own descriptors


def serve(link: socket.socket, shared: mmap.mmap) -> int:
  """Runs cells until the socket closes. Returns the exit code."""
  os.dup2(link.fileno(), _SOCKET_FD, inheritable=False)
  link.close()
  link = socket.socket(fileno=_SOCKET_FD)
  main = harness.new_main()
  pid = os.getpid()
  count = 0
  link.send(REPLY.pack(0, 1, 0, 0.0))
  while True:
    source = _receive_source(link)
    if source is None:
      return harness.finish(0)
    count += 1
    reply = _run_cell(source, f'cell {count}', main.__dict__, shared)
    if os.getpid() != pid:  # a fork of the program that ran to the cell's end
      os._exit(REPLY.unpack_from(reply)[0])
    link.send(reply)


def _receive_source(link: socket.socket) -> bytes | None:
  packet, fds, _, _ = socket.recv_fds(link, wire.MAX_PACKET_BYTES, 2)
  if not packet:
    return None
  fds = list(fds)
  source = packet[1:]
  if packet[0] & wire.CELL_CODE_FD:
    with open(fds.pop(0), 'rb') as file:
      source = file.read()
  stdin = fds[0] if fds else os.open('/dev/null', os.O_RDONLY)
  os.dup2(stdin, 0)
  os.close(stdin)
  harness.open_stdin()
  return source


def _run_cell(
    source: bytes, name: str, namespace: dict, shared: mmap.mmap
) -> bytes:
  start = _cpu_seconds()
  program = harness.compile_program(source, name)
  if program is None:
    return REPLY.pack(1, 0, 0, _cpu_seconds() - start)
  values: list[str] = []

  def run() -> None:
    value = program.run(namespace)
    if value is not None:
      values.append(value)

  code = harness.run_guarded(run, shared)
  data = harness.clip_value(values[0]) if values else b''
  cpu = _cpu_seconds() - start
  return REPLY.pack(code, 1, int(bool(values)), cpu) + data


def _cpu_seconds() -> float:
  own = resource.getrusage(resource.RUSAGE_SELF)
  children = resource.getrusage(resource.RUSAGE_CHILDREN)
  return (
      own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
  )
