"""What a run would need and do on chips that nobody has here (`plan`)."""
