"""The Python blocks of a page are one program that runs without warnings and prints what the page shows."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT, blocks, run

import adaptive

BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.S | re.M)
PAGES = {
    page: BLOCK.findall(page.read_text(encoding="utf-8"))
    for page in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "policies/README.md"])
    if "tutorials" not in page.parts and page.stem != "pytorch"  # run block by block
}
PROGRAMS = {page.stem: ("\n".join(code for code, _ in found), "".join(text for _, text in found))
            for page, found in PAGES.items() if found}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_python_blocks_run_as_one_program(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
    code, shown = PROGRAMS[name]
    printed = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert not shown or printed == shown


@pytest.mark.nightly
def test_parquet_is_read_from_a_folder_as_from_an_object_store(tmp_path: Path) -> None:
    """docs/how-to/index.md: the loader for S3 reads a local folder by the same lines."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"user": [7, 8, 9], "item": [1, 2, 3], "click": [0, 1, 1], "other": ["a", "b", "c"]})
    (tmp_path / "clicks").mkdir()
    parquet.write_table(table, tmp_path / "clicks/a.parquet")
    (code,) = (code for code, _ in PAGES[ROOT / "docs/how-to/index.md"])
    check = "print([(batch.ids.tolist(), batch.labels.tolist()) for batch in batches('clicks', 2)])"
    assert (
        run([sys.executable, "-c", f"{code}\n{check}"], tmp_path) == "[([7, 8, 1, 2], [0.0, 1.0]), ([9, 3], [1.0])]\n"
    )


@pytest.mark.nightly
def test_simulated_hits_are_those_of_the_page(tmp_path: Path) -> None:
    """docs/how-to/choose-a-policy.md: the table is what the command above it counts."""
    text = (ROOT / "docs/how-to/choose-a-policy.md").read_text(encoding="utf-8")
    shown = text.split("<!-- simulated -->")[1].split("<!-- end of simulated -->")[0]
    (command,) = re.findall(r"^    adaptive-train (simulate --policies lru,lfu,static.*)$", text, re.M)
    printed = run([sys.executable, "-m", "adaptive", *command.split()], tmp_path)
    lines = [line.replace(" %", "%").split() for line in printed.splitlines()]
    for row in shown.strip().splitlines()[2:]:
        policy, share, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        (hits,) = [line[3:7] for line in lines if line[:1] + line[2:3] == [policy, f"{float(share[:-1])}%"]][:1]
        assert hits == cells, policy


def test_every_message_that_is_explained_is_one_of_the_package() -> None:
    joined = re.sub(r'"\s*f?"', "", "".join(path.read_text() for path in Path(adaptive.__file__).parent.rglob("*.py")))
    messages = re.findall(r"^### `(.*)`$", (ROOT / "docs/how-to/errors.md").read_text(), re.M)
    assert len(messages) > 15
    assert [message for message in messages if message not in joined] == []


@pytest.mark.nightly
def test_the_blocks_run_where_their_library_is_installed() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    ran, page = 0, ROOT / "docs/how-to/pytorch.md"
    for kind, code in blocks(page):
        assert kind == "python"
        if all(find_spec(library) for library in re.findall(r"^import (\w+)", code, re.M)):
            exec(compile(code, str(page), "exec"), names)  # noqa: S102 (our own page)
            ran += 1
    assert ran >= 9
