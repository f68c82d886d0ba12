"""Pytest fixtures, found through the `pytest11` entry point."""
