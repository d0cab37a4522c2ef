"""`adaptive-train simulate`: predict device sizes from ids alone."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import command_options as options
from adaptive.cli.flags import DLRM, listed, load_contenders, with_flags
from adaptive.cli.output import check_folders, note, own_stdout, print_document

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.simulate.simulation import MachineOf
    from adaptive.studies.step_model import Machine


UNUSED = ("--device", "--model", "--lr", "--seed", "--eval-every", "--init-from", "--out", DLRM)  # without training


@with_flags("--policy", "--device-rows", *UNUSED)
def simulate(
    *,
    policies: options.SimulatedPolicies = None,
    device_rows: options.DeviceSizes = None,
    machine: options.MachineFile = None,
    dense_ms: options.DenseTime = None,
    ranks: options.RankNumbers = None,
    saturated: options.SaturatedShare = None,
    plot: options.Plot = None,
    markdown: options.Markdown = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Predict hit rates, traffic and step times of device sizes, without training.

    Plans batches as training would, but rows have no values: policies see no movement, so nothing is skipped by
    movement. Deferral by visits works. Sizes too small for the batches in flight are reported as such.

    With --ranks, it reports the bytes between ranks instead. After Ctrl-C, it reports the batches read so far.
    """
    if ranks is not None:
        names = ("--policies", "--device-rows", "--plot", "--machine", "--dense-ms")
        others = zip(names, (policies, device_rows, plot, machine, dense_ms), strict=True)
        if wrong := [name for name, value in others if value is not None]:
            raise typer.BadParameter(f"--ranks: expected no {', '.join(wrong)}, which the bytes between ranks ignore")
        with own_stdout():
            (contender,) = load_contenders("lru", sets or [], flags, config)
        share = 0.5 if saturated is None else saturated
        _simulate_ranks(contender.config, ranks, share, markdown, as_json=as_json)
        return
    if saturated is not None:
        raise typer.BadParameter("--saturated: expected --ranks with it")
    with own_stdout():
        rivals = load_contenders(policies or "lru,lfu", sets or [], flags, config)
    cases = [(rival.label, rival.config) for rival in rivals]
    sizes = listed(device_rows or "1%,5%,10%,20%,50%")
    _simulate(cases, sizes, _machine(machine, dense_ms), plot, markdown, as_json=as_json)


def _machine(file: str | None, dense_ms: float | None) -> "Machine | MachineOf":
    """Return the machine of a file, or one like a large GPU, with the milliseconds of the dense part if given."""
    from adaptive.studies.machines import load_machine
    from adaptive.studies.step_model import Machine, described

    if dense_ms is not None and not math.isfinite(dense_ms):
        raise typer.BadParameter(f"--dense-ms: expected finite milliseconds, got {dense_ms}")
    if file is None:
        return Machine(link=50e9, device=4000e9, host=100e9, dense_ms=1.0 if dense_ms is None else dense_ms)
    spec = load_machine(file)

    def machine_of(flops: float, batch_size: int) -> Machine:
        machine = described(spec, flops_per_sample=flops, batch_size=batch_size)
        return machine if dense_ms is None else replace(machine, dense_ms=dense_ms)

    return machine_of


def _simulate(
    cases: "list[tuple[str, TrainConfig]]",
    sizes: tuple[str, ...],
    machine: "Machine | MachineOf",
    plot: Path | None,
    markdown: Path | None,
    *,
    as_json: bool,
) -> None:
    check_folders(plot, markdown)
    from adaptive.studies.plots import check_plot, plot_simulation
    from adaptive.studies.simulate.simulation import simulate as run_simulation
    from adaptive.studies.simulate.simulation_report import simulation_document, stop_lines
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    if plot is not None:
        check_plot(plot)
    width = int(cases[0][1].model_options.get("embedding_dim", 16))
    stop = StopRequest()
    with own_stdout():
        progress = Countdown(note, "batches planned")
        result = run_simulation(cases, list(sizes), machine, embedding_dim=width, on_progress=progress, stop=stop)
    document = simulation_document(result)
    if plot is not None:
        plot_simulation(result, plot)
    print_document(result, document, as_json=as_json, markdown=markdown, remarks=stop_lines(result))
    stop.raise_exit()


def _simulate_ranks(
    config: "TrainConfig", ranks: str, saturated: float, markdown: Path | None, *, as_json: bool
) -> None:
    check_folders(markdown)
    words = listed(ranks)
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise typer.BadParameter(f"--ranks: expected whole numbers such as 2,8,64, got {ranks!r}")
    from adaptive.studies.simulate.rank_traffic import simulate_rank_traffic
    from adaptive.studies.simulate.simulation_report import rank_stop_lines, rank_traffic_document
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    stop, sizes = StopRequest(), [int(word) for word in words]
    with own_stdout():
        progress = Countdown(note, "batches counted")
        result = simulate_rank_traffic(config, sizes, saturated=saturated, on_progress=progress, stop=stop)
    document, remarks = rank_traffic_document(result), rank_stop_lines(result)
    print_document(result, document, as_json=as_json, markdown=markdown, remarks=remarks)
    stop.raise_exit()
