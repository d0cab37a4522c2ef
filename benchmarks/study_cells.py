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


@dataclass(frozen=True)
class Block:
    """Settings that all meet the same ways; one table of the report.

    `bar`: the AUC and the log loss that a way may cost; its table has tests against it (`study_verdicts`).
    """

    name: str
    settings: tuple[Setting, ...]
    ways: tuple[Way, ...]
    seeds: int = 3
    first_seed: int = 0
    bar: float | None = None


def ruled(label: str, rule: str) -> Way:
    """Return the control's placement with a skip rule."""
    return Way(label, "lfu", config={"skip": {"rule": rule}})


OFF = ruled("off", "off")
DEFER = ruled("defer", "defer")
PREDICTED = ruled("predicted", "predicted")
MORE = ruled("predicted, factor 3", "predicted+factor=3")
SLIPSTREAM = Way("slipstream")  # with its default rules


def off(label: str, **config: Any) -> Way:
    """Return a control that skips nothing, with other settings."""
    return Way(label, "lfu", config={"skip": {"rule": "off"}, **config})


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
    kind: str,
    samples: int,
    *,
    evaluated: int = 200_000,
    drift: str = "",
    name: str = "",
    rate: float = 0.25,
    **config: Any,
) -> Setting:
    """The built-in stream; batch 512, row-wise Adagrad at its default rate; `rate`: share of positives."""
    options = {
        "setting": kind, "num_train": samples, "num_eval": evaluated, "positive_rate": rate, **DRIFTS[drift],
    }  # fmt: skip
    return Setting(f"{kind}{drift}{name}", "synthetic", {"batch_size": 512, **config}, options)


def whole(kind: str, drift: str = "", rows: str = "rowwise_adagrad") -> Setting:
    """2,930 steps at width 8; `rows`: their optimizer."""
    tail = f", {rows}" if rows != "rowwise_adagrad" else ""
    config = {"model_options": _SMALL, "optimizer": ROW_OPTIMIZERS[rows]}
    return stream(kind, 1_500_000, drift=drift, name=tail, **config)


# --- time to quality: fresh seeds, tests against a bar, controls of the same time ------------------------------------

RATES: Final = (0.005, 0.03, 0.22)  # shares of positives
FRESH: Final = 100  # first seed: none below has tuned anything
_RMC2: Final = {"embedding_dim": 16, "bottom_mlp": "512-256-64-16", "top_mlp": "512-256-1"}


def at_rate(
    kind: str, rate: float, *, samples: int = 1_500_000, batch: int = 512, name: str = "", **config: Any
) -> Setting:
    """A stream with few positives, evaluated six times on the way."""
    every = max(samples * config.get("epochs", 1) // batch // 6, 1)
    usual = {"batch_size": batch, "model_options": _SMALL, "eval_every": every}
    return stream(kind, samples, evaluated=100_000, name=f", {100 * rate:g}%{name}", rate=rate, **usual | config)


def controls(batch: int = 512, rows: str = "rowwise_adagrad") -> tuple[Way, ...]:
    """All inputs: as they are, with a rate 1e-5 higher (the null), in larger batches, and with a decaying rate.

    `predicted` takes as many steps as `off`, so `off` is also the run of all inputs with as many steps.
    """
    optimizer = dict(ROW_OPTIMIZERS[rows])
    schedule = {"decay": "linear", "decay_steps": 1_500_000 // batch, "final": 0.1}
    decay = {"optimizer": optimizer, "schedule": schedule}
    null = {"optimizer": {**optimizer, "lr": optimizer["lr"] * 1.00001}}
    return OFF, off("null", **null), off("batches twice as large", batch_size=2 * batch), off("decay", **decay)


def time_blocks() -> tuple[Block, ...]:
    """Rules that leave inputs or updates out, against all that costs as little."""
    from benchmarks.study_sets import LARGE

    rules = (PREDICTED, SLIPSTREAM, DEFER)
    few = tuple(at_rate(kind, rate) for rate in RATES for kind in PLAIN)
    wide = tuple(at_rate("easy", rate, batch=2048, model_options=_RMC2, name=", RMC2") for rate in RATES[1:])
    adam = at_rate("easy", 0.03, name=", adam", optimizer=ROW_OPTIMIZERS["adam"])
    longer = at_rate("easy", 0.03, samples=500_000, epochs=3, name=", three epochs")
    skewed = tuple(at_rate("skewed", rate) for rate in RATES[1:])
    fresh: dict[str, Any] = {"first_seed": FRESH, "bar": 0.0003}
    return (
        Block("rates", few, (*controls()[:2], PREDICTED), seeds=5, **fresh),
        Block("rates-factor", few[-2:], (OFF, MORE), seeds=5, **fresh | {"bar": 0.0005}),
        Block("rates-others", few, (OFF, *controls()[2:], SLIPSTREAM, DEFER), seeds=5, **fresh),
        Block("rates-rmc2", wide, (*controls(batch=2048)[:3], PREDICTED), seeds=3, **fresh),
        Block("rates-sets", LARGE, (*controls()[:2], *rules), seeds=5, **fresh | {"bar": 0.0005}),
        Block("rates-adam", (adam,), (*controls(rows="adam")[:2], PREDICTED, DEFER), seeds=3, **fresh),
        Block("rates-epochs", (longer,), (*controls()[:2], PREDICTED), seeds=5, **fresh),
        Block("rates-skewed", skewed, (*controls()[:2], *rules), seeds=5, **fresh),
    )


# --- blocks, the most important first -----------------------------------------------------------------------------

PLAIN: Final = ("easy", "hard")
OTHERS: Final = ("sgd", "adagrad", "adam")


def blocks() -> tuple[Block, ...]:
    """All of the study."""
    from benchmarks.study_sets import LARGE

    deferring = (OFF, DEFER)
    return (
        *time_blocks(),
        Block("bar", tuple(whole(kind) for kind in PLAIN), deferring, seeds=5),  # three say too little on `hard`
        Block("bar-drift", tuple(whole(kind, ", drift") for kind in PLAIN), deferring, seeds=5),
        Block("optimizers", tuple(whole(kind, rows=rows) for rows in OTHERS for kind in PLAIN), deferring),
        Block("real", LARGE, deferring),
    )


def cells(block: Block) -> Iterator[tuple[Setting, Way, int]]:
    """Yield cells seed by seed, so that a stopped study has all cells at fewer seeds."""
    for seed in range(block.first_seed, block.first_seed + block.seeds):
        for setting in block.settings:
            for way in block.ways:
                yield setting, way, seed
