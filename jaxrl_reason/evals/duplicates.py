"""Finds near duplicates by MinHash, with the library datasketch.

Two texts are near duplicates if the Jaccard similarity of the sets of their
n-grams of words and signs is at least `threshold`. Locality-sensitive hashing
proposes pairs (Broder 1997), and the sets themselves are then compared. So no
text is removed by a coincidence of hashes; a pair near the threshold can be
missed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_reason.evals import contamination
from jaxrl_reason.names import install

N = 3  # words of an n-gram
PERMUTATIONS = 128
# Weights of false proposals and of missed pairs in the choice of bands. A false
# proposal costs only a comparison of two sets.
MISSED = (0.1, 0.9)


def _library() -> Any:
  try:
    import datasketch
  except ImportError as e:
    raise ImportError(
      f'near duplicates need datasketch: {install("curate")}'
    ) from e
  return datasketch


def near(
  texts: Sequence[str], threshold: float, tell: Callable[[int], Any]
) -> dict[int, int]:
  """Returns {index of a duplicate: index of the first text that it repeats}.

  Args:
    threshold: least Jaccard similarity of duplicates, in (0, 1].
    tell: called with 1 after each text.
  """
  library = _library()
  index = library.MinHashLSH(
    threshold=threshold, num_perm=PERMUTATIONS, weights=MISSED
  )
  shingles: dict[int, set] = {}
  out = {}
  for i, text in enumerate(texts):
    own = _shingles(text)
    hashed = library.MinHash(num_perm=PERMUTATIONS, seed=1)
    hashed.update_batch([' '.join(gram).encode() for gram in own])
    first = _first(index.query(hashed) if own else [], own, shingles, threshold)
    if first is None:
      index.insert(i, hashed)
      shingles[i] = own
    else:
      out[i] = first
    tell(1)
  return out


def _shingles(text: str) -> set[tuple[str, ...]]:
  """Returns the n-grams of words and signs of a text: `12 + 30` and `12 - 30`
  are different problems.
  """
  found = contamination.words(text, contamination.WITH_SIGNS)
  starts = range(max(1, len(found) - N + 1))
  return {tuple(found[i : i + N]) for i in starts} if found else set()


def _first(
  proposed: Sequence[int], own: set, shingles: dict[int, set], threshold: float
) -> int | None:
  """Returns the first proposed text that is similar enough."""
  for i in sorted(proposed):
    other = shingles[i]
    if len(own & other) >= threshold * len(own | other):
      return i
  return None
