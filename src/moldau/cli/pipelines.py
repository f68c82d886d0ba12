"""`moldau pipeline …`: what runs pipelines and what is done to them beside that, as one group of commands."""

from __future__ import annotations

from moldau.cli import pipeline_tools  # noqa: F401  # adds its commands
from moldau.cli.pipeline import app

__all__ = ["app"]
