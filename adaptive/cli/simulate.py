"""`adaptive-train simulate`: planner and policies over ids alone, for several device sizes and a described machine."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.compare import Config, check_folders, load_contenders, without, write_text
from adaptive.cli.flags import DLRM, OUTPUT, POLICY, TIERS, TRAINING
from adaptive.cli.output import AsJson, Sets, note, own_stdout, print_result

MACHINE = "Machine"
SECONDS = 5  # between two lines of progress


def _rate(name: str, help: str) -> Any:
    return typer.Option(name, metavar="RATE", help=help, rich_help_panel=MACHINE)


@without("--policy", "--device-rows", "--device", "--model", "--lr", "--steps", "--seed", "--out", DLRM)
def simulate(
    *,
    policy: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Policies, such as lru,lfu+half_life=500,scratchpipe. --set policy.NAME=VALUE goes to all that have "
            "such a parameter.",
            rich_help_panel=POLICY,
        ),
    ] = "lru,lfu",
    device_rows: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="Sizes of the device tier: rows (100000), per cent of all rows (10%), bytes (512MiB) or auto.",
            rich_help_panel=TIERS,
        ),
    ] = "1%,5%,10%,20%,50%",
    batches: Annotated[
        int | None,
        typer.Option(min=1, metavar="NUMBER", help="Stop after this many batches.", rich_help_panel=TRAINING),
    ] = None,
    embedding_dim: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            metavar="WIDTH",
            help="Values in a row; else model.embedding_dim, as a preset gives it, or 16.",
            rich_help_panel=TIERS,
        ),
    ] = None,
    link: Annotated[str, _rate("--link", "Between the tiers, each way.")] = "50GB/s",
    device_bandwidth: Annotated[str, _rate("--device-bandwidth", "Memory of the device.")] = "4000GB/s",
    host_bandwidth: Annotated[str, _rate("--host-bandwidth", "Memory of the host, random rows.")] = "100GB/s",
    dense_ms: Annotated[
        float,
        typer.Option(min=0.0, metavar="MS", help="Milliseconds of the dense part of a step.", rich_help_panel=MACHINE),
    ] = 1.0,
    dense_bytes: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BYTES",
            help="Of all dense weights, as they cross at each step of XDL: adds its modelled step.",
            rich_help_panel=MACHINE,
        ),
    ] = 0,
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the curves (needs the extra 'report': matplotlib).", rich_help_panel=OUTPUT
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table as Markdown.", rich_help_panel=OUTPUT),
    ] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Predict hit rates, traffic and step times of device sizes from the ids of the data, without training.

    The planner keeps its books as in training, but no row has a value: policies see no movement, and what is skipped by
    movement is not. Deferral by visits is. A size into which the rows of a few batches do not fit is told as such.
    """
    more = {} if batches is None else {"steps": (str(batches), "--batches")}
    with own_stdout():
        rivals = load_contenders(policy, sets or [], flags, config, flag="--policy", more=more)
    check_folders(png, markdown)
    from adaptive.simulate.machine import Machine, parse_rate
    from adaptive.simulate.report import draw, need_matplotlib, simulation_markdown, simulation_text
    from adaptive.simulate.simulation import simulate as run_simulation

    if png is not None:
        need_matplotlib()
    machine = Machine(
        link=parse_rate(link, name="--link"),
        device=parse_rate(device_bandwidth, name="--device-bandwidth"),
        host=parse_rate(host_bandwidth, name="--host-bandwidth"),
        dense_ms=dense_ms,
        dense_bytes=dense_bytes,
    )
    cases = [(rival.label, rival.config) for rival in rivals]
    width = embedding_dim or int(rivals[0].config.model_options.get("embedding_dim", 16))
    sizes = list(dict.fromkeys(size.strip() for size in device_rows.split(",") if size.strip()))
    with own_stdout():
        result = run_simulation(cases, sizes, machine, embedding_dim=width, told=_Progress())
    if png is not None:
        draw(result, png)
    if markdown is not None:
        write_text(markdown, simulation_markdown(result))
    print_result({**result, "table": simulation_text(result)}, as_json=as_json)


class _Progress:
    """Tells now and then how many batches have been planned."""

    def __init__(self) -> None:
        self._latest = time.monotonic()

    def __call__(self, batches: int) -> None:
        now = time.monotonic()
        if now - self._latest >= SECONDS:
            self._latest = now
            note(f"{batches:,} batches planned")
