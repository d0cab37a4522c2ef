"""Traffic between rows and the files of the host tier, in runs and comparisons."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from support.toy import toy_config
from support.toy_runs import train_all

from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.studies.compare import Comparison, Contender
from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
from adaptive.studies.compare.verdicts import judge
from adaptive.training.runs import train_run

NAMES = {"host_bytes_read", "host_bytes_written"}


def in_files(directory: Path, policy: str, **changed: Any) -> Any:
    tier = {"device_rows": "60%", "host": f"mmap:{directory}"}
    return toy_config(policy=policy, tier=tier, depth=1, out=str(directory / "out"), **changed)


def test_a_run_counts_only_what_training_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written-back rows count once; reads by evaluations and saving do not count."""
    totals: list[dict[str, int]] = []
    close = TieredEmbeddingBag.close

    def closing(embeddings: TieredEmbeddingBag) -> None:
        totals.append(embeddings.statistics.host_io())
        close(embeddings)

    monkeypatch.setattr(TieredEmbeddingBag, "close", closing)
    result = train_run(in_files(tmp_path, "lru", epochs=2))
    whole_run = totals[-1]  # a rehearsal that compiles kernels may close one before
    row_bytes = 4 * (4 + 1)
    assert result["written_back_rows"] > 0
    assert result["host_bytes_written"] == result["written_back_rows"] * row_bytes == whole_run["bytes_written"]
    assert 0 < result["host_bytes_read"] < whole_run["bytes_read"]
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["summary"]["host_bytes_read"] == result["host_bytes_read"]


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "host"), [("lru", "memory"), ("hybrid", "files")])
def test_counts_that_do_not_exist_are_none(tmp_path: Path, policy: str, host: str) -> None:
    """Rows in memory, and rows of a memory-mapped file that are used in place."""
    config = in_files(tmp_path, policy, steps=2)
    if host == "memory":
        config = config.model_copy(update={"tier": config.tier.model_copy(update={"host": "memory"})})
    if policy == "hybrid":
        config = config.model_copy(update={"tier": config.tier.model_copy(update={"device_rows": "auto"})})
    assert not NAMES & set(train_run(config))


def test_a_comparison_shows_counts_per_step(tmp_path: Path) -> None:
    rivals = [Contender("lru", in_files(tmp_path, "lru", save=False, epochs=2))]
    for policy in ("device", "hybrid"):
        config = in_files(tmp_path, policy, save=False, epochs=2)
        tier = config.tier.model_copy(update={"device_rows": "auto"})
        rivals.append(Contender(policy, config.model_copy(update={"tier": tier})))
    result = judge(train_all(rivals, 1, tmp_path / "compared"), auc_budget=0.0005)
    assert result.problems == []
    lru, device, hybrid = result.policies
    assert lru.host_bytes_written == lru.written_back_rows * 20 > 0 < lru.host_bytes_read
    assert (device.host_bytes_read, device.host_bytes_written) == (0, 0) and hybrid.host_bytes_read is None
    lines = list(csv.DictReader(io.StringIO(comparison_csv(result))))
    assert [float(line["host_bytes_read"] or "nan") for line in lines[:2]] == [lru.host_bytes_read, 0]
    assert lines[2]["host_bytes_read"] == lines[2]["host_bytes_written"] == ""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table_of(result))
    first = head.index("from files")
    assert head[first : first + 2] == ["from files", "to files"]
    assert [row[first : first + 2] for row in rows][1:] == [["0 B", "0 B"], ["-", "-"]]
    assert rows[0][first + 1] == f"{lru.host_bytes_written / lru.steps:.0f} B"
    assert "to files (-: rows used in place, not counted): per step" in comparison_document(result).to_markdown()


def table_of(result: Comparison) -> list[str]:
    """The lines of the first table of the Markdown."""
    return comparison_document(result).to_markdown().split("\n\n")[0].splitlines()
