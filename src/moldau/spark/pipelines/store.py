"""Small files beside a pipeline's checkpoint: what was sampled, and how the queries are doing.

A checkpoint may be a local folder or a URI (hdfs://, s3://). Invariant: a file is whole or not there; readers never see
half of one where the file system can rename.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlparse


def local_folder(checkpoint: str) -> Path | None:
    """The folder on this machine, or None if the checkpoint lives elsewhere."""
    parsed = urlparse(checkpoint)
    if parsed.scheme in ("", "file"):
        return Path(parsed.path if parsed.scheme else checkpoint)
    return None


def write_json(checkpoint: str, name: str, content: Any) -> None:
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    folder = local_folder(checkpoint)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path, folder / name)
        return
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(checkpoint)
    system.create_dir(path, recursive=True)
    with system.open_output_stream(f"{path}/{name}") as stream:
        stream.write(text.encode())


def read_text(checkpoint: str, name: str) -> str | None:
    """The content, or None if there is no such file."""
    folder = local_folder(checkpoint)
    if folder is not None:
        try:
            return (folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(checkpoint)
    if system.get_file_info(f"{path}/{name}").type == fs.FileType.NotFound:
        return None
    with system.open_input_stream(f"{path}/{name}") as stream:
        found: bytes = stream.read()
        return found.decode()


def read_json(checkpoint: str, name: str) -> Any:
    """The content, or None if there is no such file."""
    text = read_text(checkpoint, name)
    return None if text is None else json.loads(text)


def names(checkpoint: str, below: str) -> list[str]:
    """The names of the files in a folder; none if it is not there."""
    folder = local_folder(checkpoint)
    if folder is not None:
        try:
            return os.listdir(folder / below)
        except FileNotFoundError:
            return []
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(checkpoint)
    selector = fs.FileSelector(f"{path}/{below}", allow_not_found=True)
    return [each.base_name for each in system.get_file_info(selector)]
