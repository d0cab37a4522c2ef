"""The first line of a run: placement policy, skip rule and mode."""

from typing import Any

import pytest
from toy import ToyData, toy_config

from adaptive.training.build import build
from adaptive.training.telemetry.formatting import policy_text, short_text

STAGED, ON_HOST = "missed rows are fetched ahead; ", "missed rows stay on the host; "


@pytest.mark.parametrize(
    ("policy", "options", "skip", "expected"),
    [
        ("lru", {}, {}, STAGED + "skips nothing"),
        ("hybrid", {}, {}, ON_HOST + "skips nothing"),
        ("random_drop", {"share": 0.2}, {}, STAGED + "skip rule drop: leaves inputs out"),
        ("slipstream", {}, {}, STAGED + "skip rule defer by least: gradients wait for up to 16 visits"),
        (
            "slipstream",
            {"by": "visits", "at_most": 3},
            {},
            STAGED + "skip rule defer by visits: gradients wait for up to 3 visits",
        ),
        ("slipstream", {"skip": "updates"}, {}, STAGED + "skip rule updates: leaves updates out"),
        ("slipstream", {"skip": "inputs"}, {}, STAGED + "skip rule inputs: leaves inputs out"),
        ("slipstream", {"skip": "off"}, {}, STAGED + "skips nothing"),
        ("slipstream", {}, None, STAGED + "skips nothing"),
    ],
)
def test_what_a_run_trains_under(policy: str, options: dict[str, Any], skip: Any, expected: str) -> None:
    tier = {"device_rows": "auto"}
    data = ToyData()
    config = toy_config(policy=policy, policy_options=options, skip=skip, tier=tier)
    parts = build(config, data, list(data.train(32))[:2])
    with parts.embeddings as embeddings:
        found = policy_text(policy, embeddings.policy)
    assert found == f"policy {policy}: {expected}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (17790.0, "17,790"),
        (999.96, "1000"),
        (1234.5, "1,234"),
        (0.072134, "0.07213"),
        (-5e4, "-50,000"),
        (1e-6, "1e-06"),
    ],
)
def test_numbers_of_thousands_are_written_out(number: float, text: str) -> None:
    assert short_text(number) == text
