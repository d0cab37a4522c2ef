"""The documentation site: links are right there, the reference is complete, and it builds without a warning."""

import subprocess
import sys
from pathlib import Path

import pytest

import adaptive

pytest.importorskip("mkdocs", reason="the site needs the extra docs")
ROOT = Path(adaptive.__file__).parent.parent
sys.path.append(str(ROOT / "scripts"))
from site_pages import PAGES, reference, with_links  # type: ignore[import-not-found]  # noqa: E402

sys.path.remove(str(ROOT / "scripts"))


def test_links_point_to_pages_of_the_site() -> None:
    text = "[a](docs/how-to/data.md#parquet) [b](https://x.org) [c](LICENSE) ![d](docs/images/a.png) [e](#here)"
    wanted = "[a](how-to/data.md#parquet) [b](https://x.org) c (`LICENSE`) ![d](images/a.png) [e](#here)"
    assert with_links(text, "README.md") == wanted
    assert (
        with_links("[a](../../README.md#numbers) [b](data.md)", "docs/how-to/limits.md")
        == "[a](../index.md#numbers) [b](data.md)"
    )
    assert with_links("```\n[a](docs/how-to/data.md)\n```\n", "README.md") == "```\n[a](docs/how-to/data.md)\n```\n"
    with pytest.raises(FileNotFoundError, match=r"README\.md: a link to docs2/gone\.md"):
        with_links("[a](docs2/gone.md)", "README.md")


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    pages = (
        {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
        | set(PAGES.values())
        | {"api.md"}
    )
    assert [page for page in sorted(pages) if f": {page}\n" not in text] == []


def test_the_reference_has_every_public_name() -> None:
    found = reference()
    for name in adaptive.__all__:
        assert f".{name}\n" in found, name


@pytest.mark.nightly
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/api.html").read_text()
    assert all(f'id="adaptive.{home}.{name}"' in page for name, home in adaptive._HOMES.items())
