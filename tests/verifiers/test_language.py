"""Languages and sentences: written samples, and properties."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import IFEVAL, SAMPLES

from jaxrl_reason.verifiers.text import language, scripts, sentences

FEW = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize('code', SAMPLES)
def test_each_sample_is_in_its_language(code):
  text = SAMPLES[code]
  assert language.detect(text) == code
  assert language.detect(text.upper()) == code
  assert language.detect(f'1. **{text}** (42%)\n\n2. {text}') == code


def test_every_language_of_ifeval_is_known():
  assert set(IFEVAL) <= language.codes() and len(language.codes()) > 60


@pytest.mark.parametrize(
  ('text', 'code'),
  [
    ('', None),
    ('12 + 3 = 15 !', None),
    ('한국', 'ko'),
    ('東京', 'zh'),  # without kana it is Chinese
    ('東京へ行く', 'ja'),
    ('ok', 'en'),
    ('привет', 'ru'),
    # Without frequent words, letters and endings decide.
    ('Suomalaisessa kaupungissa', 'fi'),
    ('Straßenbahn Größe', 'de'),
    ('żółw', 'pl'),
    ('información', 'es'),
    ('informação', 'pt'),
    ('Güneşli günler', 'tr'),
    ('Їжак', 'uk'),
    ('Подъезд закрыт', 'ru'),
    ('پنجره', 'fa'),
    ('ڈاکٹر', 'ur'),
  ],
)
def test_short_texts(text, code):
  assert language.detect(text) == code


def test_the_language_of_the_larger_part_is_detected():
  both = SAMPLES['de'] + ' ' + SAMPLES['th'] * 3
  assert language.detect(both) == 'th'
  assert language.detect(SAMPLES['de'] * 3 + ' ' + SAMPLES['th']) == 'de'


@FEW
@given(st.text(max_size=200))
def test_detection_is_total_and_the_same_every_time(text):
  code = language.detect(text)
  assert code is None or code in language.codes()
  assert code == language.detect(text)
  assert (code is None) <= (not any(map(scripts.script_of, text)))
  assert language.lead([], code or 'en') == 0.0


@FEW
@given(st.text(max_size=100), st.text(max_size=100))
def test_units_of_a_text_are_those_of_its_parts(a, b):
  assert scripts.units(f'{a}\n{b}') == scripts.units(a) + scripts.units(b)


SENTENCES = [
  ('', 0),
  ('   \n ', 0),
  ('no end', 1),
  ('One. Two! Three? Four', 4),
  ('One.\nTwo.\n\nThree.', 3),
  ('Dr. Smith met Mr. Jones at 5 p.m. on Main St. in Boston.', 1),
  ('He moved to the U.S. in 1990. She stayed.', 2),
  ('He lives in the U.S. The weather is better.', 2),
  ('It costs 3.14 dollars. See www.example.com for more.', 2),
  ('J. R. R. Tolkien wrote it.', 1),
  ('Wait... what? Yes.', 2),
  ('I waited... Then it came.', 2),
  ('She said "Stop!" He did.', 2),
  ('"Stop!" she said.', 2),  # as Punkt: an ! always ends
  ('Use a tool, e.g. a hammer, i.e. the heavy one.', 1),
  ('1. Wash it.\n2. Dry it.', 4),  # as Punkt: "1." is one
  ('There were 10. and then some.', 1),
  ('Really?! Yes!!! No.', 3),
  ('! ? . *** ...', 0),
  ('今日は晴れです。明日は雨です。', 2),
  ('यह एक है। यह दो है।', 2),
  ('یہ ایک ہے۔ یہ دو ہے۔', 2),
  ('Is it? (Yes.) And more.', 3),
  ('**Bold.** Plain. *Also.*', 3),
]


@pytest.mark.parametrize(('text', 'n'), SENTENCES)
def test_sentences(text, n):
  assert len(sentences.sentences(text)) == n


@FEW
@given(st.text(alphabet='aB1 .!?…"\')\n。', max_size=80))
def test_sentences_keep_the_text(text):
  found = sentences.sentences(text)
  kept = ''.join(''.join(found).split())
  assert sum(map(str.isalnum, kept)) == sum(map(str.isalnum, text))
  assert all(s == s.strip() and any(map(str.isalnum, s)) for s in found)
  for sentence in found:
    assert sentences.sentences(sentence) == [sentence]


@pytest.mark.parametrize(
  ('text', 'tokens'),
  [
    ("I'M HERE.", ['I', "'M", 'HERE']),
    ("DON'T", ['DO', "N'T"]),
    ('CANNOT, WON\u2019T', ['CAN', 'NOT', 'WON', 'T']),
    ('WELL-KNOWN (R&D)', ['WELL-KNOWN', 'R', 'D']),
    ('3,000:1 A,B', ['3,000:1', 'A', 'B']),
    ('*BOLD* "QUOTED"', ['BOLD', 'QUOTED']),
  ],
)
def test_treebank_words(text, tokens):
  assert [t.rstrip('.') for t in sentences.tokens(text)] == tokens
