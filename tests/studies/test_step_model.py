"""Machine files, and milliseconds of a step by hand."""

from pathlib import Path
from typing import Any

import pytest

from adaptive.errors import ConfigError
from adaptive.storage.presets import names_in
from adaptive.studies.machines import PRESETS, MachineSpec, load_machine, machine_toml
from adaptive.studies.step_model import Machine, Traffic, described, expected_ms, step_ms

MACHINE = Machine(link=50e9, device=4e12, host=1e11, dense_ms=1.0)
MEASURED = {
    "device": 2e9, "host": 1e9, "move": 5e8, "dense_ms": 3.0, "flops_per_sample": 100.0, "batch_size": 10,
    "overlap_staged": 0.5, "overlap_host": 0.25, "plan_factor": 2.0, "vectors_cross": False, "depth": 4,
}  # fmt: skip
TRAFFIC = Traffic(
    lookups=1000, lookup_hits=800, rows=500, row_hits=400, vectors=1000, host_vectors=0, fetched=100, written_back=60,
    value_bytes=64, row_bytes=68,
)  # fmt: skip


def test_every_preset_names_its_source() -> None:
    assert {"dual-cpu", "big-basin", "zion", "v100-pcie3", "a100", "h200"} <= set(names_in(PRESETS))
    for name in names_in(PRESETS):
        spec = load_machine(name)
        assert spec.name == name and spec.source and spec.host is not None and spec.watts


def test_machine_files_read_as_written(tmp_path: Path) -> None:
    spec = MachineSpec.model_validate({"name": 'a "b" \\', "measured": MEASURED, "host": load_machine("zion").host})
    (tmp_path / "m.toml").write_text(machine_toml(spec))
    assert load_machine(str(tmp_path / "m.toml")) == spec
    for name in names_in(PRESETS):
        (tmp_path / f"{name}.toml").write_text(machine_toml(load_machine(name)))
        assert load_machine(str(tmp_path / f"{name}.toml")) == load_machine(name)


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("name = 3", "name"),
        ('name = "x"\n[gpu]\ncount = 1\nmemory = "16"', "gpu.memory.*such as 32GB"),
        ('name = "x"\nspeed = 3', "speed"),
        ("name = ", "machine file"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, needed: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(ConfigError, match=needed):
        load_machine(str(tmp_path / "m.toml"))


def test_a_missing_machine_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"expected a file or .* one of these names: a100, big-basin"):
        load_machine("bigbasin")
    with pytest.raises(ConfigError, match=r"expected \[measured\] or \[host\], got neither"):
        described(MachineSpec(name="empty"), flops_per_sample=1.0, batch_size=1)


def test_the_expected_step_equals_a_case_by_hand() -> None:
    machine = described(MachineSpec(name="m", measured=MEASURED), flops_per_sample=200.0, batch_size=20)  # type: ignore[arg-type]
    assert machine.dense_ms == 12.0  # four times the operations
    work = 1000 * 64 + 2 * 1000 * 64 + 2 * 500 * 68
    train = 1e3 * work / 2e9 + 12.0
    look = 0.7 + 2.0 * 0.3 + 1e3 * 160 * 68 / 5e8
    result = expected_ms(TRAFFIC, machine, staged=True, plan_ms=0.3, read_ms=0.7, depth=4)
    assert result == pytest.approx(train + look - 0.5 * look)
    assert expected_ms(TRAFFIC, machine, staged=True, plan_ms=0.3, read_ms=0.7, depth=0) == pytest.approx(train + look)
    # nothing crosses a link on a machine whose vectors do not
    assert step_ms(TRAFFIC, machine, staged=True, plan_ms=0.1).hybrid == pytest.approx(1e3 * work / 1e9 + 12.0)


def test_peaks_are_scaled_by_assumed_shares() -> None:
    machine = described(load_machine("v100-pcie3"), flops_per_sample=1e9, batch_size=1000)
    assert machine.device == 900e9 * 0.6 and machine.link == pytest.approx(15.8e9 * 0.8)
    assert machine.dense_ms == pytest.approx(1e3 * 1e12 / (15.7e12 * 0.3))
    assert expected_ms(TRAFFIC, machine, staged=True, plan_ms=0.3, read_ms=0.7, depth=4) is None


def test_a_typo_is_reported_before_missing_keys(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('nam = "x"\n')
    with pytest.raises(ConfigError, match=r"a\.toml: nam: unknown key \(did you mean name\?\); name: is needed$"):
        load_machine(str(tmp_path / "a.toml"))


def traffic(**changed: Any) -> Traffic:
    fields: dict[str, Any] = {
        **{"lookups": 1000, "lookup_hits": 900, "rows": 400, "row_hits": 300, "vectors": 500, "host_vectors": 0},
        **{"fetched": 100, "written_back": 80, "value_bytes": 64, "row_bytes": 68},
    }
    return Traffic(**fields | changed)


def test_times_equal_a_case_worked_by_hand() -> None:
    machine = Machine(link=1e6, device=1e9, host=2e6, dense_ms=0.5)
    times = step_ms(traffic(), machine, staged=True, plan_ms=2.0)
    work = 1000 * 64 + 2 * 500 * 64 + 2 * 400 * 68  # 182,400 bytes
    assert times.device_only == pytest.approx(work / 1e9 * 1e3 + 0.5)
    assert times.hybrid == pytest.approx(work / 2e6 * 1e3 + 2 * 500 * 64 / 1e6 * 1e3 + 0.5)
    link, host = 100 * 68 / 1e6 * 1e3, 180 * 68 / 2e6 * 1e3
    assert times.serial == pytest.approx(2.0 + work / 1e9 * 1e3 + 0.5 + link + host)
    assert times.look_ahead == pytest.approx(max(link, host))


def test_planning_can_limit_a_step() -> None:
    for staged in (True, False):
        times = step_ms(traffic(), MACHINE, staged=staged, plan_ms=1000.0)
        without = step_ms(traffic(), MACHINE, staged=staged, plan_ms=0.0)
        assert times.look_ahead == 1000.0 > without.look_ahead
        assert times.serial == pytest.approx(1000.0 + without.serial)
        assert times.device_only == without.device_only and times.hybrid == without.hybrid


def test_a_fully_hidden_step_takes_its_look_ahead() -> None:
    times = step_ms(traffic(), MACHINE, staged=True, plan_ms=1e-6)
    assert times.look_ahead == times.device_only
    assert times.device_only < times.serial < times.hybrid


def test_all_misses_on_the_host_equal_the_hybrid_step() -> None:
    nothing = traffic(lookup_hits=0, row_hits=0, host_vectors=500, fetched=0, written_back=0)
    times = step_ms(nothing, MACHINE, staged=False, plan_ms=1e-3)
    assert times.xdl == pytest.approx(
        times.hybrid - 2 * 100 * 64 / MACHINE.link * 1e3
    )  # 400 distinct rows for 500 vectors
    assert times.look_ahead == pytest.approx(times.hybrid)
    assert times.serial == pytest.approx(1e-3 + times.hybrid)
    everything = traffic(lookup_hits=1000, row_hits=400, fetched=0, written_back=0)
    times = step_ms(everything, MACHINE, staged=False, plan_ms=1e-3)
    assert times.look_ahead == pytest.approx(times.device_only)
