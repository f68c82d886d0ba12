"""Texts for people without what they should not see: secrets of the file, and passwords in URLs."""

from __future__ import annotations

import re

from moldau.spark.pipelines import model

_URL_PASSWORD = re.compile(r"(\w+://[^\s:/@]+:)[^\s@]+@")


def redacted(text: str, pipeline: model.Pipeline | None = None) -> str:
    for secret in sorted(pipeline.secrets, key=len, reverse=True) if pipeline is not None else ():
        text = text.replace(secret, "***")
    return _URL_PASSWORD.sub(r"\1***@", text)
