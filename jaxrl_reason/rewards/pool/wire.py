"""Length-prefixed frames over a stream socket, for the verifier processes."""

import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct('!I')
CHUNK = 1 << 16


def frame(payload: bytes) -> bytes:
  return HEADER.pack(len(payload)) + payload


class Reader:
  """Collects bytes as they come and gives the frames that are complete.

  A frame above `max_bytes` is a ValueError: for a sender that is not trusted.
  """

  def __init__(self, sock: socket.socket, max_bytes: int = 2**32):
    self.sock = sock
    self.max_bytes = max_bytes
    self.buffer = bytearray()

  def receive(self) -> bool:
    """Reads once; False when the other side is gone."""
    try:
      data = self.sock.recv(CHUNK)
    except ConnectionError:
      return False
    self.buffer += data
    return bool(data)

  def frames(self) -> list[bytes]:
    """Takes every complete frame out of the buffer."""
    found = []
    start = 0
    while len(self.buffer) - start >= HEADER.size:
      (size,) = HEADER.unpack_from(self.buffer, start)
      if size > self.max_bytes:
        raise ValueError(f'a frame of {size} bytes')
      end = start + HEADER.size + size
      if len(self.buffer) < end:
        break
      found.append(bytes(self.buffer[start + HEADER.size : end]))
      start = end
    del self.buffer[:start]
    return found

  def only(self) -> bytes | None:
    """Waits for one frame, after which the other side waits for us."""
    found: list[bytes] = []
    while not found and self.receive():
      found = self.frames()
    return found[0] if found else None

  def __iter__(self) -> Iterator[bytes]:
    """All frames until the other side is gone."""
    while self.receive():
      yield from self.frames()
