"""Frees compiled programs before the process has too many memory maps.

Linux allows a process 65,530 maps (`vm.max_map_count`). A compiled program for
CPUs has many maps: a short run leaves 1,500. If the limit is reached, the
process ends with "Unable to allocate section memory" or a segmentation fault,
even if memory is free.
"""

import gc
import pathlib

import jax

MAPS = pathlib.Path('/proc/self/maps')  # exists on Linux only
MOST = 20_000


def free_programs() -> None:
  """Frees compiled programs if the process has more than `MOST` memory maps.

  Programs that are used again are compiled again, or read from the compilation
  cache on the disk.
  """
  if MAPS.exists() and MAPS.read_bytes().count(b'\n') > MOST:
    jax.clear_caches()
    gc.collect()
