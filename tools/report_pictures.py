"""Takes the pictures of docs/reports.md from a run's report.

  tools/run --config=configs/arithmetic_tiny.py --config.eval.samples=16 \
    --workdir=runs/arithmetic
  .venv/bin/python tools/report_pictures.py runs/arithmetic

This needs Chromium and the extra `test`. Colours are reduced to a palette, so
that the files stay small.
"""

import pathlib
import sys
import tempfile

from PIL import Image

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / 'tests'))
import chromium  # noqa: E402

from jaxrl_reason import report  # noqa: E402

SIZE = (1200, 760)
COLORS = 128
# Name of the picture -> JavaScript that opens a part of the report, and a
# condition that is true when the browser has drawn this part.
DRAWN = "document.querySelectorAll('{} .main-svg').length > {}"
ANSWER = """(async () => {
  document.getElementById('group').checked = true;
  await report.filter();
  document.getElementById('viewer').scrollIntoView();
  const row = report.state.items.findLast((x) => x.row !== undefined).row;
  await report.choose(row);
  document.querySelector('.by button[data-by=entropy]').click();
  document.getElementById('list').scrollTop = 1e9;
})()"""
PICTURES = {
  'report_overview': ('scrollTo(0, 0)', DRAWN.format('#overview', 2)),
  'report_curves': (
    "document.getElementById('pass').scrollIntoView()",
    DRAWN.format('#pass', 1),
  ),
  'report_support': (
    "document.getElementById('support').scrollIntoView()",
    DRAWN.format('#support', 1),
  ),
  'report_answers': (ANSWER, 'report.painted > 0'),
}


def main(workdir: str) -> None:
  """Writes the pictures of a run into docs/."""
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / 'report.html'
    report.run(report.parser().parse([workdir, f'--out={out}']))
    page = chromium.Page(out.as_uri(), SIZE)
    page.until('window.report && report.ready')
    for name, (show, drawn) in PICTURES.items():
      page.js(show)
      page.until(drawn)
      page.js('new Promise((done) => setTimeout(done, 1500))')
      path = ROOT / 'docs' / f'{name}.png'
      path.write_bytes(page.picture())
      Image.open(path).quantize(COLORS).save(path, optimize=True)
      print(path, path.stat().st_size)
    page.close()


if __name__ == '__main__':
  main(*sys.argv[1:])
