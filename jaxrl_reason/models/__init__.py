"""Policies as plain pytrees and functions."""
