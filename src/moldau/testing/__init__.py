"""Moldau inside a test: an in-process broker and its pytest fixture."""
