"""`adaptive-train simulate`: planner and policies over ids alone, for several device sizes and a described machine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import command_options as options
from adaptive.cli.flags import DLRM, listed, load_contenders, with_flags
from adaptive.cli.output import check_folders, note, own_stdout, print_result, write_text

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.simulate.simulation import MachineOf
    from adaptive.studies.step_model import Machine


NO_USE = ("--device", "--model", "--lr", "--seed", "--eval-every", "--init-from", "--out", DLRM)  # without training


@with_flags("--policy", "--device-rows", *NO_USE)
def simulate(
    *,
    policies: options.SimulatedPolicies = None,
    device_rows: options.DeviceSizes = None,
    embedding_dim: options.Width = None,
    machine: options.MachineFile = None,
    link: options.Link = None,
    device_bandwidth: options.DeviceBandwidth = None,
    host_bandwidth: options.HostBandwidth = None,
    dense_ms: options.DenseTime = None,
    dense_bytes: options.DenseBytes = None,
    ranks: options.RankNumbers = None,
    saturated: options.SaturatedShare = None,
    plot: options.Plot = None,
    markdown: options.Markdown = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Predict hit rates, traffic and step times of device sizes from the ids of the data, without training.

    The planner keeps its books as in training, but no row has a value: policies see no movement, and what is skipped by
    movement is not. Deferral by visits is. Sizes too small for the batches in flight are reported as such.

    With --ranks: bytes between ranks in place of all that. Ctrl-C ends the reading, and reports what was read by then.
    """
    described = _Described(machine, link, device_bandwidth, host_bandwidth, dense_ms, dense_bytes)
    outputs = _Outputs(plot, markdown, as_json)
    if ranks is not None:
        others = {"--policies": policies, "--device-rows": device_rows, "--plot": plot, **described.given()}
        if wrong := [name for name, value in others.items() if value is not None]:
            raise typer.BadParameter(
                f"--ranks counts bytes between ranks, on which {', '.join(wrong)} has no influence"
            )
        with own_stdout():
            (contender,) = load_contenders("lru", sets or [], flags, config)
        share = 0.5 if saturated is None else saturated
        _simulate_ranks(contender.config, ranks, share, embedding_dim, outputs)
        return
    if saturated is not None:
        raise typer.BadParameter("--saturated needs --ranks")
    with own_stdout():
        rivals = load_contenders(policies or "lru,lfu", sets or [], flags, config)
    cases = [(rival.label, rival.config) for rival in rivals]
    _simulate(cases, listed(device_rows or "1%,5%,10%,20%,50%"), described, embedding_dim, outputs)


@dataclass(frozen=True)
class _Described:
    """The machine, as options describe it."""

    machine: str | None
    link: str | None
    device: str | None
    host: str | None
    dense_ms: float | None
    dense_bytes: int | None

    def given(self) -> Mapping[str, object]:
        """Flag -> value or None."""
        rates = {"--link": self.link, "--device-bandwidth": self.device, "--host-bandwidth": self.host}
        return {"--machine": self.machine, **rates, "--dense-ms": self.dense_ms, "--dense-bytes": self.dense_bytes}

    def load(self) -> "Machine | MachineOf":
        """The machine of the options, or of a file; the options win."""
        from adaptive.studies.machines import load_machine
        from adaptive.studies.step_model import Machine, described, parse_rate

        if self.dense_ms is not None and not math.isfinite(self.dense_ms):
            raise typer.BadParameter(f"--dense-ms {self.dense_ms}: expected milliseconds, a finite number")
        flags = {"link": "--link", "device": "--device-bandwidth", "host": "--host-bandwidth"}
        texts = {"link": self.link, "device": self.device, "host": self.host}
        changed: dict[str, Any] = {
            key: parse_rate(text, name=flags[key]) for key, text in texts.items() if text is not None
        }
        changed |= {"dense_bytes": self.dense_bytes or 0}
        changed |= {} if self.dense_ms is None else {"dense_ms": self.dense_ms}
        if self.machine is None:
            return replace(Machine(link=50e9, device=4000e9, host=100e9, dense_ms=1.0), **changed)
        spec = load_machine(self.machine)
        return lambda flops, batch_size: replace(
            described(spec, flops_per_sample=flops, batch_size=batch_size), **changed
        )


@dataclass(frozen=True)
class _Outputs:
    """Where a simulation goes."""

    plot: Path | None
    markdown: Path | None
    as_json: bool


def _simulate(
    cases: "list[tuple[str, TrainConfig]]",
    sizes: tuple[str, ...],
    described: _Described,
    embedding_dim: int | None,
    outputs: _Outputs,
) -> None:
    check_folders(outputs.plot, outputs.markdown)
    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.simulate.simulation import simulate as run_simulation
    from adaptive.studies.simulate.simulation_report import draw, simulation_document, stop_lines
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    if outputs.plot is not None:
        need_matplotlib()
    machine = described.load()
    width = embedding_dim or int(cases[0][1].model_options.get("embedding_dim", 16))
    stop = StopRequest()
    with own_stdout():
        told = Countdown(note, "batches planned")
        result = run_simulation(cases, list(sizes), machine, embedding_dim=width, told=told, stop=stop)
    document = simulation_document(result)
    if outputs.plot is not None:
        draw(result, outputs.plot)
    if outputs.markdown is not None:
        write_text(outputs.markdown, document.to_markdown())
    print_result(result, table=document.to_text(), as_json=outputs.as_json)
    for line in stop_lines(result) if outputs.as_json else []:  # what is missing, where no table says so
        note(line)
    stop.raise_exit()


def _simulate_ranks(
    config: "TrainConfig", ranks: str, saturated: float, embedding_dim: int | None, outputs: _Outputs
) -> None:
    check_folders(outputs.markdown)
    words = listed(ranks)
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise typer.BadParameter(f"--ranks {ranks}: whole numbers are needed, such as 2,8,64")
    from adaptive.studies.simulate.rank_traffic import simulate_rank_traffic
    from adaptive.studies.simulate.simulation_report import rank_stop_lines, rank_traffic_document
    from adaptive.system import StopRequest
    from adaptive.training.telemetry.progress import Countdown

    stop, sizes = StopRequest(), [int(word) for word in words]
    with own_stdout():
        told = Countdown(note, "batches counted")
        result = simulate_rank_traffic(
            config, sizes, saturated=saturated, embedding_dim=embedding_dim, told=told, stop=stop
        )
    document = rank_traffic_document(result)
    if outputs.markdown is not None:
        write_text(outputs.markdown, document.to_markdown())
    print_result(result, table=document.to_text(), as_json=outputs.as_json)
    for line in rank_stop_lines(result) if outputs.as_json else []:
        note(line)
    stop.raise_exit()
