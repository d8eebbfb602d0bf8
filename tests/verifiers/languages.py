"""A sentence in each of many languages, written for the tests of `language`."""

import pathlib

FILE = pathlib.Path(__file__).parent / 'data' / 'languages.tsv'
LINES = FILE.read_text(encoding='utf-8').splitlines()
SAMPLES = dict(line.split('\t') for line in LINES)
# The languages that the prompts of IFEval may ask for.
IFEVAL = (
  'en es pt ar hi fr ru de ja it bn uk th ur ta te bg ko pl he fa vi ne sw kn '
  'mr gu pa ml fi'
).split()
