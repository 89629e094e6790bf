"""A hook of mkdocs: the README becomes the first page, links out of docs/ become names of files.

On GitHub the documents link to files beside docs/ (`../SECURITY.md`), which a site does not hold.
For programs that read, `llms.txt` lists the pages with the first sentence of each, and
`llms-full.txt` holds all of them as they are written.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page. Called by mkdocs once."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "index.md", content=_page("index.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that leave the site. Called by mkdocs for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewrite(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if not path.startswith("../") and (ROOT / "docs" / path).is_file():
            return link[0]
        name = path.removeprefix("../")
        return f"`{name}`" if text in name else f"{text} (`{name}`)"

    return _LINK.sub(rewrite, markdown)


def on_post_build(config: Any) -> None:
    """Write llms.txt and llms-full.txt beside the pages. Called by mkdocs once, in the end."""
    site = Path(config["site_dir"])
    for name, text in readable(ROOT / "mkdocs.yml").items():
        (site / name).write_text(text, encoding="utf-8")


def readable(settings: Path) -> dict[str, str]:
    """Return what programs that read are given: an index of all pages, and all of their text."""
    config = yaml.load(settings.read_text("utf-8"), Loader=yaml.BaseLoader)
    index = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    whole = []
    for section in config["nav"]:
        ((title, pages),) = section.items()
        entries = [{title: pages}] if isinstance(pages, str) else pages
        index += ["", f"## {title}", ""]
        for entry in entries:
            ((name, path),) = entry.items()
            text = _page(path)
            index.append(f"- [{name}]({path.removesuffix('.md')}.html): {_first_sentence(text)}")
            whole.append(f"<!-- {path} -->\n\n{text.strip()}\n")
    return {"llms.txt": "\n".join(index) + "\n", "llms-full.txt": "\n\n".join(whole)}


def _page(path: str) -> str:
    if path == "index.md":
        return (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    return (ROOT / "docs" / path).read_text("utf-8")


def _first_sentence(text: str) -> str:
    """Return what a page says first, without links and marks."""
    paragraphs = [part for part in text.split("\n\n") if re.match(r"(?!```)[A-Z`*\[]", part)]
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split()))
    return re.split(r"(?<=[.:?])\s", plain.replace("**", ""))[0].rstrip(":")
