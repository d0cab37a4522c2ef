"""Sphinx settings of the documentation site; `scripts/docs` builds it into build/site.

The repository is the source folder, so links between pages work the same on the site and in a checkout.
"""

import re
import sys
from pathlib import Path
from typing import Any

import adaptive

sys.path.append(str(Path(__file__).parent))
import generate

for (
    _name
) in adaptive.__all__:  # load all modules first: autodoc sets TYPE_CHECKING while it imports, and pydantic fails
    getattr(adaptive, _name)

project = "adaptive-train"
author = "the authors of adaptive-train"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
include_patterns = ["*.md", "policies/README.md", "docs/**.md"]
root_doc = "README"

html_theme = "furo"
html_title = "adaptive-train"
html_extra_path = ["index.html"]  # opens README.html
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # keeps the dashes of --flags

myst_heading_anchors = 6  # anchors like those of GitHub
highlight_language = "sh"  # indented blocks are commands
default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "exclude-members": "model_config"}
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

NAVIGATION = {
    "Tutorials": ("docs/tutorials", ["first-run", "click-log", "growing-folder", "thirty-days", "own-model", "policy"]),
    "How-to guides": (
        "docs/how-to",
        [
            "How do I ...? </docs/how-to/index>",
            "install",
            "Run, stop, resume </docs/how-to/running>",
            "Data </docs/how-to/data>",
            "Ids that come and go </docs/how-to/ids>",
            "Policy and device rows </docs/how-to/choose-a-policy>",
            "Your own model </docs/how-to/own-model>",
            "Your own loop </docs/how-to/own-loop>",
            "What you know from PyTorch </docs/how-to/pytorch>",
            "Write a policy </policies/README>",
            "Serve a trained run </docs/how-to/serving>",
            "Look before you train </docs/how-to/profiling>",
        ],
    ),
    "Reference": (
        "docs/reference",
        ["cli", "settings", "models", "batches", "api", "files", "exit-codes", "limits", "glossary"],
    ),
    "Explanation": (
        "docs/explanation",
        ["design", "keys", "skipping", "quality", "ranks", "gpu", "ngram-memory"],
    ),
    "Coming from": ("docs/coming-from", ["Overview </docs/coming-from/index>"]),
    "Benchmarks": (
        "docs/benchmarks",
        ["Overview </docs/benchmarks/index>", "cpu", "gpu", "skipping", "LOG", "/docs/comparison"],
    ),
    "Project": ("", ["CHANGELOG", "CONTRIBUTING", "SECURITY"]),
}
"""Sections of the sidebar: a folder and its first pages, in order. Other pages of the folder follow by name."""


def navigation() -> str:
    """Return the sidebar's contents as directives."""
    root = Path(__file__).parents[1]
    parts = []
    for caption, (folder, first) in NAVIGATION.items():
        entries = [page if "/" in page else f"/{folder}/{page}".replace("//", "/") for page in first]
        known = {root_doc, *(entry.rsplit("/", 1)[1].rstrip(">") for entry in entries)}
        others = sorted(path.relative_to(root) for path in (root / folder).glob("*.md") if path.stem not in known)
        entries += [f"/{page.with_suffix('').as_posix()}" for page in others]
        if entries:
            parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", *entries, "```"]))
    return "\n\n".join(parts)


def add_navigation(app: Any, docname: str, source: list[str]) -> None:
    """Append the sidebar's contents to the front page, so that the README on GitHub shows none of it."""
    if docname == root_doc:
        source[0] += f"\n\n{navigation()}\n"


def adapt_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn Markdown habits of docstrings into what Sphinx reads: indented code blocks, and `name`s with a plural s."""
    text = re.sub(r"(?<!`)`([^`\n]+)`(?=\w)", r"`\1`\\ ", "\n".join(lines))
    text = re.sub(r"(?m)^(?=\S)(.*)\n\n(?=    )", r"\1\n\n.. code-block:: default\n\n", text)
    if what in ("attribute", "property") and ":" in text.partition("\n")[0]:
        text = f":{text}"  # napoleon takes what precedes the first colon for the type: let that be empty
    lines[:] = text.split("\n")


def setup(app: Any) -> None:
    """Write the generated pages, and register the hooks with Sphinx."""
    generate.write()
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", adapt_docstring, priority=400)  # before napoleon
