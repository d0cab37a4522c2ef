"""Do less for rows that have stopped moving (Slipstream, https://arxiv.org/abs/2404.04270).

The paper calls such rows stale; here they are *saturated*, because "stale" means out of date elsewhere. Popular rows
are watched and compared with a snapshot of themselves (Snapshot Block); a row that moved little although it was looked
up often is saturated. What is then done is the mode, `skip`, each a skip rule that any other policy can carry, too
(`--skip`):

`defer`    is ours, not the paper's: nothing is left out. Gradients of a row at rest are summed and the sum is
           applied at every k-th visit. About half of the row writes are saved at a change of AUC within 0.0003 under
           row-wise Adagrad, also where popularity or meaning drifts.
`updates`  the gradients of saturated rows are not computed; the rows are still looked up. Costs accuracy almost at
           once, the more the longer a row is left alone.
`inputs`   inputs all of whose rows are saturated are dropped (Input Classifier), the rest trains in full batches. The
           only mode that saves dense work.
`off`      nothing is skipped.

`updates` and `inputs` follow the paper as far as its abstract and summaries of it tell, which differ in what is
skipped; the paper's body could not be read. So rules, thresholds and intervals are ours. What each costs, beside as
much left out at random: docs/explanation/skipping.md.

Hot rows mostly lie on the device, where a write is cheap. So `defer` pays where a hot row's write is dear (small or no
device tier, optimizers with much state, difference checkpoints), and makes nothing faster where all is in memory.
"""

import inspect
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats, SkipRule
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.inputs import Inputs
from adaptive.policies.rules.updates import Updates

_RULES: Final[dict[str, type[SkipRule]]] = {"defer": Defer, "updates": Updates, "inputs": Inputs}  # not "off"


class Slipstream(Policy):
    """Rows are worth their lookups so far; rows at rest cost less work, in one of four modes.

    A parameter that is not given is that of the mode's rule (`adaptive-train policies show defer`, or updates, inputs);
    one of another mode is refused.

    Args:
        skip: the mode: `defer`, `updates`, `inputs` or `off`; see above. All but `off` need skipping to be switched on
            (`SkipConfig`).
        by, bound, every, at_most: of `defer`.
        target_skip, hysteresis: of `updates`.
        hot_only, target_drop: of `inputs`.
        threshold, probe_every: of `updates` and `inputs`.
        warmup: of all but `off`: batches before anything waits or is left out.
    """

    order = ("accesses",)

    def __init__(
        self,
        *,
        skip: Literal["defer", "updates", "inputs", "off"] = "defer",
        by: Literal["least", "visits", "movement"] | None = None,
        bound: float | None = None,
        every: int | None = None,
        at_most: int | None = None,
        target_skip: float | None = None,
        hysteresis: float | None = None,
        hot_only: bool | None = None,
        target_drop: float | None = None,
        threshold: float | None = None,
        probe_every: int | None = None,
        warmup: int | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "skip") and value is not None}
        parameters = [] if skip == "off" else list(inspect.signature(_RULES[skip]).parameters)
        if others := sorted(set(given) - set(parameters)):
            raise ValueError(f"{', '.join(others)}: not of skip={skip}, which has {', '.join(parameters) or 'none'}")
        self.rule = None if skip == "off" else _RULES[skip](**given)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses
