"""Plans of a run on chips that are not here (`plan`)."""
