"""`adaptive-train policies`: list, show and check policies and skip rules."""

import inspect
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive.cli.options import AsJson, given_sets
from adaptive.cli.output import note, own_stdout, print_result

if TYPE_CHECKING:
    from adaptive.policy import Policy, SkipRule
    from adaptive.studies.policy_checks import CheckResult

app = typer.Typer(help="List, show and check placement policies and skip rules.", no_args_is_help=True)

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="Name, module:Class or file.py:Class.", show_default=False)]
LINK = re.compile(r"https?://\S*[\w/]|\b(?:arXiv|doi)[: ]\s?\d[\w./]*\w", re.IGNORECASE)


@app.command("list")
def list_policies(as_json: AsJson = False) -> None:
    """List the installed policies and skip rules with description, paper and origin."""
    from adaptive.plugins import installed_policies, installed_rules, load_policy_class, load_rule_class

    entries = {n: {"from": place, **_about(n, load_policy_class)} for n, place in installed_policies().items()}
    rules = {n: {"from": place, **_about(n, load_rule_class)} for n, place in installed_rules().items()}
    blocks = [_entry_text(name, entry) for name, entry in entries.items()] or ["no policies installed"]
    rule_lines = ["", "skip rules, for any policy (--skip):", *(_entry_text(*entry) for entry in rules.items())]
    table = "\n".join(blocks + (rule_lines if rules else []))
    print_result({"schema": 1, "policies": entries, "skip_rules": rules}, table=table, as_json=as_json)


@app.command()
def show(spec: Spec, as_json: AsJson = False) -> None:
    """Show the description and parameters of a policy or a skip rule."""
    from adaptive.plugins import PARAMETER, installed_rules, load_policy_class, load_rule_class

    spec = PARAMETER.split(spec)[0]
    cls: type[Policy] | type[SkipRule]
    if spec in installed_rules():
        cls = load_rule_class(spec)
        facts: dict[str, Any] = {"rule": spec, "class": _place(cls), "least": cls.least, "most": cls.most}
        words, flag = {"class": _place(cls), "loses updates": "no" if cls.least else "yes"}, "--skip RULE+"
    else:
        cls = load_policy_class(spec)
        words = {"class": _place(cls), "misses": cls.misses, "device_rows": str(cls.device_rows or "any")}
        facts = {"policy": spec, **words, "decides": _decides(cls)}
        words, flag = {**words, "decides": ", ".join(facts["decides"])}, "--set policy."
    facts["parameters"] = _parameters(cls)
    doc = "\n\n".join(filter(None, (_module_doc(cls), inspect.getdoc(cls)))) or "No description."
    lines = [doc, "", *(f"{name}: {text}" for name, text in words.items())]
    lines.append(f"parameters ({flag}NAME=VALUE):" if facts["parameters"] else "parameters: none")
    lines += [f"  {name}: {fact['type']} = {fact['default']}" for name, fact in facts["parameters"].items()]
    print_result({"schema": 1, **facts, "doc": doc}, table="\n".join(lines), as_json=as_json)


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@app.command()
def check(
    spec: Spec,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter of the policy; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a policy or a skip rule keeps its contract; exits with 9 if a check fails."""
    options = {name.removeprefix("policy."): value for name, value in given_sets(sets).items()}
    from adaptive.errors import PolicyError
    from adaptive.studies.policy_checks import check_policy

    note(f"checking {spec}; on a new machine, kernels are compiled first, which takes up to a minute")
    with own_stdout():
        results = check_policy(spec, options)
    checks = [asdict(result) for result in results]
    table = "\n".join(map(_check_line, results))
    print_result({"schema": 1, "policy": spec, "checks": checks}, table=table, as_json=as_json)
    if failed := [result.check for result in results if not result.passed]:
        raise PolicyError(f"policy {spec!r} fails {len(failed)} of {len(results)} checks: {', '.join(failed)}")


def _module_doc(cls: "type[Policy] | type[SkipRule]") -> str | None:
    """Return the docstring of the class's module, unless it is a package."""
    module = inspect.getmodule(cls)
    return None if module is None or hasattr(module, "__path__") else inspect.getdoc(module)


def _check_line(result: "CheckResult") -> str:
    word = "ok" if result.passed else "FAILED"
    return f"{word:<6} {result.check}{result.reason and ': '}{result.reason}"


def _about(name: str, load: Callable[[str], type]) -> dict[str, str]:
    """Return the first line of the description and a link, or why it does not load."""
    try:
        cls = load(name)
    except Exception as error:  # third-party policies may raise anything on import
        return {"error": f"{type(error).__name__}: {error}"}
    doc = "\n".join(filter(None, (inspect.getdoc(cls), inspect.getdoc(inspect.getmodule(cls)))))
    link = LINK.search(doc)
    return {"doc": doc.partition("\n")[0], "paper": link[0] if link else ""}


def _entry_text(name: str, entry: dict[str, str]) -> str:
    head = f"{name:<12} {entry['doc']}" if "doc" in entry else f"{name:<12} does not load: {entry['error']}"
    tail = ", ".join(filter(None, (entry.get("paper"), entry["from"])))
    return f"{head}\n{'':<12} {tail}"


def _decides(cls: "type[Policy]") -> list[str]:
    """Return the methods of the interfaces that the class implements."""
    from adaptive.policy import Calibrates, Follows, InputPolicy, Policy

    kinds = (kind for kind in (Policy, Follows, Calibrates, InputPolicy) if issubclass(cls, kind))
    public = (name for kind in kinds for name, member in vars(kind).items() if inspect.isfunction(member))
    return [name for name in public if not name.startswith("_") and not name.endswith("state_dict")]


def _parameters(cls: "type[Policy] | type[SkipRule]") -> dict[str, dict[str, str]]:
    from adaptive.plugins import policy_parameters

    empty = inspect.Parameter.empty
    return {
        name: {
            "type": "any" if parameter.annotation is empty else _type_text(parameter.annotation),
            "default": "none, required" if parameter.default is empty else repr(parameter.default),
        }
        for name, parameter in policy_parameters(cls).items()
    }


def _type_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
