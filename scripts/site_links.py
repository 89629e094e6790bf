"""A hook of mkdocs: the README becomes the first page; links out of docs/ become names of files.

On GitHub the documents link to files beside docs/ (`../SECURITY.md`), which a site does not hold.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page. Called by mkdocs once."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that leave the site. Called by mkdocs for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewrite(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if not path.startswith("../") and (ROOT / "docs" / path).is_file():
            return found[0]
        name = path.removeprefix("../")
        return f"`{name}`" if text in name else f"{text} (`{name}`)"

    return _LINK.sub(rewrite, markdown)
