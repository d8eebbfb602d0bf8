"""Studies: a grid of settings and seeds from one warm start, and what differs.

grid       Study: settings x seeds -> cells, each a run's configuration
traced     which cells are one program, and what differs inside it
together   cells of one program, side by side
session    warm start -> cells -> table, one after another, resumable
outcome    what is on disk -> means, errors, paired differences, fits
pages      table.md and study.png
"""
