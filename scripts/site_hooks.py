"""What `make docs` does besides mkdocs: the source files that pages name become pages of their own, with line numbers,
and every mention of one becomes a link. A file that is named and not there is a warning, and warnings are errors.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (ROOT / "src" / "moldau", ROOT / "src" / "moldau" / "broker", ROOT)
_MENTION = re.compile(r"(?<!\[)`((?:\w+/)+\w+\.(?:py|txt))`(?!\])")
_PICTURE = re.compile(r"!\[[^\]]*\]\((images/[^)]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_log = logging.getLogger("mkdocs.hooks.moldau")


def _found(mention: str) -> Path | None:
    """Where a mentioned file is: paths are told from the package, from the broker, or from the repository."""
    for room in ROOMS:
        path = room / mention
        if path.is_file():
            return path.relative_to(ROOT)
    return None


def _page_of(source: Path) -> str:
    return f"source/{source.as_posix()}.md"


def on_files(files: Any, config: Any) -> Any:
    """Make a page of every file that any page mentions; and one of the changelog."""
    mentioned: set[Path] = set()
    for file in files.documentation_pages():
        text = _FENCE.sub("", Path(file.abs_src_path).read_text())
        mentioned |= {source for each in _MENTION.findall(text) if (source := _found(each)) is not None}
    for source in sorted(mentioned):
        language = "python" if source.suffix == ".py" else "text"
        content = (ROOT / source).read_text()
        head = f"---\nsearch:\n  exclude: true\n---\n# `{source.as_posix()}`\n"
        page = f'{head}\n````{language} linenums="1"\n{content}````\n'
        files.append(File.generated(config, _page_of(source), content=page))
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changes.md", content=changes))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def link(match: re.Match[str]) -> str:
        source = _found(match[1])
        if source is None:
            _log.warning("%s names %s, which is not there", here, match[1])
            return match[0]
        return f"[`{match[1]}`]({posixpath.relpath(_page_of(source), posixpath.dirname(here) or '.')})"

    def picture(match: re.Match[str]) -> str:
        """Pictures are taken by the console's own tests: one that is not there yet is left out, and told of."""
        if (Path(page.file.abs_src_path).parent / match[1]).exists():
            return match[0]
        _log.info("%s: %s has not been taken yet", here, match[1])
        return ""

    markdown = _PICTURE.sub(picture, markdown)
    pieces, at = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_MENTION.sub(link, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, _MENTION.sub(link, markdown[at:])])
