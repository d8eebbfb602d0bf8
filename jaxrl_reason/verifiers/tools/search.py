"""Searches a folder of documents by BM25 (`bm25s`).

A document is a text file (.txt, .md), or a line of a .jsonl file with 'text'
and optionally 'title'. The index is built once, before the workers are forked,
so they share its memory.
"""

import json
import pathlib

from jaxrl_reason.names import install

KINDS = ('.txt', '.md', '.jsonl')


def read(folder: str) -> list[tuple[str, str]]:
  """Reads (title, text) of all documents, in the order of their paths.

  Raises:
    ValueError: there are no documents, or a line is not a document.
  """
  root = pathlib.Path(folder).expanduser()
  documents = []
  for path in sorted(p for p in root.rglob('*') if _is_one(p)):
    text = path.read_text(encoding='utf-8', errors='replace')
    if path.suffix != '.jsonl':
      documents.append((path.stem, text))
      continue
    for i, line in enumerate(text.splitlines(), 1):
      if line.strip():
        documents.append(_document(line, f'{path}:{i}'))
  if not documents:
    raise ValueError(f'{root} has no documents: {", ".join(KINDS)}')
  return documents


def _is_one(path: pathlib.Path) -> bool:
  return path.suffix in KINDS and path.is_file()


def _document(line: str, where: str) -> tuple[str, str]:
  try:
    row = json.loads(line)
    return str(row.get('title', '')), str(row['text'])
  except (ValueError, KeyError, AttributeError) as e:
    raise ValueError(f'{where} is not {{"text": ...}}: {e!r}') from e


class Search:
  """Finds documents for a query."""

  def __init__(self, folder: str = '', top: int = 1, characters: int = 400):
    """Args:
    folder: folder of documents.
    top: largest number of documents per query.
    characters: largest length of a document in the observation.
    """
    if not folder:
      raise ValueError('search needs `folder`, a folder of documents')
    try:
      import bm25s
    except ImportError as e:
      raise ImportError(f'search needs bm25s: {install("search")}') from e
    documents = read(folder)
    self._shown = [
      ': '.join(x for x in (title, text.strip()[:characters]) if x)
      for title, text in documents
    ]
    self._top = min(top, len(documents))
    words = [f'{title} {text}' for title, text in documents]
    # Words of one letter count, and there are no stop words: documents may be
    # short.
    self._how = dict(
      token_pattern=r'(?u)\b\w+\b', stopwords=[], show_progress=False
    )
    self._library = bm25s
    self._index = bm25s.BM25()
    self._index.index(bm25s.tokenize(words, **self._how), show_progress=False)

  def __call__(self, query: str) -> str:
    """Searches the documents for a query.

    Args:
      query: the words to look for.
    """
    words = self._library.tokenize([query], return_ids=False, **self._how)
    known = [w for w in words[0] if w in self._index.vocab_dict]
    if not known:
      return 'nothing found'
    scores = self._index.get_scores(known)
    # Ties in the order of the documents, on every machine.
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    best = [i for i in best[: self._top] if scores[i] > 0]
    return '\n'.join(self._shown[i] for i in best) or 'nothing found'
