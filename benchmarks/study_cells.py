"""What the study of skipping trains: settings (data, model, optimizer, length), ways to skip, and which meets which.

A *way* is a policy with its parameters under a short label. `off` is the control that skips nothing (`lfu`, whose
placement `slipstream` shares). Ways that drop inputs get a control of their own from `adaptive.compare`, which drops as
many at random.
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
    """What is trained, apart from the policy: `data` is a built-in stream or a name of `study_sets`."""

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


OFF = Way("off", "lfu")
DEFER = Way("defer")


def deferring(at_most: int, *, warmup: int = 100, every: int = 32) -> Way:
    """Mode `defer` with its parameters."""
    more = {name: value for name, value, usual in (("warmup", warmup, 100), ("every", every, 32)) if value != usual}
    label = ", ".join([f"defer {at_most}", *(f"{name} {value}" for name, value in more.items())])
    return Way(label, options={"at_most": at_most, **more})


def updates(threshold: float) -> Way:
    """Mode `updates` with its threshold."""
    return Way(f"updates {threshold:g}", options={"skip": "updates", "threshold": threshold})


def inputs(target: float) -> Way:
    """Mode `inputs`: dropped where three quarters of the watched rows are saturated, up to a share."""
    return Way(f"inputs {target:g}", options={"skip": "inputs", "target_drop": target, "drop_at": 0.75})


# --- settings ----------------------------------------------------------------------------------------------------

_SMALL = {"embedding_dim": 8, "bottom_mlp": "32-8", "top_mlp": "64-32-1"}
DRIFT: Final = {"drift_at": 0.5}
CHURN: Final = {"drift_at": 0.5, "churn": 0.05}
ROW_OPTIMIZERS: Final = {
    "sgd": {"name": "sgd", "lr": 10.0},
    "rowwise_adagrad": {"name": "rowwise_adagrad", "lr": 0.05},
    "adagrad": {"name": "adagrad", "lr": 0.05},
    "adam": {"name": "adam", "lr": 0.005},
}
DRIFTS: Final[Mapping[str, Mapping[str, Any]]] = {"": {}, ", drift": DRIFT, ", churn": CHURN}


def stream(
    kind: str, samples: int, *, evaluated: int = 200_000, drift: str = "", name: str = "", **config: Any
) -> Setting:
    """The built-in stream; batch 512, row-wise Adagrad at its default rate."""
    options = {"setting": kind, "num_train": samples, "num_eval": evaluated, **DRIFTS[drift]}
    return Setting(f"{kind}{drift}{name}", "synthetic", {"batch_size": 512, **config}, options)


def whole(kind: str, drift: str = "") -> Setting:
    """At the library's defaults (width 16), as long as runs before."""
    return stream(kind, 1_500_000, evaluated=300_000, drift=drift)


def short(kind: str, drift: str = "", rows: str = "rowwise_adagrad", name: str = "", **more: Any) -> Setting:
    """A third as long, width 8; `rows`: their optimizer."""
    config = {"model_options": _SMALL, "optimizer": ROW_OPTIMIZERS[rows], **more}
    tail = f", {rows}" if rows != "rowwise_adagrad" else ""
    return stream(kind, 500_000, evaluated=100_000, drift=drift, name=f", short{tail}{name}", **config)


def wide(kind: str, width: int) -> Setting:
    """`short` at another width."""
    model = {**_SMALL, "embedding_dim": width, "bottom_mlp": f"32-{width}"}
    return short(kind, name=f", width {width}", model_options=model)


def rated(kind: str, lr: float) -> Setting:
    """`short` at another learning rate of the rows."""
    return short(kind, name=f", lr {lr:g}", optimizer={"lr": lr})


def tiered(device_rows: str) -> Setting:
    """`short` and easy with a small device tier; look-ahead of one batch, whose rows must fit."""
    tier = {"device_rows": device_rows}
    return short("easy", name=f", device {device_rows}", tier=tier, depth=1)


def repeated(kind: str) -> Setting:
    """A fifth of `short`'s data, six times."""
    return stream(kind, 100_000, evaluated=100_000, name=", six epochs", epochs=6, model_options=_SMALL)


def lengthy(kind: str) -> Setting:
    """Five times as long as `short`, all of it new."""
    return stream(kind, 2_500_000, name=", long", model_options=_SMALL)


# --- blocks, the most important first -----------------------------------------------------------------------------

UPDATES = tuple(updates(threshold) for threshold in (0.05, 0.1, 0.2))
INPUTS = tuple(inputs(target) for target in (0.3, 0.6))
DEFERS = tuple(deferring(at_most) for at_most in (2, 4, 16))


def blocks() -> tuple[Block, ...]:
    """All of the study."""
    from benchmarks.study_sets import LARGE, PAIRS, SLOW, TINY

    main, dropping = (OFF, DEFER), (OFF, DEFER, UPDATES[1])
    some = (OFF, DEFER, *UPDATES[:2], INPUTS[0])
    return (
        Block("bar", (whole("easy"), whole("hard")), main),
        Block("bar-drift", (whole("easy", ", drift"), whole("hard", ", drift")), main),
        Block("real", LARGE, main),
        Block("drift-short", (short("hard", ", drift"),), main),
        Block("modes", (short("easy"),), (OFF, DEFER, *UPDATES, *INPUTS, *DEFERS)),
        Block("rates", (rated("easy", 0.005), rated("easy", 0.2)), main),
        Block("optimizers", tuple(short("easy", rows=name) for name in ROW_OPTIMIZERS), dropping),
        Block("sgd", (short("easy", rows="sgd"),), (OFF, DEFER, deferring(8))),
        Block("real-rates", SLOW, (*main, deferring(2))),
        Block("pairs", PAIRS, main),
        Block("epochs", (repeated("easy"),), some),
        Block("epochs-real", LARGE[-1:], (OFF, DEFER, UPDATES[1], INPUTS[0])),
        Block("modes-drift", (short("easy", ", drift"),), (*some, DEFERS[-1])),
        Block("modes-hard", (short("hard"),), (*some, DEFERS[-1])),
        Block("real-tiny", TINY, main, seeds=5),
        Block("long", (lengthy("easy"),), (OFF, DEFER, UPDATES[0])),
        Block("widths", (wide("easy", 64), wide("easy", 16)), dropping),
        Block("tiers", tuple(tiered(size) for size in ("1%", "3%", "10%")), main),
        Block("real-modes", LARGE, (OFF, UPDATES[1], INPUTS[0])),
        Block("epochs-hard", (repeated("hard"),), some),
        Block("modes-hard-drift", (short("hard", ", drift"),), (*some, DEFERS[-1])),
        Block("optimizers-hard", tuple(short("hard", rows=name) for name in ROW_OPTIMIZERS), dropping),
        Block("long-hard", (lengthy("hard"),), (OFF, DEFER, UPDATES[0])),
        Block("churn", (whole("easy", ", churn"),), main),
    )


def cells(block: Block) -> Iterator[tuple[Setting, Way, int]]:
    """Seed by seed, so that a study that was stopped has all of a block's cells at fewer seeds."""
    for seed in range(block.seeds):
        for setting in block.settings:
            for way in block.ways:
                yield setting, way, seed
