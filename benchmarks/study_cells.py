"""The cells of the study of skipping: settings, ways to skip, and their combinations.

A *way* is a policy with its parameters, or with a skip rule, under a short label. `off` is the control that skips
nothing (`lfu`, whose placement `slipstream` shares); the others are skip rules with the same placement. Ways that
drop inputs get their own control from `adaptive.studies.compare`, which drops as many at random.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Way:
    """A policy and its parameters."""

    label: str
    policy: str = "slipstream"
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # settings other than the policy's


@dataclass(frozen=True)
class Setting:
    """A setting without its policy: `data` is a built-in stream or a name of `study_sets`."""

    name: str
    data: str
    config: Mapping[str, Any]
    stream: Mapping[str, Any] | None = None  # built-in stream: its options

    @property
    def is_real(self) -> bool:
        return self.stream is None


@dataclass(frozen=True)
class Block:
    """Settings that all meet the same ways; one table of the report."""

    name: str
    settings: tuple[Setting, ...]
    ways: tuple[Way, ...]
    seeds: int = 3


def ruled(label: str, rule: str) -> Way:
    """Return the control's placement with a skip rule."""
    return Way(label, "lfu", config={"skip": {"rule": rule}})


OFF = ruled("off", "off")
DEFER = ruled("defer", "defer+by=least")
VISITS = ruled("defer by visits", "defer+by=visits")
MOVEMENT = ruled("defer by movement", "defer+by=movement")
UPDATES = ruled("updates", "updates")
INPUTS = ruled("inputs", "inputs")


def updates(target: float) -> Way:
    """`updates` up to a share of the watched rows' updates."""
    return ruled(f"updates {target:g}", f"updates+target_skip={target:g}")


# --- settings ----------------------------------------------------------------------------------------------------

_SMALL = {"embedding_dim": 8, "bottom_mlp": "32-8", "top_mlp": "64-32-1"}
DRIFT: Final = {"drift_at": 0.5}
ROW_OPTIMIZERS: Final = {
    "sgd": {"name": "sgd", "lr": 10.0},
    "rowwise_adagrad": {"name": "rowwise_adagrad", "lr": 0.05},
    "adagrad": {"name": "adagrad", "lr": 0.05},
    "adam": {"name": "adam", "lr": 0.005},
}
DRIFTS: Final[Mapping[str, Mapping[str, Any]]] = {"": {}, ", drift": DRIFT}


def stream(
    kind: str, samples: int, *, evaluated: int = 200_000, drift: str = "", name: str = "", **config: Any
) -> Setting:
    """The built-in stream; batch 512, row-wise Adagrad at its default rate."""
    options = {"setting": kind, "num_train": samples, "num_eval": evaluated, **DRIFTS[drift]}
    return Setting(f"{kind}{drift}{name}", "synthetic", {"batch_size": 512, **config}, options)


def whole(kind: str, drift: str = "", rows: str = "rowwise_adagrad") -> Setting:
    """2,930 steps at width 8; `rows`: their optimizer."""
    tail = f", {rows}" if rows != "rowwise_adagrad" else ""
    config = {"model_options": _SMALL, "optimizer": ROW_OPTIMIZERS[rows]}
    return stream(kind, 1_500_000, drift=drift, name=tail, **config)


# --- blocks, the most important first -----------------------------------------------------------------------------

PLAIN: Final = ("easy", "hard")
OTHERS: Final = ("sgd", "adagrad", "adam")


def blocks() -> tuple[Block, ...]:
    """All of the study."""
    from benchmarks.study_sets import LARGE

    deferring = (OFF, DEFER, VISITS, MOVEMENT)
    papers = (OFF, DEFER, UPDATES, INPUTS)
    return (
        Block("bar", tuple(whole(kind) for kind in PLAIN), deferring, seeds=5),  # three say too little on `hard`
        Block("bar-drift", tuple(whole(kind, ", drift") for kind in PLAIN), deferring, seeds=5),
        Block("optimizers", tuple(whole(kind, rows=rows) for rows in OTHERS for kind in PLAIN), deferring),
        Block("papers", tuple(whole(kind, drift) for drift in DRIFTS for kind in PLAIN), papers),
        Block("real", LARGE, (*deferring, UPDATES, INPUTS)),
        Block("targets", (whole("easy"),), (OFF, updates(0.05), UPDATES, updates(0.4))),
    )


def cells(block: Block) -> Iterator[tuple[Setting, Way, int]]:
    """Yield cells seed by seed, so that a stopped study has all cells at fewer seeds."""
    for seed in range(block.seeds):
        for setting in block.settings:
            for way in block.ways:
                yield setting, way, seed
