"""Reads and writes length-prefixed frames on a stream socket."""

import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct('!I')
CHUNK = 1 << 16


def frame(payload: bytes) -> bytes:
  return HEADER.pack(len(payload)) + payload


class Reader:
  """Reads frames from a socket.

  A frame of more than `max_bytes` raises ValueError, because senders are not
  trusted.
  """

  def __init__(self, sock: socket.socket, max_bytes: int = 2**32):
    self.sock = sock
    self.max_bytes = max_bytes
    self.buffer = bytearray()

  def receive(self) -> bool:
    """Reads once; returns False if the other side is gone."""
    try:
      data = self.sock.recv(CHUNK)
    except ConnectionError:
      return False
    self.buffer += data
    return bool(data)

  def frames(self) -> Iterator[bytes]:
    """Returns and removes every complete frame of the buffer."""
    start = 0
    try:
      while len(self.buffer) - start >= HEADER.size:
        (size,) = HEADER.unpack_from(self.buffer, start)
        if size > self.max_bytes:
          raise ValueError(f'a frame of {size} bytes')
        end = start + HEADER.size + size
        if len(self.buffer) < end:
          return
        payload = bytes(self.buffer[start + HEADER.size : end])
        start = end
        yield payload
    finally:
      del self.buffer[:start]

  def only(self) -> bytes | None:
    """Waits for one frame.

    Whatever arrives behind it is dropped, so the other side must send nothing
    more.
    """
    frames: list[bytes] = []
    while not frames and self.receive():
      frames = list(self.frames())
    return frames[0] if frames else None

  def __iter__(self) -> Iterator[bytes]:
    """Reads frames until the other side is gone."""
    while self.receive():
      yield from self.frames()
