"""The TensorBoard view, read back with TensorBoard's own reader."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.records import interval_record
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from adaptive.training.telemetry import tensorboard_view
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.record import (
    EvalRecord,
    IntervalRecord,
    ResumeRecord,
    TableCounts,
)
from adaptive.training.telemetry.tensorboard_view import TensorBoardView

COUNTS = TableCounts(
    lookups=100,
    lookup_hits=75,
    unique_rows=40,
    row_hits=10,
    resident_rows=500,
    admitted=30,
    evicted=20,
    fetched=29,
    written_back=19,
    bytes_h2d=2900,
    bytes_d2h=1900,
    hot_rows=8,
    saturated_rows=3,
    skipped_updates=10,
    deferred_updates=4,
    skipped_lookups=20,
)
EMPTY = TableCounts()
TIER_TAGS = {
    "3_tiers/hit_rate": 0.75,
    "3_tiers/row_hit_rate": 0.25,
    "3_tiers/resident_rows": 500,
    "3_tiers/device_rows": 600,
    "3_tiers/admitted_rows_per_step": 3,
    "3_tiers/evicted_rows_per_step": 2,
    "3_tiers/fetched_rows_per_step": 2.9,
    "3_tiers/written_back_rows_per_step": 1.9,
    "3_tiers/kib_to_device_per_step": 290 / 1024,
    "3_tiers/kib_to_host_per_step": 190 / 1024,
}
SKIPPING_TAGS = {
    "4_skipping/hot_rows": 8,
    "4_skipping/saturated_rows": 3,
    "4_skipping/saturated_row_share": 0.375,
    "4_skipping/skipped_update_share": 0.25,
    "4_skipping/deferred_update_share": 0.1,
}
TABLE_TAGS = {
    "7_tables/{}/hit_rate": 0.75,
    "7_tables/{}/row_hit_rate": 0.25,
    "7_tables/{}/resident_rows": 500,
    "7_tables/{}/admitted_rows_per_step": 3,
    "7_tables/{}/saturated_rows": 3,
    "7_tables/{}/skipped_update_share": 0.25,
}


def interval(step: int = 10, **changes) -> IntervalRecord:
    return interval_record(step, **{"tables": {"site": COUNTS, "user": EMPTY}, "device_rows": 600} | changes)


def read(directory: Path) -> EventAccumulator:
    # every event file of the directory, as TensorBoard itself does
    return EventAccumulator(str(directory)).Reload()


def latest(directory: Path) -> dict[str, float]:
    accumulator = read(directory)
    return {tag: accumulator.Scalars(tag)[-1].value for tag in accumulator.Tags()["scalars"]}


def steps(directory: Path, tag: str = "1_training/loss") -> list[int]:
    return [event.step for event in read(directory).Scalars(tag)]


def view_of(directory: Path, names: list[str], **more) -> TensorBoardView:
    return TensorBoardView(directory, dict.fromkeys(names, 9), skips=True, **more)


def write_all(view, *records) -> None:
    for record in records:
        view.write(record)
    view.close()


def test_tags_and_values(tmp_path):
    write_all(
        view_of(tmp_path, ["site", "user"]),
        interval(10),
        EvalRecord(step=10, samples=64, auc=0.5, log_loss=0.125, accuracy=0.375),
    )
    found = latest(tmp_path)
    expected = {
        "1_training/loss": 0.5,
        "1_training/auc_so_far": 0.75,
        "1_training/log_loss_so_far": 0.25,
        "1_training/accuracy_so_far": 0.625,
        "1_training/samples_per_s": 1000,
        "2_evaluation/auc": 0.5,
        "2_evaluation/log_loss": 0.125,
        "2_evaluation/accuracy": 0.375,
        "5_time/plan_ms": 0.25,
        "5_time/wait_ms": 2,
        "6_policy/score_ms": 1.5,
        **TIER_TAGS,
        **SKIPPING_TAGS,
        **{tag.format("site"): value for tag, value in TABLE_TAGS.items()},
    }
    assert {tag: found[tag] for tag in expected} == pytest.approx(expected)
    assert found["7_tables/user/admitted_rows_per_step"] == 0
    assert "7_tables/user/hit_rate" not in found  # no lookups: unknown, not 0
    spread = {f"3_tiers/{rate}_of_tables_p{p}" for rate in ("hit_rate", "row_hit_rate") for p in (5, 50, 95)}
    assert set(found) - set(expected) - spread == {
        tag.format("user") for tag in TABLE_TAGS if not tag.endswith(("_rate", "_share"))
    }


def test_counts_are_per_step(tmp_path):
    short = replace(COUNTS, admitted=12)
    view = view_of(tmp_path, ["site"])
    write_all(view, interval(10), interval(14, tables={"site": short}))
    assert [event.value for event in read(tmp_path).Scalars("3_tiers/admitted_rows_per_step")] == [3, 3]
    resumed = view_of(tmp_path / "resumed", ["site"])
    write_all(resumed, ResumeRecord(step=1000, dropped=0), interval(1004, tables={"site": short}))
    assert latest(tmp_path / "resumed")["7_tables/site/admitted_rows_per_step"] == 3


def page_of(directory):
    """The page that TensorBoard shows: that of the last layout."""
    event = read(directory).Tensors("custom_scalars__config__")[-1]
    (page,) = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]).category
    return page


def test_layout_has_one_page_whose_tags_exist(tmp_path):
    write_all(view_of(tmp_path, ["site", "user"]), interval())
    accumulator = read(tmp_path)
    page = page_of(tmp_path)
    assert page.title == "Tier movement"
    lines = {chart.title: list(chart.multiline.tag) for chart in page.chart if chart.HasField("multiline")}
    assert all(len(tags) == 1 for tags in lines.values())  # two lines of a run would have one colour
    assert lines["training loss (equal runs share one line)"] == ["^1_training/loss$"]
    assert lines["rows admitted to the device per step"] == ["^3_tiers/admitted_rows_per_step$"]
    bands = {chart.title: [(s.lower, s.value, s.upper) for s in chart.margin.series] for chart in page.chart}
    assert bands["rows on the device (band: free slots)"] == [
        ("3_tiers/resident_rows", "3_tiers/resident_rows", "3_tiers/device_rows")
    ]
    assert bands["hit rate of the median table (band: 5% to 95% of tables)"] == [
        tuple(f"3_tiers/hit_rate_of_tables_p{p}" for p in (5, 50, 95))
    ]
    margins = [series for chart in page.chart for series in chart.margin.series]
    assert len(lines) + len(margins) == len(page.chart)
    used = {tag.strip("^$") for tags in lines.values() for tag in tags}
    used |= {tag for s in margins for tag in (s.lower, s.value, s.upper)}
    assert used <= set(accumulator.Tags()["scalars"])


def test_many_tables_show_the_largest_and_the_rest_as_one(tmp_path):
    names = [f"t{i}" for i in range(40)]
    tables = {name: replace(EMPTY, admitted=1, lookups=10, lookup_hits=index) for index, name in enumerate(names)}
    sizes = [1000 - i if i % 5 else 1 for i in range(40)]  # t0, t5, ... t35 are the smallest eight
    write_all(TensorBoardView(tmp_path, dict(zip(names, sizes, strict=True)), skips=True), interval(tables=tables))
    found = latest(tmp_path)
    shown = {tag.split("/")[1] for tag in found if tag.startswith("7_tables/")} - {"(other tables)"}
    assert shown == {name for index, name in enumerate(names) if index % 5}
    assert found["7_tables/(other tables)/admitted_rows_per_step"] == pytest.approx(0.8)
    assert found["3_tiers/admitted_rows_per_step"] == 4
    assert found["7_tables/(other tables)/hit_rate"] == pytest.approx(sum(range(0, 40, 5)) / 80)


def test_a_removed_directory_is_created_again(tmp_path, caplog):
    """On Linux writes to a removed file succeed, but are lost."""
    directory = tmp_path / "tensorboard"
    view = view_of(directory, ["site"])
    view.write(interval(10))
    for step in (20, 40):
        shutil.rmtree(directory)
        view.write(interval(step))  # found out here
        view.write(interval(step + 10))
    assert steps(directory) == [50]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "training continues" in caplog.text
    assert read(directory).Tags()["tensors"] == ["custom_scalars__config__"]  # the new file has the layout too
    view.close()
    assert "lost 2 event(s)" in caplog.messages[-1]


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_partial_write_is_followed_by_a_new_file(tmp_path, monkeypatch, size):
    """Complete records in the first file stay readable, with a partial record at its end."""
    view = view_of(tmp_path, ["site"])
    view.write(interval(10))

    def torn(self, event):
        self._file.write(event.SerializeToString()[:size])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensorboard_view.EventFile, "_put", torn)
        view.write(interval(20))
    view.write(interval(30))
    view.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert steps(tmp_path) == [10, 30]


def test_a_resumed_run_repeats_its_last_step(tmp_path):
    """An earlier file may lack it. Until then there is no file, which a run that cannot begin would leave open."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (10, 20):
        metrics.write(interval(step, wall_time=1e9 + step))
    write_all(view_of(tmp_path / "view", ["site"]), interval(10, wall_time=1e9 + 10))
    view = TensorBoardView.resumed(tmp_path / "view", {"site": 4}, metrics.path, 20, skips=True)
    assert steps(tmp_path / "view") == [10] and len(list((tmp_path / "view").iterdir())) == 1
    write_all(view, ResumeRecord(step=20, dropped=0, wall_time=1e9 + 40), interval(30, wall_time=1e9 + 50))
    assert steps(tmp_path / "view") == [10, 20, 30]


def test_without_a_skip_rule_nothing_is_shown_about_skipping(tmp_path):
    write_all(TensorBoardView(tmp_path, {"site": 9}, skips=False), interval(10))
    assert not [tag for tag in latest(tmp_path) if "skip" in tag or "satur" in tag]
    assert not [chart for chart in page_of(tmp_path).chart if "skip" in chart.title or "satur" in chart.title]
