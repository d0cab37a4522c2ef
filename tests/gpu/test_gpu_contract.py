"""Every policy passes the contract with its rows on a GPU."""

from typing import Any

import pytest
from contract import POLICIES, policy_id

from adaptive.config import TierConfig
from adaptive.policy import Policy
from adaptive.studies import policy_checks
from adaptive.studies.policy_checks import check_policy

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", POLICIES, ids=policy_id)
def test_every_policy_passes_on_the_gpu(
    device: str, case: tuple[type[Policy], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def tier(**settings: Any) -> TierConfig:
        used.append(device)
        return TierConfig(**{**settings, "device": device})

    monkeypatch.setattr(policy_checks, "TierConfig", tier)
    cls, options = case
    assert [(r.check, r.reason) for r in check_policy(cls, options) if not r.passed] == []
    assert used, "the contract trains nothing"
