"""Packets between the supervisor, its zygotes and their slots.

Fixed-size structs over SOCK_SEQPACKET. The source of a call follows the
header, or comes in a memfd when it is large; stdin always comes in a memfd.
Both are read by the process that will run them and never by a slot, so that no
later call can find them in the memory that it inherits.
"""

from __future__ import annotations

import dataclasses
import struct

# Above this, source goes by memfd. A packet must fit into the socket buffer,
# 208 KiB by default.
MAX_INLINE_BYTES = 64 << 10
MAX_PACKET_BYTES = 128 << 10
# Wall and CPU limit of a session, whose cells the supervisor times.
UNLIMITED_S = 1e9

# Supervisor -> zygote.
SPAWN = b'P'  # with descriptors: socket, stdout, stderr, value memory
# Supervisor -> slot.
CALL = b'C'
CANCEL = b'X'
# Slot -> supervisor.
KEEPER = b'K'  # with a pidfd of the slot
READY = b'H'
FAILED = b'F'  # then a text that says why
RESULT = b'R'
# Zygote -> supervisor.
ZYGOTE_READY = b'Z'  # then JSON about the zygote

# Phase of a call, as its own process reports it before any user code runs.
STARTED = b'T'
COMPILED = b'O'
NOT_COMPILED = b'E'

# Why a slot ended a call.
REASON_NONE = 0
REASON_WALL = 1
REASON_CPU = 2
REASON_MEMORY = 3
REASON_CANCEL = 4

# First byte of a cell: what comes in descriptors.
CELL_CODE_FD = 1
CELL_STDIN_FD = 2

# Value memory: shared by slot, call and supervisor. Written by the call.
VALUE_HEADER = struct.Struct('<IB')  # length of the value, FLAG_*
VALUE_BYTES = 1 << 16
FLAG_HAS_VALUE = 1
FLAG_MEMORY_ERROR = 2  # advisory: an uncaught MemoryError

_CALL = struct.Struct('<cIddQqB')
_CANCEL = struct.Struct('<cI')
_RESULT = struct.Struct('<cIciBddQ')
_LIMITS = struct.Struct('<cIddQ')
LIMITS_BYTES = _LIMITS.size
_NO_SEED = -1
_CODE_FD = 1
_STDIN_FD = 2
_SESSION = 4


@dataclasses.dataclass(frozen=True)
class Call:
  """Header of a call.

  Attributes:
    call_id: number of the call in its slot.
    wall_s, cpu_s: limits in seconds; for a session, per cell.
    memory_bytes: limit on all processes of the call over the tier's base.
    seed: for random and numpy.random, or None.
    code_fd: the source comes in a descriptor instead of behind the header.
    stdin_fd: a descriptor, after that of the source, holds stdin.
    session: keep the interpreter; the descriptor is a socket of cells.
  """

  call_id: int
  wall_s: float
  cpu_s: float
  memory_bytes: int
  seed: int | None = None
  code_fd: bool = False
  stdin_fd: bool = False
  session: bool = False

  def pack(self) -> bytes:
    """The header as bytes."""
    flags = (
        (_CODE_FD if self.code_fd else 0)
        | (_STDIN_FD if self.stdin_fd else 0)
        | (_SESSION if self.session else 0)
    )
    seed = _NO_SEED if self.seed is None else self.seed
    return _CALL.pack(
        CALL, self.call_id, self.wall_s, self.cpu_s, self.memory_bytes, seed,
        flags,
    )

  @classmethod
  def unpack(cls, packet: bytes) -> tuple[Call, bytes]:
    """The header of a CALL packet, and what follows it."""
    _, call_id, wall_s, cpu_s, memory, seed, flags = _CALL.unpack_from(packet)
    header = cls(
        call_id, wall_s, cpu_s, memory, None if seed == _NO_SEED else seed,
        bool(flags & _CODE_FD), bool(flags & _STDIN_FD),
        bool(flags & _SESSION),
    )
    return header, packet[_CALL.size:]


@dataclasses.dataclass(frozen=True)
class Result:
  """What a slot observed of a call. Times in seconds."""

  call_id: int
  phase: bytes
  wait_status: int
  reason: int
  wall_s: float
  cpu_s: float
  max_rss_kb: int

  def pack(self) -> bytes:
    """The result as bytes."""
    return _RESULT.pack(
        RESULT, self.call_id, self.phase, self.wait_status, self.reason,
        self.wall_s, self.cpu_s, self.max_rss_kb,
    )

  @classmethod
  def unpack(cls, packet: bytes) -> Result:
    """Reads a RESULT packet."""
    return cls(*_RESULT.unpack(packet)[1:])


def pack_cancel(call_id: int) -> bytes:
  """Asks a slot to end the call; of no effect once it has ended."""
  return _CANCEL.pack(CANCEL, call_id)


def cancelled_id(packet: bytes) -> int | None:
  """The call that a packet cancels, None if it is not a CANCEL."""
  if packet[:1] != CANCEL or len(packet) != _CANCEL.size:
    return None
  return _CANCEL.unpack(packet)[1]


def pack_limits(call: Call) -> bytes:
  """What the call's process tells its slot before it runs anything."""
  return _LIMITS.pack(
      STARTED, call.call_id, call.wall_s, call.cpu_s, call.memory_bytes
  )


def unpack_limits(record: bytes) -> tuple[int, float, float, int]:
  """call_id, wall_s, cpu_s, memory_bytes of a limits record."""
  return _LIMITS.unpack(record)[1:]
