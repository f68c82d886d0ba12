"""Measurements, always beside something measured in the same run. `make bench` writes docs/benchmarks.md."""
