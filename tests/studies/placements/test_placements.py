"""The model of placements, by hand on made-up machines and shapes, and in papers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive.errors import ConfigError
from adaptive.storage.presets import names_in
from adaptive.studies.machines import MachineSpec, load_machine
from adaptive.studies.placements.placement_report import draw_placements, heat_map, lines_table, placements_document
from adaptive.studies.placements.placement_study import compare_placements, from_profile
from adaptive.studies.placements.shape import SHAPES, Shape, load_shape, parse_sweep, with_values
from adaptive.studies.step_model import PLACEMENTS, POLICIES, Locality, StepModel, rates_of

LOCALITY = Locality("made up", (0.1, 0.5), (0.8, 0.95), (0.2, 0.6), (64.0, 1024.0), (0.6, 0.4))
SHAPE = Shape(
    name="s", num_dense=4, num_sparse=2, lookups=3, hash_size=1000, width=8, bottom_mlp="16-8", top_mlp="8-1",
    batch_size=64,
)  # fmt: skip
ASSUMED = {"gpu_bandwidth": 1, "host_bandwidth": 1, "flops": 1, "link": 1}


def machine(**more: Any) -> MachineSpec:
    gpu = {"count": 2, "memory": 1e9, "bandwidth": 1e9, "flops": 1e9, "link": 5e8}
    host = {"memory": 1e12, "bandwidth": 1e8, "flops": 1e8, "link": 1e7}
    network = {"rate": 1e6, "servers": 2, "bandwidth": 1e8}
    fields = {"name": "m", "gpu": gpu, "host": host, "network": network, "assumed": ASSUMED, "watts": 10.0} | more
    return MachineSpec.model_validate(fields)


def test_terms_equal_a_case_worked_by_hand() -> None:
    model = StepModel(SHAPE, rates_of(machine()), LOCALITY)
    lookups, vectors = 64 * 2 * 3, 64 * 2 * 32  # bytes of vectors
    distinct = lookups * 0.6
    rows = lookups * 32 + 2 * vectors + 2 * distinct * 36
    weights = 4 * 16 + 16 * 8 + (3 + 8) * 8 + 8  # 3 products of pairs, 8 values of the bottom MLP
    flops = 64 * 6 * (weights + 3 * 8)
    dense = 1e3 * (flops / 2e9 + 2 * 4 * weights * 1 / 1e9)
    exchange = 1e3 * 2 * vectors * 0.5 / 1e9
    assert (SHAPE.weights, SHAPE.table_bytes) == (weights, 72_000)
    assert model.placed("device").step_ms == pytest.approx(1e3 * rows / 2e9 + exchange + dense)
    assert model.placed("host").step_ms == pytest.approx(1e3 * rows / 1e8 + 1e3 * 2 * vectors / 2e7 + dense)
    assert model.placed("remote").step_ms == pytest.approx(1e3 * rows / 2e8 + 1e3 * 2 * vectors / 1e6 + dense)
    assert model.placed("remote").limit == "network"


def test_tables_beyond_the_device_are_cached() -> None:
    model = StepModel(SHAPE, rates_of(machine()), LOCALITY, device_share=0.5)
    assert (model.covered, model.hot) == (0.95, 0.6)
    assert not model.placed("device").fits
    device, misses = sum(model.on_device().values()), model.misses()
    size = 0.05 * 64 * 2 * 3 * 36
    assert misses == pytest.approx({"link": 1e3 * size / 2e7, "host memory": 1e3 * 2 * size / 1e8})
    assert model.placed("lfu").step_ms == pytest.approx(device + sum(misses.values()))
    assert model.placed("scratchpipe").step_ms == pytest.approx(max(device, *misses.values()))
    assert model.placed("hotline").step_ms == pytest.approx(max(0.6 * device, sum(misses.values())) + 0.4 * device)
    whole = model.placed("tables")
    assert whole.note == "1 of 2 tables on the device" and whole.parts_ms is not None
    half = sum(model.on_host().values()) + model.traffic.rows_ms(2e9) + model.exchange_ms()
    assert whole.step_ms == pytest.approx(0.5 * half + model.dense_ms())
    fae = model.placed("fae")
    assert fae.step_ms is not None and fae.step_ms >= 0.6 * device + 0.4 * (
        sum(model.on_host().values()) + model.dense_ms()
    )


def test_a_machine_without_accelerators_has_two_placements() -> None:
    model = StepModel(SHAPE, rates_of(machine(gpu=None)), LOCALITY)
    fitting = {name for name in PLACEMENTS if model.placed(name).fits}
    assert fitting == {"host", "remote"}
    too_large = StepModel(SHAPE.model_copy(update={"hash_size": 10**12}), rates_of(machine()), LOCALITY)
    assert [name for name in PLACEMENTS if too_large.placed(name).fits] == ["remote"]


def test_locality_interpolates_between_counts() -> None:
    assert [LOCALITY.lookup_share(x) for x in (0.0, 0.05, 0.1, 0.3, 1.0)] == pytest.approx([0, 0.4, 0.8, 0.875, 1])
    assert LOCALITY.hot_inputs(0.75) == pytest.approx(0.8)
    assert LOCALITY.distinct_share(256) == pytest.approx(0.5) and LOCALITY.distinct_share(10**6) == 0.4
    hot = SimpleNamespace(rows_that_fit=5, lookup_share=0.5, hot_input_share=0.1)
    reuse = SimpleNamespace(distinct_by_batch_size={"4": 20.0})
    data: Any = SimpleNamespace(lookups=100, samples=10, rows=50, reuse=reuse, hot=[hot])
    assert from_profile(data, "x") == Locality("x", (0.1,), (0.5,), (0.1,), (4.0,), (0.5,))


def test_placements_rank_as_published() -> None:
    """Acun et al. (arXiv 2011.05497), figure 14 for M2: on Big Basin the accelerators are faster than its host, by
    2.9x here; Zion's host is faster than Big Basin's."""
    shape = load_shape("m2prod")
    result = {
        (name, placement): StepModel(shape, rates_of(load_machine(name)), LOCALITY).placed(placement).step_ms or 0.0
        for name in ("big-basin", "zion", "dual-cpu")
        for placement in ("device", "host")
    }
    assert 2 < result["big-basin", "host"] / result["big-basin", "device"] < 4
    assert result["zion", "host"] < result["big-basin", "host"] < result["dual-cpu", "host"]
    assert result["zion", "device"] > result["big-basin", "device"]  # its accelerators talk through the host


@pytest.mark.parametrize("name", names_in(SHAPES))
def test_every_shape_names_its_source(name: str) -> None:
    shape = load_shape(name)
    assert shape.name == name and shape.source and shape.weights > 0


def test_sweeps_have_a_line_for_each_point(tmp_path: Path) -> None:
    assert parse_sweep("mlp=64^2, 128^3") == ("mlp", ["64^2", "128^3"])
    swept = with_values(SHAPE, ["mlp", "num_dense"], ["64^2", "7"])
    assert (swept.bottom_mlp, swept.top_mlp, swept.num_dense) == ("64-64-8", "64-64-1", 7)
    for text in ("speed=1,2", "num_dense=", "num_dense"):
        with pytest.raises(ConfigError, match="expected KEY=VALUE"):
            parse_sweep(text)
    with pytest.raises(ConfigError, match="whole number"):
        with_values(SHAPE, ["lookups"], ["many"])
    sweeps = [("num_dense", ["4", "8"]), ("lookups", ["1", "2", "3"])]
    result = compare_placements(
        [SHAPE], [machine(), machine(name="n", gpu=None)], ["device", "host"], LOCALITY, sweeps=sweeps
    )
    rows, columns, numbers, _ = heat_map(result)
    assert (rows, columns) == (["4", "8"], ["1", "2", "3"])
    best = max(line.samples_per_s or 0 for line in result.lines[:2])
    base = next(line.samples_per_s for line in result.lines if (line.machine, line.placement) == ("n", "host")) or 0
    assert numbers[0][0] == pytest.approx(best / base)
    for count in (0, 1, 2):
        part = compare_placements([SHAPE], [machine()], ["device", "host"], LOCALITY, sweeps=sweeps[:count])
        assert draw_placements(part, tmp_path).stat().st_size > 5_000


def test_lines_have_rates_per_watt() -> None:
    powered = machine().model_copy(update={"watts": 20.0})
    result = compare_placements([SHAPE], [powered], ["device", "host", "remote"], LOCALITY)
    device, host, _ = result.lines
    assert host.step_ms and device.step_ms and device.samples_per_s
    assert host.of_host == 1 and device.of_host == pytest.approx(host.step_ms / device.step_ms)
    assert device.samples_per_s_per_watt == pytest.approx(device.samples_per_s / 20)
    assert len(lines_table(result)) == 4 and "modeled" in placements_document(result).to_text()
    with pytest.raises(ConfigError, match="expected some of device, host"):
        compare_placements([SHAPE], [machine()], ["gpu"], LOCALITY)


def test_every_trainable_placement_is_a_policy() -> None:
    from adaptive.plugins import installed_policies

    assert set(POLICIES.values()) <= set(installed_policies()) and set(POLICIES) == set(PLACEMENTS) - {"remote"}


def test_zions_failed_claim_has_a_known_cause() -> None:
    """The script `zion` reports these numbers if its claim on figure 14 fails."""
    shape, rates = load_shape("m2prod"), rates_of(load_machine("zion"))
    over_host, parts = [], {}
    for distinct in (0.02, 1.0):
        flat = Locality("made up", (0.1,), (0.9,), (0.3,), (64.0, 65_536.0), (distinct, distinct))
        model = StepModel(shape, rates, flat)
        host, device = model.placed("host"), model.placed("device")
        assert host.step_ms is not None and device.step_ms is not None and device.parts_ms is not None
        over_host.append(host.step_ms / device.step_ms)
        parts = device.parts_ms
    assert [round(ratio, 2) for ratio in over_host] == [1.02, 1.25]
    assert round(parts["exchange"], 1) == 3.3
    wanted = 4.2 / 1.35 * host.step_ms - sum(ms for name, ms in parts.items() if name != "exchange")
    assert wanted / parts["exchange"] > 10
