"""`--plot FILE`: figures of comparisons and simulations, and mistakes."""

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.report_records import HOSTILE, comparison
from support.toy import ToyData, toy_config

import adaptive.studies.simulation
from adaptive.data.dataset import by_table
from adaptive.errors import ConfigError, OutputError
from adaptive.studies.plots import check_plot, plot_comparison, plot_simulation
from adaptive.studies.simulation import Simulation, simulate


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    monkeypatch.setattr(adaptive.studies.simulation, "open_data", lambda config: by_table(ToyData()))
    cases = [(name, toy_config(policy=name)) for name in ("lru", "hybrid")]
    return simulate(cases, ["60%", "80%", "100%"], embedding_dim=4)


def texts(path: Path) -> str:
    """All words of an SVG file, which must be well-formed."""
    return "\n".join(ElementTree.parse(path).getroot().itertext())


def test_the_suffix_chooses_the_format(tmp_path: Path, simulation: Simulation) -> None:
    plot_comparison(comparison(), tmp_path / "compared.png")
    assert (tmp_path / "compared.png").read_bytes().startswith(b"\x89PNG")
    plot_simulation(simulation, tmp_path / "simulated.svg")
    words = texts(tmp_path / "simulated.svg")
    assert "lru" in words and "hybrid" in words and "Belady's bound for any policy" in words


def test_a_comparison_shows_budget_stages_and_every_name(tmp_path: Path) -> None:
    result = comparison(["lru", *HOSTILE[:4]])
    plot_comparison(result, tmp_path / "compared.svg")
    words = texts(tmp_path / "compared.svg")
    assert "budget (-0.0005)" in words and "row_update" not in words and "backward" in words  # no time, no legend
    assert "<script>alert(1)</script>" in words and "a\\x00b\\x1b[31m" in words  # texts, not elements
    plot_comparison(result, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "compared.svg").read_bytes()


def test_speeds_of_a_busy_machine_are_marked(tmp_path: Path) -> None:
    (first, *others) = comparison().policies
    busy = replace(first, runs=[replace(run, others_cpu_share=0.4) for run in first.runs])
    plot_comparison(replace(comparison(), policies=[busy, *others]), tmp_path / "busy.svg")
    assert "Samples per second (median; other processes used the cores)" in texts(tmp_path / "busy.svg")


def test_a_comparison_without_a_finished_run_says_so(tmp_path: Path) -> None:
    failed = [replace(policy, seeds=[]) for policy in comparison().policies]
    plot_comparison(replace(comparison(), policies=failed), tmp_path / "none.svg")
    assert "No run finished." in texts(tmp_path / "none.svg")


def test_mistakes_are_found_before_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--plot: expected a file ending in \.png or \.svg, got out\.jpeg"):
        check_plot(Path("out.jpeg"))
    with pytest.raises(OutputError, match="cannot be written"):
        plot_comparison(comparison(), tmp_path / "none" / "compared.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"not installed. Run pip install 'adaptive-train\[plot\]'"):
        check_plot(Path("out.png"))
