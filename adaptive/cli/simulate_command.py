"""`adaptive-train simulate`: planner and policies over ids alone, for several device sizes and a described machine."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive.cli.compare_command import Config, check_folders, load_contenders, without, write_text
from adaptive.cli.flags import DLRM, OUTPUT, POLICY, TIERS, TRAINING
from adaptive.cli.output import AsJson, Sets, note, own_stdout, print_result

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.simulate.simulation import MachineOf
    from adaptive.studies.step_model import Machine
    from adaptive.system import StopRequest

MACHINE, RANKS = "Machine", "Ranks"
RATES = {"link": "--link", "device": "--device-bandwidth", "host": "--host-bandwidth"}


def _rate(name: str, help: str, default: str) -> Any:
    return typer.Option(name, metavar="RATE", help=help, rich_help_panel=MACHINE, show_default=default)


@without("--policy", "--device-rows", "--device", "--model", "--lr", "--steps", "--seed", "--out", DLRM)
def simulate(
    *,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Policies, such as lru,lfu+half_life=500,scratchpipe. --set policy.NAME=VALUE goes to all that have "
            "such a parameter.",
            rich_help_panel=POLICY,
            show_default="lru,lfu",
        ),
    ] = None,
    device_rows: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Sizes of the device tier: rows (100000), per cent of all rows (10%), bytes (512MiB) or auto.",
            rich_help_panel=TIERS,
            show_default="1%,5%,10%,20%,50%",
        ),
    ] = None,
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
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="FILE",
            help="Machine file, as `profile --save FILE` writes it, or a preset (see `placements`). With measured "
            "rates the step that this machine is expected to take is told, too. The options below win over it.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    link: Annotated[str | None, _rate("--link", "Between the tiers, each way.", "50GB/s")] = None,
    device_bandwidth: Annotated[str | None, _rate("--device-bandwidth", "Memory of the device.", "4000GB/s")] = None,
    host_bandwidth: Annotated[
        str | None, _rate("--host-bandwidth", "Memory of the host, random rows.", "100GB/s")
    ] = None,
    dense_ms: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="MS",
            help="Milliseconds of the dense part of a step.",
            rich_help_panel=MACHINE,
            show_default="1.0",
        ),
    ] = None,
    dense_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**50,
            metavar="BYTES",
            help="Of all dense weights, as they cross at each step of XDL: adds its modelled step.",
            rich_help_panel=MACHINE,
            show_default="0",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Numbers of ranks, such as 2,8,64: tells the bytes that a rank would send in a step, by kind, in "
            "place of hit rates (docs/ranks.md).",
            rich_help_panel=RANKS,
        ),
    ] = None,
    saturated: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="With --ranks: share of the requests that are for saturated rows, whose gradients are not sent; the "
            "report of a run on ranks has the real one.",
            rich_help_panel=RANKS,
            show_default="0.5",
        ),
    ] = None,
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

    With --ranks: bytes between ranks in place of all that. Ctrl-C ends the reading, and tells what was read by then.
    """
    more = {} if batches is None else {"steps": (str(batches), "--batches")}
    if ranks is not None:
        others: dict[str, Any] = {"--policy": policy, "--device-rows": device_rows, "--png": png}
        others |= {"--machine": machine, "--link": link}
        others |= {"--device-bandwidth": device_bandwidth, "--host-bandwidth": host_bandwidth, "--dense-ms": dense_ms}
        _refuse_beside_ranks({**others, "--dense-bytes": dense_bytes})
        with own_stdout():
            (alone,) = load_contenders("lru", sets or [], flags, config, flag="--policy", more=more)
        share = 0.5 if saturated is None else saturated
        _crossing(alone.config, ranks, share, embedding_dim, markdown, as_json=as_json)
        return
    if saturated is not None:
        raise typer.BadParameter("--saturated needs --ranks")
    policy = "lru,lfu" if policy is None else policy
    device_rows = "1%,5%,10%,20%,50%" if device_rows is None else device_rows
    with own_stdout():
        rivals = load_contenders(policy, sets or [], flags, config, flag="--policy", more=more)
    check_folders(png, markdown)
    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.simulate.simulation import simulate as run_simulation
    from adaptive.studies.simulate.simulation_report import draw, simulation_document, stop_lines
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    if png is not None:
        need_matplotlib()
    rates = {"link": link, "device": device_bandwidth, "host": host_bandwidth}
    if dense_ms is not None and not math.isfinite(dense_ms):
        raise typer.BadParameter(f"--dense-ms {dense_ms}: needed milliseconds, a finite number")
    described = _machine(machine, rates, dense_ms, dense_bytes or 0)
    cases = [(rival.label, rival.config) for rival in rivals]
    width = embedding_dim or int(rivals[0].config.model_options.get("embedding_dim", 16))
    sizes = list(dict.fromkeys(size.strip() for size in device_rows.split(",") if size.strip()))
    stop = StopRequest()
    with own_stdout():
        told = Countdown(note, "batches planned")
        result = run_simulation(cases, sizes, described, embedding_dim=width, told=told, stop=stop)
    if png is not None:
        draw(result, png)
    if markdown is not None:
        write_text(markdown, simulation_document(result).to_markdown())
    print_result({**asdict(result), "table": simulation_document(result).to_text()}, as_json=as_json)
    _end_as_stopped(stop, stop_lines(result) if as_json else [])


def _end_as_stopped(stop: "StopRequest", lines: Sequence[str]) -> None:
    """After a stop: say on stderr what is missing, where no table does, and exit as the signal would have."""
    for line in lines:
        note(line)
    stop.raise_exit()


def _refuse_beside_ranks(given: dict[str, Any]) -> None:
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise typer.BadParameter(f"--ranks counts bytes between ranks, on which {', '.join(wrong)} has no influence")


def _crossing(
    settings: "TrainConfig",
    ranks: str,
    saturated: float,
    embedding_dim: int | None,
    markdown: Path | None,
    *,
    as_json: bool,
) -> None:
    check_folders(markdown)
    words = [word.strip() for word in ranks.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise typer.BadParameter(f"--ranks {ranks}: whole numbers are needed, such as 2,8,64")
    from adaptive.studies.simulate.rank_traffic import simulate_rank_traffic
    from adaptive.studies.simulate.simulation_report import rank_stop_lines, rank_traffic_document
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    stop = StopRequest()
    with own_stdout():
        told = Countdown(note, "batches counted")
        sizes = list(map(int, words))
        found = simulate_rank_traffic(
            settings, sizes, saturated=saturated, embedding_dim=embedding_dim, told=told, stop=stop
        )
    if markdown is not None:
        write_text(markdown, rank_traffic_document(found).to_markdown())
    print_result({**asdict(found), "table": rank_traffic_document(found).to_text()}, as_json=as_json)
    _end_as_stopped(stop, rank_stop_lines(found) if as_json else [])


def _machine(
    name: str | None, rates: dict[str, str | None], dense_ms: float | None, dense_bytes: int
) -> "Machine | MachineOf":
    """The machine of the options, or of a file; the options win."""
    from dataclasses import replace

    from adaptive.studies.machines import load_machine
    from adaptive.studies.step_model import Machine, described, parse_rate

    found = {key: parse_rate(text, name=RATES[key]) for key, text in rates.items() if text is not None}
    dense = {} if dense_ms is None else {"dense_ms": dense_ms}
    more: dict[str, Any] = {**found, **dense, "dense_bytes": dense_bytes}
    if name is None:
        return replace(Machine(link=50e9, device=4000e9, host=100e9, dense_ms=1.0), **more)
    spec = load_machine(name)
    return lambda flops, batch_size: replace(described(spec, flops_per_sample=flops, batch_size=batch_size), **more)
