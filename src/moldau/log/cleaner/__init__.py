"""Compaction: which log is worth it, what is kept of a batch, and how segments are replaced."""
