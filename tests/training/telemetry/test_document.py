"""One document as text, Markdown and CSV."""

import csv
import io

from adaptive.training.telemetry.formatting import WIDTH, Document, Items, Note, Table, csv_text

WIDE = [["name", "kind", *(f"column {n}" for n in range(20))], ["a|b", "x", *(str(n * 1000) for n in range(20))]]
DOCUMENT = Document(
    [
        Note("words " * 40),
        Table(WIDE, keys=2),
        Items(["a line of more than a hundred characters, as a command may be: " + "x" * 90, "second"]),
        Items([]),
    ]
)


def test_text_splits_wide_tables() -> None:
    lines = DOCUMENT.to_text().splitlines()
    assert [line[:6] for line in lines if len(line) > WIDTH] == ["a line"]  # never broken, so that it can be copied
    assert lines[0].startswith("words words")
    heads = [line.split() for line in lines if line.startswith("name")]
    assert len(heads) == 3 and all(head[:2] == ["name", "kind"] for head in heads)
    assert [word for head in heads for word in head if word.isdigit()] == list(map(str, range(20)))
    assert not DOCUMENT.to_text().endswith("\n")


def test_markdown_and_csv_keep_tables_whole() -> None:
    text = DOCUMENT.to_markdown()
    assert "| a\\|b | x | 0 | 1000 |" in text and "\n- second\n" in text
    assert text.count("| name | kind |") == 1
    assert list(csv.reader(io.StringIO(csv_text(WIDE)))) == WIDE
