"""Numbers as text, and the first line of a run: placement policy, skip rule and mode."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.toy import ToyData, toy_config

from adaptive.policy import RowStats, SkipRule
from adaptive.training.components import build
from adaptive.training.telemetry.formatting import (
    WIDTH,
    Document,
    Items,
    Note,
    Table,
    accuracy_text,
    bytes_text,
    count_text,
    csv_text,
    duration_text,
    number_text,
    percent_text,
    policy_text,
    score_text,
    skip_text,
)

PREFETCHES, ON_HOST = "prefetches missed rows; ", "leaves missed rows on the host; "


@pytest.mark.parametrize(
    ("policy", "options", "skip", "expected"),
    [
        ("lru", {}, {}, PREFETCHES + "skips no updates"),
        ("hybrid", {}, {}, ON_HOST + "skips no updates"),
        (
            "slipstream",
            {},
            {},
            PREFETCHES + "skip rule DeferAndPredict accumulates updates for up to 16 visits of a row and drops inputs",
        ),
        (
            "slipstream",
            {},
            {"rule": "defer+at_most=3"},
            PREFETCHES + "skip rule Defer accumulates updates for up to 3 visits of a row",
        ),
        ("slipstream", {}, {"rule": "off"}, PREFETCHES + "skips no updates"),
    ],
)
def test_policy_text_names_policy_and_skip_rule(policy: str, options: dict[str, Any], skip: Any, expected: str) -> None:
    tier = {"device_rows": "auto"}
    data = ToyData()
    config = toy_config(policy=policy, policy_options=options, skip=skip, tier=tier)
    parts = build(config, data, list(data.train(32))[:2])
    with parts.embeddings as embeddings:
        found = policy_text(policy, embeddings.policy, embeddings.rule)
    assert found == f"policy {policy}: {expected}"


def test_a_rule_without_a_bound_of_its_own_prints_none() -> None:
    class Custom(SkipRule):
        def visits(self, rows: RowStats) -> NDArray[np.int64]:
            return np.ones(len(rows), np.int64)

    assert skip_text(Custom()) == "skip rule Custom accumulates updates"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(1234567), "1,234,567"),
        (count_text(None), "-"),
        (score_text(0.73126), "0.7313"),
        (percent_text(0.9116), "91.2%"),
        (percent_text(1e-6), "<0.1%"),
        (percent_text(0.99999), ">99.9%"),
        (accuracy_text(0.78864), "78.86%"),
        (number_text("swaps", 1234.0), "1,234"),
        (number_text("waited_share", 0.5), "50.0%"),
        (bytes_text(0), "0 B"),
        (bytes_text(1023.99), "1.0 KiB"),
        (bytes_text(1536), "1.5 KiB"),
        (bytes_text(5 << 50), "5120.0 TiB"),
        (duration_text(59.6), "0:01:00"),
        (duration_text(360125), "100:02:05"),
    ],
)
def test_numbers_as_text(text, expected):
    assert text == expected


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
