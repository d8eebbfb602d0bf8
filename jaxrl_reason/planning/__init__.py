"""Plans of a run on described chips (`plan`)."""
