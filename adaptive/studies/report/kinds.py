"""Which kinds of records a page can show. A new kind is a line here and a function from records to sections."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from adaptive.studies.report.blocks import Section
from adaptive.studies.report.comparison_sections import comparison_sections, is_comparison
from adaptive.studies.report.load import Loaded
from adaptive.studies.report.placement_sections import is_placements, placement_sections
from adaptive.studies.report.profile_sections import is_profile, profile_sections
from adaptive.studies.report.reproduction_sections import is_reproduction, reproduction_sections
from adaptive.studies.report.run_sections import run_sections
from adaptive.studies.report.simulation_sections import is_simulation, simulation_sections


@dataclass(frozen=True)
class Kind:
    """How records of a kind are told from others, and what a page says of them.

    Attributes:
        is_one: of a JSON object. It must hold for records of this kind alone.
        sections: of one or several, which the page shows side by side.
    """

    is_one: Callable[[Mapping[str, Any]], bool]
    sections: Callable[[Sequence[Loaded]], list[Section]]


def _is_run(record: Mapping[str, Any]) -> bool:
    """A run is found by its folder, where its metrics lie."""
    return False


KINDS: Final[dict[str, Kind]] = {
    "run": Kind(_is_run, run_sections),
    "comparison": Kind(is_comparison, comparison_sections),
    "profile": Kind(is_profile, profile_sections),
    "placements": Kind(is_placements, placement_sections),
    "reproduction": Kind(is_reproduction, reproduction_sections),
    "simulation": Kind(is_simulation, simulation_sections),
}
