"""Do less for rows that have stopped moving (Slipstream, https://arxiv.org/abs/2404.04270).

The paper calls such rows stale; here they are *saturated*, because "stale" means out of date elsewhere. Popular
rows are watched and compared with a snapshot of themselves (Snapshot Block); a row that moved little although it was
looked up often is saturated. What is then left out is the mode, `skip`:

`defer`    is ours, not the paper's: nothing is left out. Gradients of a popular row are summed and the sum is
           applied at every k-th visit, k growing with the row's visits. About half of the row writes are saved at a
           change of AUC within 0.0003 under row-wise Adagrad, also where popularity or meaning drifts.
`updates`  the gradients of saturated rows are not computed; the rows are still looked up. Costs accuracy almost at
           once, the more the longer a row is left alone: 5 % of the updates cost 0.001 to 0.002 AUC, 40 % between 0.003
           and 0.04, and a row that is needed anew is found only by probing.
`inputs`   whole inputs are dropped (Input Classifier), the rest trains in full batches. The only mode that saves
           dense work, and about as harmful as dropping as many inputs at random: compare it with the policy
           `random_drop` at the same share, which `dropped_inputs / seen_inputs` tells.
`off`      nothing is skipped.

`updates` and `inputs` follow the paper as far as its abstract and summaries of it tell, which differ in what is
skipped; the paper's body could not be read. So rules, thresholds and intervals are ours.

Hot rows mostly lie on the device, where a write is cheap. So `defer` pays where a hot row's write is dear (small or no
device tier, optimizers with much state, difference checkpoints), and makes nothing faster where all is in memory.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Deferral, Policy, RowStats, TierView
from policies.inputs import ByRow, Refill, count_lookups, probed, samples_of_lookups

_SAMPLE = 4096  # latest inputs from which the threshold is found
_MOST_DROPPED = 0.9  # of a batch: were all of them dropped, training would stand still and no verdict would change


class Slipstream(Policy):
    """Rows are worth their look-ups so far; popular rows cost less work, in one of four modes.

    Args:
        skip: what is left out: `defer`, `updates`, `inputs` or `off`; see above. All but `off` need skipping to be
            switched on (`SkipConfig`).
        every: mode `defer`: visits per unit of k (`adaptive.Deferral`).
        at_most: mode `defer`: the largest k; none: 8, and 4 under plain SGD.
        warmup: batches before anything is left out. Before a model's loss has left its first plateau no row moves
            much, and freezing rows then would freeze an untrained model.
        threshold: movement up to which a row becomes saturated, per interval between questions
            (`SkipConfig.interval`); a longer interval needs a larger one.
        metric: `drift`: ||row - snapshot|| / ||row||, in which oscillation cancels; or `movement`: the sum of the sizes
            of the updates since the last question, as a share of the sum of all so far, in which it adds up.
        min_accesses: look-ups in an interval below which a movement says nothing.
        hysteresis: a saturated row stays so while it moves up to `hysteresis * threshold`; 1: no hysteresis.
        probe_every: a saturated row counts as not saturated at one in `probe_every` questions, chosen by a hash of
            row and batch, and is judged anew by how far it then moves; 0: never.
        drop_at: mode `inputs`: share of an input's watched rows that must be saturated for it to be dropped; 1: all of
            them, 0: any one. A watched row of which no movement is known is not saturated. An input without watched
            rows is never dropped, nor more than 90 % of a batch; kept inputs that fill no batch at the end are.
        target_drop: mode `inputs`: share of the inputs with watched rows that is to be dropped, at most. After every
            question the threshold is then found on the latest 4096 inputs (Sampling Block), and `threshold` and
            `hysteresis` do not count. A target that is out of reach makes all rows of known movement saturated.
            None: the threshold is fixed.

    Attributes:
        seen_inputs, dropped_inputs: mode `inputs`: samples that came and those left out, so far.
        found_threshold: with `target_drop`: the threshold in use.
    """

    def __init__(
        self,
        *,
        skip: Literal["defer", "updates", "inputs", "off"] = "defer",
        every: int = 32,
        at_most: int | None = None,
        warmup: int = 100,
        threshold: float = 0.02,
        metric: Literal["drift", "movement"] = "drift",
        min_accesses: int = 64,
        hysteresis: float = 1.5,
        probe_every: int = 8,
        drop_at: float = 1.0,
        target_drop: float | None = None,
    ) -> None:
        _check("threshold", threshold, 0)
        _check("min_accesses", min_accesses, 1)
        _check("warmup", warmup, 0)
        _check("hysteresis", hysteresis, 1)
        _check("probe_every", probe_every, 0)
        _check("drop_at", drop_at, 0, 1)
        if target_drop is not None:
            _check("target_drop", target_drop, 0, 1)
            if skip != "inputs":
                raise ValueError(f"target_drop={target_drop}: is for skip=inputs, found skip={skip}")
        deferral = Deferral(every=every, at_most=at_most, warmup=warmup)
        self.deferral = deferral if skip == "defer" else None
        self.watches = skip in ("updates", "inputs")
        self.drops_inputs = skip == "inputs"
        self.rearranges = self.watches and (self.drops_inputs or metric == "movement")
        self.skip = skip
        self.warmup = warmup
        self.threshold = threshold
        self.metric = metric
        self.min_accesses = min_accesses
        self.hysteresis = hysteresis
        self.probe_every = probe_every
        self.drop_at = drop_at
        self.target_drop = target_drop
        self.seen_inputs = self.dropped_inputs = 0
        self.found_threshold = 0.0
        self._watched, self._saturated = ByRow(np.bool_), ByRow(np.bool_)  # mode `inputs`
        self._moved = ByRow(np.float32)  # latest known movement, 0 = none; mode `inputs`
        self._norms, self._accesses = ByRow(np.float32), ByRow(np.int64)  # at the last question; metric `movement`
        self._asked = -1  # batch of the latest question; its rows wait for a threshold
        self._waiting: list[NDArray[np.int64]] = []
        self._recent: deque[tuple[Batch, NDArray[np.int64]]] = deque()  # with the rows of the look-ups

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses

    # --- which rows ------------------------------------------------------------------------------------------

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        nothing = np.zeros(len(rows), np.bool_)
        if not self.watches:
            return nothing
        moved = self._movement(rows)
        before = self._saturated[rows.rows] if self.drops_inputs else rows.saturated
        limit = np.where(before, self.hysteresis * self.threshold, self.threshold)
        # An unknown movement means that no update was let through: it says nothing, the verdict stands.
        verdicts = np.where(np.isnan(moved), before, moved <= limit) & ~probed(rows.rows, rows.step, self.probe_every)
        if rows.step < self.warmup:
            verdicts = nothing
        if not self.drops_inputs:
            return verdicts
        self._watched[rows.rows] = True
        self._moved[rows.rows] = np.where(np.isnan(moved), self._moved[rows.rows], moved)
        if self.target_drop is None:
            self._saturated[rows.rows] = verdicts
        elif rows.step >= self.warmup:
            if self._asked != rows.step:  # tables of each width are a question of their own
                self._waiting.clear()
            self._asked = rows.step
            self._waiting.append(rows.rows)
        return nothing  # inputs are left out before they are planned; what is trained updates all its rows

    def _movement(self, rows: RowStats) -> NDArray[np.float32]:
        """(n,) movement since the last question or between snapshots, NaN where nothing is known."""
        if self.metric == "drift":
            moved, accesses = rows.drift, rows.drift_accesses
        else:
            path, accesses = rows.update_norm - self._norms[rows.rows], rows.accesses - self._accesses[rows.rows]
            share = path / np.maximum(rows.update_norm, np.finfo(np.float32).tiny)
            new = self._norms[rows.rows] == 0
            # Of a saturated row hardly an update was let through.
            moved = np.where(rows.saturated | new, np.float32(np.nan), share)
            self._norms[rows.rows], self._accesses[rows.rows] = rows.update_norm, rows.accesses
        known = (moved > 0) & (accesses >= self.min_accesses)
        return np.where(known, moved, np.float32(np.nan))

    # --- which inputs ----------------------------------------------------------------------------------------

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        if self.metric == "movement":
            self._norms.reserve(view.num_rows)
            self._accesses.reserve(view.num_rows)
        return self._filtered(batches, view) if self.drops_inputs else batches

    def _filtered(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        refill = Refill()
        self._recent.clear()  # a resumed run has seen no inputs either
        for facts in (self._watched, self._saturated, self._moved):
            facts.reserve(view.num_rows)
        for batch in batches:
            rows = view.rows(batch)
            if self.target_drop is not None:
                self._remember(batch, rows)
                self._find_threshold()
            dropped = self._classify(batch, rows)
            self.seen_inputs += batch.num_samples
            self.dropped_inputs += int(dropped.sum())
            yield from refill.add(batch, ~dropped)
        if refill.filled:  # a small last batch would weigh its few inputs like a full one its many
            self.dropped_inputs += refill.num_waiting
        else:
            yield from refill.rest()
        self._find_threshold()  # no more inputs come to be judged by

    def _classify(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(B,) inputs to drop: enough of their watched rows are saturated."""
        watched = count_lookups(batch, self._watched[rows])
        saturated = count_lookups(batch, self._saturated[rows])
        dropped = (watched > 0) & (saturated >= self._needed(watched))
        dropped &= self.allows(self.seen_inputs + np.arange(batch.num_samples))
        dropped[np.flatnonzero(dropped)[int(_MOST_DROPPED * batch.num_samples) :]] = False
        return dropped

    def _needed(self, watched: NDArray[np.int64]) -> NDArray[np.int64]:
        """Saturated look-ups from which on an input with so many watched look-ups is dropped."""
        needed: NDArray[np.int64] = np.ceil(self.drop_at * watched - 1e-9).astype(np.int64)
        return np.maximum(needed, 1)

    def _remember(self, batch: Batch, rows: NDArray[np.int64]) -> None:
        self._recent.append((batch, rows))
        while sum(known.num_samples for known, _ in self._recent) - self._recent[0][0].num_samples >= _SAMPLE:
            self._recent.popleft()

    def _find_threshold(self) -> None:
        """After a question: the largest threshold at which the sample loses no more than `target_drop`.

        An input is dropped from that threshold on which its k-th least moved watched row has (k as in `_needed`), so
        the share dropped is known for every threshold at once and no grid of candidates is tried.
        """
        if not self._waiting or self.target_drop is None:
            return
        borders = np.concatenate([self._borders(batch, rows) for batch, rows in self._recent])
        values, counts = np.unique(borders[np.isfinite(borders)], return_counts=True)
        allowed = values[np.cumsum(counts) <= self.target_drop * len(borders)]
        self.found_threshold = float(allowed[-1]) if len(allowed) else 0.0
        for rows in self._waiting:
            self._saturated[rows] = self._judged(rows) <= self.found_threshold
        self._waiting.clear()

    def _borders(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of each input with watched rows: the threshold from which on it is dropped, or infinity."""
        lookups = np.flatnonzero(self._watched[rows])
        samples, moved = samples_of_lookups(batch)[lookups], self._judged(rows[lookups])
        in_order = moved[np.lexsort((moved, samples))]
        watched = np.bincount(samples, minlength=batch.num_samples)
        starts = np.cumsum(watched) - watched
        hot = watched > 0
        borders: NDArray[np.float32] = in_order[(starts + self._needed(watched) - 1)[hot]]
        return borders

    def _judged(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Movement of watched rows, infinite where none is known or the row is being probed."""
        moved = self._moved[rows]
        return np.where((moved > 0) & ~probed(rows, self._asked, self.probe_every), moved, np.float32(np.inf))

    # --- state -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        asked = self._norms.rows()
        watched = self._watched.rows()
        return {
            "watched": watched,
            "saturated": self._saturated[watched],
            "moved": self._moved[watched],
            "asked": asked,
            "norms": self._norms[asked],
            "accesses": self._accesses[asked],
            "inputs": np.array([self.seen_inputs, self.dropped_inputs]),
            "threshold": np.array([self.found_threshold]),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        if set(state) != set(self.state_dict()):
            raise ValueError(f"Slipstream: needed {sorted(self.state_dict())}, found {sorted(state)}")
        watched, asked = state["watched"], state["asked"]
        self._watched[watched], self._saturated[watched] = True, state["saturated"]
        self._moved[watched] = state["moved"]
        self._norms[asked], self._accesses[asked] = state["norms"], state["accesses"]
        self.seen_inputs, self.dropped_inputs = (int(number) for number in state["inputs"])
        self.found_threshold = float(state["threshold"][0])


def _check(name: str, value: float, least: float, most: float = float("inf")) -> None:
    if not least <= value <= most:
        upper = f", at most {most:g}" if most < float("inf") else ""
        raise ValueError(f"{name}={value}: needed at least {least}{upper}")
