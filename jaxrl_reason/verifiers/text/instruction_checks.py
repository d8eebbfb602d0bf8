"""Checks IFEval's instruction types, by one function each.

Every check is total and linear in the response. `instructions` lists the
differences to the published checks.
"""

import json
import re

from jaxrl_reason.verifiers.text import language, sentences

AT_LEAST, LESS_THAN = 'at least', 'less than'
CONSTRAINED = ('My answer is yes.', 'My answer is no.', 'My answer is maybe.')
FENCES = ('```json', '```Json', '```JSON', '```')
DIVIDER = re.compile(r'\s?\*\*\*\s?')
HIGHLIGHT = re.compile(r'\*[^\n*]*\*')
DOUBLE_HIGHLIGHT = re.compile(r'\*\*[^\n*]*\*\*')
POSTSCRIPTS = {
  'P.P.S': re.compile(r'p\.\s?p\.\s?s'),
  'P.S.': re.compile(r'p\.\s?s\.'),
}


def _holds(n: int, relation: str, limit: int) -> bool:
  return n >= limit if relation == AT_LEAST else n < limit


def _literal(text: str) -> re.Pattern:
  return re.compile(re.escape(text), re.I)


def keywords(text, keywords):
  return all(_literal(word).search(text) for word in keywords)


def keyword_frequency(text, keyword, frequency, relation):
  return _holds(len(_literal(keyword).findall(text)), relation, frequency)


def forbidden_words(text, forbidden_words):
  return not any(
    re.search(rf'\b{re.escape(word)}\b', text, re.I) for word in forbidden_words
  )


def letter_frequency(text, letter, let_frequency, let_relation):
  return _holds(text.lower().count(letter), let_relation, let_frequency)


def response_language(text, language):
  return _is_language(text, language)


def _is_language(text: str, code: str) -> bool:
  """Returns whether a text is in a language. As published, a text without
  letters is in every language.
  """
  return language.detect(text) in (code, None)


def number_sentences(text, num_sentences, relation):
  return _holds(len(sentences.sentences(text)), relation, num_sentences)


def number_words(text, num_words, relation):
  return _holds(len(sentences.words(text)), relation, num_words)


def number_paragraphs(text, num_paragraphs):
  """Checks the number of paragraphs between *** dividers. Only the first and
  the last may be blank.
  """
  first, *middle = DIVIDER.split(text)
  last = [middle.pop()] if middle else []
  if not all(paragraph.strip() for paragraph in middle):
    return False
  edges = sum(bool(paragraph.strip()) for paragraph in (first, *last))
  return len(middle) + edges == num_paragraphs


def nth_paragraph_first_word(text, num_paragraphs, nth_paragraph, first_word):
  """Checks the number of paragraphs that are not blank, and the first word of
  the nth of all paragraphs.
  """
  paragraphs = text.split('\n\n')
  n = sum(bool(paragraph.strip()) for paragraph in paragraphs)
  if n != num_paragraphs or nth_paragraph > n:
    return False
  words = paragraphs[nth_paragraph - 1].split(None, 1)
  word = words[0].lstrip("'").lstrip('"') if words else ''
  return re.split('[.,?!\'"]', word)[0].lower() == first_word.lower()


def number_placeholders(text, num_placeholders):
  return sum(map(_brackets, text.split('\n'))) >= num_placeholders


def _brackets(line: str) -> int:
  """Counts the [...] of a line in one pass."""
  n, end = 0, 0
  while (start := line.find('[', end)) >= 0:
    end = line.find(']', start) + 1
    if end == 0:
      break
    n += 1
  return n


def postscript(text, postscript_marker):
  pattern = POSTSCRIPTS.get(postscript_marker, _literal(postscript_marker))
  return bool(pattern.search(text.lower()))


def number_bullets(text, num_bullets):
  """Checks the number of lines that begin with - or with one *."""
  lines = [line.lstrip() for line in text.split('\n')]
  n = sum(line.startswith('-') for line in lines)
  i = 0
  while i < len(lines):
    if lines[i] == '*' and i + 1 < len(lines):
      n += 1
      i += 1  # the next line is the text of a bare *
    elif lines[i].startswith('*') and lines[i][1:2] not in ('*', ''):
      n += 1
    i += 1
  return n == num_bullets


def constrained_response(text):
  return any(option in text for option in CONSTRAINED)


def number_highlights(text, num_highlights):
  """Checks the number of *texts* or **texts** that are not blank."""
  single = (m.strip('*') for m in HIGHLIGHT.findall(text))
  double = (m[2:-2] for m in DOUBLE_HIGHLIGHT.findall(text))
  n = sum(bool(m.strip()) for matches in (single, double) for m in matches)
  return n >= num_highlights


def number_sections(text, section_spliter, num_sections):
  """Checks the least number of "Section 1", "Section 2", ..."""
  mark = re.compile(rf'{re.escape(section_spliter)}\s?\d+')
  return len(mark.findall(text)) >= num_sections


def json_format(text):
  body = text.strip()
  for fence in FENCES:
    body = body.removeprefix(fence)
  try:
    json.loads(body.removesuffix('```').strip())
  # RecursionError: brackets that are nested too deep for the stack.
  except (ValueError, RecursionError):
    return False
  return True


def title(text):
  return any(map(_title, text.split('\n')))


def _title(line: str) -> bool:
  """Returns whether a line has text between its first << and last >>."""
  start, end = line.find('<<'), line.rfind('>>')
  if start < 0 or end < start:
    return False
  return bool(line[start : end + 2].lstrip('<').rstrip('>').strip())


def two_responses(text):
  first, *middle = text.split('******')
  last = [middle.pop()] if middle else []
  if not all(part.strip() for part in middle):
    return False
  responses = [p.strip() for p in (first, *middle, *last) if p.strip()]
  return len(responses) == 2 and responses[0] != responses[1]


def repeat_prompt(text, prompt_to_repeat):
  return text.strip().lower().startswith(prompt_to_repeat.lower())


def end_checker(text, end_phrase):
  return text.strip().strip('"').lower().endswith(end_phrase.lower())


def quotation(text):
  text = text.strip()
  return len(text) > 1 and text[0] == text[-1] == '"'


def capital_words(text, capital_frequency, capital_relation):
  n = sum(word.isupper() for word in sentences.tokens(text))
  return _holds(n, capital_relation, capital_frequency)


def english_capital(text):
  return text.isupper() and _is_language(text, 'en')


def english_lowercase(text):
  return text.islower() and _is_language(text, 'en')


def no_comma(text):
  return ',' not in text
