"""From evidence to a decision: how harm is carried to the end of the run, and what is allowed after it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.guard.judge import LEAST, REACH, Evidence, Outlook, explain, look_out, lower


def evidence(auc: float, error: float = 0.0) -> Evidence:
    return Evidence(samples=1000, auc=auc, auc_error=error, log_loss=0.0, log_loss_error=0.0)


def test_dropping_is_paid_again_for_every_stretch_that_is_left() -> None:
    """100 batches cost 0.001; with 400 to come the run loses 5 times as much, and what it lost before."""
    found = look_out(evidence(-0.001, 0.0002), steps=100, left=400, spent=0.0003)
    assert found.change == pytest.approx(-0.0053)
    assert found.interval == pytest.approx((-0.0053 - REACH * 0.001, -0.0053 + REACH * 0.001))
    assert look_out(evidence(-0.001), steps=100, left=0, spent=0).change == -0.001


def test_deferral_does_not_grow() -> None:
    found = look_out(evidence(-0.001, 0.0002), steps=100, left=None, spent=0.0)
    assert found.change == -0.001 and found.interval == evidence(-0.001, 0.0002).auc_interval


@pytest.mark.parametrize(("low", "kept"), [(-0.0004, True), (-0.0005, True), (-0.0006, False), (0.1, True)])
def test_within_the_budget_means_all_of_the_interval(low: float, kept: bool) -> None:
    assert Outlook(low + 0.01, (low, low + 0.02)).within(0.0005) == kept


@pytest.mark.parametrize(
    ("allowance", "low", "expected"),
    [
        (1.0, -0.002, 0.25),  # a quarter would have kept the budget
        (1.0, -0.00051, 0.5),  # at most half
        (0.5, -0.002, 0.125),
        (1.0, -0.007, 1 / 14),
        (1.0, -0.01, 0.0),  # a twentieth: stop
        (0.1, -0.001, 0.0),
    ],
)
def test_what_remains_of_an_allowance(allowance: float, low: float, expected: float) -> None:
    assert lower(allowance, Outlook(low, (low, low)), 0.0005) == pytest.approx(expected)


@given(st.floats(LEAST, 1), st.floats(1e-6, 0.1), st.floats(1e-5, 1))
def test_it_always_falls_and_ends(allowance: float, budget: float, harm: float) -> None:
    found = lower(allowance, Outlook(-harm - budget, (-harm - budget, 0.0)), budget)
    assert found == 0 or LEAST <= found <= allowance / 2


def test_the_reason_says_what_is_known() -> None:
    assert explain(Outlook(-0.0002, (-0.0004, 0.0)), 0.0005) == (
        "expected change of AUC by the end -0.00020 (-0.00040 to +0.00000 with 95%): within the budget of 0.0005"
    )
    assert explain(Outlook(-0.02, (-0.03, -0.01)), 0.0005).endswith("breaks the budget of 0.0005")
    assert explain(Outlook(-0.0002, (-0.003, 0.002)), 0.0005).endswith("not shown to be within the budget of 0.0005")
