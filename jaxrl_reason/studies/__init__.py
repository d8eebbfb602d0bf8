"""Studies: grids of settings and seeds, their claims and results.

grid       Study: settings x seeds -> cells, each a run's configuration
grid_checks  refuses invalid studies
traced     groups cells by program, and lists their different numbers
together   runs cells of one program side by side
study_run  warm start -> cells -> table, resumable
results    files -> means, errors, paired differences, fits
targets    the steps and tokens to a target
base_kl    the KL divergence of runs to their warm starts
ranks      a test of costs to a target, of which some are bounds
pages      table.md and study.png
"""
