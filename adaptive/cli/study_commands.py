"""`adaptive-train compare` and `simulate`: policies on the same data, with and without training."""

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import options
from adaptive.cli.options import given_flags, with_flags
from adaptive.cli.output import check_folders, note, own_stdout, print_document, write_text

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.compare import Contender
    from adaptive.studies.compare.comparison_runs import Outcome
    from adaptive.studies.compare.verdicts import ToAuc


@with_flags("policy", "out")
def compare(
    *,
    policies: options.Policies = "hybrid,lru,slipstream",
    seeds: options.Seeds = 3,
    auc_budget: options.AucBudget = 0.0005,
    to_auc: options.ToAuc = None,
    markdown: options.Markdown = None,
    csv: options.Csv = None,
    plot: options.Plot = None,
    out: options.ComparisonFolder = None,
    overwrite: options.Overwrite = False,
    auto_resume: options.AutoResumeComparison = False,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Train policies on the same data, and compare quality, speed and traffic.

    Policies that skip nothing must agree bit for bit; compare checks this. A policy that drops inputs is followed by
    two controls that drop as many at random: by chance, and by label (negatives only, the others weighted). Each run is
    stored under --out as seed-<seed>/<policy>. If a run fails, the others continue, and the command exits with that
    run's error code. After Ctrl-C, compare reports the runs that finished; --auto-resume trains the rest.
    """
    with own_stdout():
        rivals = _load_contenders(policies, sets or [], {**flags, "flag_out": out}, config)
    auc = _auc_to_reach(to_auc, rivals)
    check_folders(markdown, csv, plot)
    from adaptive.errors import PolicyError
    from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
    from adaptive.studies.compare.comparison_runs import claim, train_all, write_record
    from adaptive.studies.compare.verdicts import judge
    from adaptive.studies.plots import check_plot, plot_comparison

    if plot is not None:
        check_plot(plot)
    if auto_resume and (overwrite or rivals[0].config.out is None):
        raise typer.BadParameter(
            "--auto-resume: expected --out DIR, the directory of the comparison, and no --overwrite"
        )
    directory = claim(rivals[0].config.out, overwrite=overwrite, auto_resume=auto_resume)

    def report(outcomes: "Sequence[Outcome]", stopped: str = "") -> list[str]:
        """Write and print the report; return the problems."""
        result = judge(outcomes, auc_budget=auc_budget, to_auc=auc)
        problems = [*result.problems, *filter(None, [stopped])]
        result = replace(result, problems=problems, out=str(directory))
        write_record(directory, result)
        document, footer = comparison_document(result), f"\nruns: {directory}"
        print_document(result, document, as_json=as_json, markdown=markdown, footer=footer)
        if csv is not None:
            write_text(csv, comparison_csv(result))
        if plot is not None:
            plot_comparison(result, plot)
        return problems

    train = functools.partial(train_all, stream=sys.stderr, on_progress=note)
    outcomes: list[Outcome] = []
    try:
        with own_stdout():
            outcomes.extend(train(rivals, seeds, directory, overwrite=overwrite, auto_resume=auto_resume))
    except (SystemExit, KeyboardInterrupt):  # hours of training may be done
        if outcomes:
            done = sum(outcome.control_of is None for outcome in outcomes)
            report(outcomes, f"stopped after {done} of {seeds * len(rivals)} runs, so the others are missing here")
        raise
    problems = report(outcomes)
    for outcome in outcomes:  # after the report, so that an error does not hide it
        if outcome.error is not None:
            raise outcome.error
    if problems:
        raise PolicyError("; ".join(problems))


def _load_contenders(
    policies: str, sets: list[str], values: Mapping[str, object], file: Path | None
) -> "list[Contender]":
    """Return the policies of a list with the settings of the command line; `values`: its flags, by parameter."""
    from adaptive.studies.compare import contenders
    from adaptive.training.settings import load_settings

    texts, names = given_flags(values)

    def load(label: str, sets: Sequence[str]) -> "TrainConfig":
        flags, flag_names = {**texts, "policy": label}, {**names, "policy": "--policies"}
        return load_settings(file=file, sets=sets, flags=flags, flag_names=flag_names, environ=os.environ)[0]

    return contenders(policies, sets, load)


def _auc_to_reach(text: str | None, rivals: "Sequence[Contender]") -> "ToAuc | None":
    """The AUC of `--to-auc`, checked."""
    if text is None:
        return None
    if any(rival.config.eval_every is None for rival in rivals):
        raise typer.BadParameter(
            "--to-auc: expected evaluations during training, got eval_every=null. Set --eval-every to a twentieth of "
            "the run's steps or fewer"
        )
    if text == "auto":
        return "auto"
    try:
        auc = float(text)
    except ValueError:
        auc = -1.0
    if not 0 < auc <= 1:
        raise typer.BadParameter(f"--to-auc: expected a number from 0 to 1, or auto, got {text}")
    return auc


UNUSED = ("tier.device", "model", "optimizer.lr", "seed", "eval_every", "init_from", "out")  # without training


@with_flags("policy", "tier.device_rows", *UNUSED)
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

    With --skew, it reports the skew of the ids instead.
    """
    others = {"--policies": policies, "--device-rows": device_rows, "--plot": plot}
    if skew and (wrong := [name for name, value in others.items() if value is not None]):
        raise typer.BadParameter(
            f"--skew: expected no {', '.join(wrong)}, which the skew of the ids does not depend on"
        )
    from adaptive.training.telemetry.progress import Countdown

    check_folders(plot, markdown)
    if plot is not None:
        from adaptive.studies.plots import check_plot

        check_plot(plot)
    with own_stdout():
        rivals = _load_contenders(policies or "lru,lfu", sets or [], flags, config)
    if skew:
        from adaptive.studies.skew import count_skew, skew_document

        with own_stdout():
            skewed = count_skew(rivals[0].config, on_progress=Countdown(note, "batches counted"))
        print_document(skewed, skew_document(skewed), as_json=as_json, markdown=markdown)
        return
    from adaptive.studies.simulation import simulate as run_simulation
    from adaptive.studies.simulation import simulation_document

    cases = [(rival.label, rival.config) for rival in rivals]
    sizes = dict.fromkeys(size.strip() for size in (device_rows or "1%,5%,10%,20%,50%").split(",") if size.strip())
    width = int(cases[0][1].model_options.get("embedding_dim", 16))
    with own_stdout():
        progress = Countdown(note, "batches planned")
        result = run_simulation(cases, list(sizes), embedding_dim=width, on_progress=progress)
    if plot is not None:
        from adaptive.studies.plots import plot_simulation

        plot_simulation(result, plot)
    print_document(result, simulation_document(result), as_json=as_json, markdown=markdown)
