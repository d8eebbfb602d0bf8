"""Saving and restoring runs."""
