"""docs/benchmarks/index.md: its table and chart are what scripts/benchmark_chart makes of the tables."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

import adaptive

SCRIPT = Path(adaptive.__file__).parent.parent / "scripts/benchmark_chart"
loader = SourceFileLoader("benchmark_chart", str(SCRIPT))
chart = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
loader.exec_module(chart)


def test_page_and_chart_are_what_the_script_makes() -> None:
    values = chart.read_figures(chart.DETAILS.read_text())
    page = chart.PAGE.read_text()
    assert chart.with_table(page, values) == page, "run scripts/benchmark_chart"
    assert chart.draw(values) == chart.CHART.read_text(), "run scripts/benchmark_chart"


def test_a_figure_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError):
        chart.read_figures("| `embedding_vs_torch_sgd` | 8.14 |\n")


def test_bars_have_the_lengths_of_their_values() -> None:
    picture = chart.draw(dict.fromkeys(chart.FIGURES, "2.00") | {"step_vs_dlrm_sgd": "1.00"})
    assert picture.count('width="330.0"') == 5 and picture.count('width="165.0"') == 1
