"""`adaptive-train simulate`: predict device sizes from ids alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import command_options as options
from adaptive.cli.flags import listed, load_contenders, with_flags
from adaptive.cli.output import check_folders, note, own_stdout, print_document

if TYPE_CHECKING:
    from adaptive.config import TrainConfig


UNUSED = ("--device", "--model", "--lr", "--seed", "--eval-every", "--init-from", "--out")  # without training


@with_flags("--policy", "--device-rows", *UNUSED)
def simulate(
    *,
    policies: options.SimulatedPolicies = None,
    device_rows: options.DeviceSizes = None,
    skew: options.Skew = False,
    plot: options.Plot = None,
    markdown: options.Markdown = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Predict hit rates and traffic of device sizes, without training.

    Plans batches as training would, but rows have no values, so no update is skipped or deferred. Sizes too small for
    the batches in flight are reported as such.

    With --skew, it reports the skew of the ids instead. After Ctrl-C, it reports the batches read so far.
    """
    others = {"--policies": policies, "--device-rows": device_rows, "--plot": plot}
    if skew and (wrong := [name for name, value in others.items() if value is not None]):
        raise typer.BadParameter(
            f"--skew: expected no {', '.join(wrong)}, which the skew of the ids does not depend on"
        )
    check_folders(plot, markdown)
    if plot is not None:
        from adaptive.studies.plots import check_plot

        check_plot(plot)
    with own_stdout():
        rivals = load_contenders(policies or "lru,lfu", sets or [], flags, config)
    if skew:
        _count_skew(rivals[0].config, markdown, as_json=as_json)
        return
    cases = [(rival.label, rival.config) for rival in rivals]
    _simulate(cases, listed(device_rows or "1%,5%,10%,20%,50%"), plot, markdown, as_json=as_json)


def _simulate(
    cases: "list[tuple[str, TrainConfig]]",
    sizes: tuple[str, ...],
    plot: Path | None,
    markdown: Path | None,
    *,
    as_json: bool,
) -> None:
    from adaptive.studies.simulation import simulate as run_simulation
    from adaptive.studies.simulation import simulation_document, stop_lines
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    width = int(cases[0][1].model_options.get("embedding_dim", 16))
    stop = StopRequest()
    with own_stdout():
        progress = Countdown(note, "batches planned")
        result = run_simulation(cases, list(sizes), embedding_dim=width, on_progress=progress, stop=stop)
    document = simulation_document(result)
    if plot is not None:
        from adaptive.studies.plots import plot_simulation

        plot_simulation(result, plot)
    print_document(result, document, as_json=as_json, markdown=markdown, remarks=stop_lines(result))
    stop.raise_exit()


def _count_skew(config: "TrainConfig", markdown: Path | None, *, as_json: bool) -> None:
    from adaptive.studies.skew import count_skew, skew_document, skew_stop_lines
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    stop = StopRequest()
    with own_stdout():
        progress = Countdown(note, "batches counted")
        result = count_skew(config, on_progress=progress, stop=stop)
    document, remarks = skew_document(result), skew_stop_lines(result)
    print_document(result, document, as_json=as_json, markdown=markdown, remarks=remarks)
    stop.raise_exit()
