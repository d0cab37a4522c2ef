"""For mkdocs: pages of the site that are no files in docs/, and links that are right there.

The README is the first page; the pages of policies, changelog, contributing and security are files of the repository.
The reference has every public name of `adaptive`. Links to files that are not on the site become their names.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import adaptive

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "policies/README.md": "policies.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
REFERENCE = "# Python\n\nEverything that `import adaptive` offers.\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere in the repository, and the reference."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "api.md", content=reference()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point links to pages of the site there."""
    uri = page.file.src_uri
    source = next((source for source, target in PAGES.items() if target == uri), f"docs/{uri}")
    return with_links(markdown, source)


def reference() -> str:
    """The page with every public name, by where it is written."""
    return REFERENCE + "".join(map(_entry, sorted(adaptive._HOMES, key=str.lower)))


def _entry(name: str) -> str:
    options = f"    options:\n      heading: adaptive.{name}\n      toc_label: {name}\n"
    return f"\n::: adaptive.{adaptive._HOMES[name]}.{name}\n{options}"


def with_links(markdown: str, source: str) -> str:
    """The text of a file of the repository with the links of the site; code blocks stay as they are."""

    def replaced(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path in PAGES or path.startswith("docs/"):
            page = PAGES.get(source, source.removeprefix("docs/"))
            found = posixpath.relpath(PAGES.get(path, path.removeprefix("docs/")), posixpath.dirname(page) or ".")
            return f"{image}[{text}]({found}{'#' if anchor else ''}{anchor})"
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source}: a link to {target}, but there is no {path}")
        return text if f"`{path}`" in text or path in text else f"{text} (`{path}`)"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)
