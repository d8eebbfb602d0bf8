"""Studies: grids of settings and seeds, their claims and results.

grid       Study: settings x seeds -> cells, each a run's configuration
traced     groups cells by program, and lists their different numbers
together   runs cells of one program side by side
study_run  warm start -> cells -> table, resumable
results    files -> means, errors, paired differences, fits
ranks      a test of costs to a target, of which some are bounds
pages      table.md and study.png
"""
