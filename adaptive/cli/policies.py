"""`adaptive-train policies`: list, show, make and check placement policies."""

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive.cli.output import AsJson, note, own_stdout, print_result

if TYPE_CHECKING:
    from adaptive.policy import Policy, SkipRule
    from adaptive.studies.policy_checks import CheckResult

app = typer.Typer(help="List, show, make and check placement policies.", no_args_is_help=True)

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="Name, module:Class or file.py:Class.", show_default=False)]
TIMEOUT = "tier.policy_timeout_s"
LINK = re.compile(r"https?://\S*[\w/]|\b(?:arXiv|doi)[: ]\s?\d[\w./]*\w", re.IGNORECASE)


@app.command("list")
def list_policies(as_json: AsJson = False) -> None:
    """List the installed policies and skip rules: name, what it does, paper, and where it comes from."""
    from adaptive.plugins import installed_policies, installed_rules, load_policy_class, load_rule_class

    entries = {n: {"from": place, **_about(n, load_policy_class)} for n, place in installed_policies().items()}
    rules = {n: {"from": place, **_about(n, load_rule_class)} for n, place in installed_rules().items()}
    blocks = [_entry_text(name, entry) for name, entry in entries.items()] or ["no policies installed"]
    beside = ["", "skip rules, beside any policy (--skip):", *(_entry_text(*entry) for entry in rules.items())]
    table = "\n".join(blocks + (beside if rules else []))
    print_result({"schema": 1, "policies": entries, "skip_rules": rules, "table": table}, as_json=as_json)


@app.command()
def show(spec: Spec, as_json: AsJson = False) -> None:
    """Show what a policy, or a skip rule, does and its parameters."""
    from adaptive.plugins import installed_rules, load_rule_class
    from adaptive.studies.compare.contenders import policy_class

    if spec in installed_rules():
        rule = load_rule_class(spec)
        own: dict[str, Any] = {"rule": spec, "class": f"{rule.__module__}:{rule.__qualname__}"}
        own |= {"leaves_out": rule.leaves_out, "parameters": _parameters(rule)}
        doc = "\n\n".join(filter(None, (_module_doc(rule), inspect.getdoc(rule)))) or "No description."
        print_result({"schema": 1, **own, "doc": doc, "table": _rule_text(doc, own)}, as_json=as_json)
        return
    cls = policy_class(spec)
    facts: dict[str, Any] = {
        "schema": 1,
        "policy": spec,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "misses": cls.misses,
        "device_rows": cls.device_rows or "any",
        "decides": _decides(cls),
        "parameters": _parameters(cls),
    }
    doc = "\n\n".join(filter(None, (_module_doc(cls), inspect.getdoc(cls)))) or "No description."
    print_result({**facts, "doc": doc, "table": _show_text(doc, facts)}, as_json=as_json)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as my-policy.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="New or empty folder; default: ./NAME.", show_default=False)
    ] = None,
    rule: Annotated[bool, typer.Option("--rule", help="A skip rule in the place of a policy.")] = False,
) -> None:
    """Write a small installable package with a policy, or a skip rule, of your own and its test."""
    from adaptive.cli.scaffold import write_package

    package, flag = write_package(name, folder or Path(name), rule=rule), "--skip" if rule else "--policy"
    note(f"wrote {', '.join(str(path) for path in package.files)}")
    print(
        f"edit:    {package.module_file}\n"
        f"check:   adaptive-train policies check {package.module_file}:{package.class_name}\n"
        f"run:     adaptive-train run {flag} {package.module_file}:{package.class_name}\n"
        f"install: pip install -e {package.folder}   (then: {flag} {name})"
    )


@app.command()
def check(
    spec: Spec,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help=f"Give a parameter of the policy a value, or {TIMEOUT} the seconds that a method may take; may be "
            "repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the contract suite on a policy, or a skip rule; exit 9 if one check fails."""
    options = _options(sets or [])
    timeout_s = _timeout(options)
    from adaptive.errors import PolicyError
    from adaptive.plugins import installed_policies, is_rule
    from adaptive.studies.compare.contenders import policy_class
    from adaptive.studies.policy_checks import check_policy, check_rule

    note(f"checking {spec}; on a new machine kernels are compiled first, which takes up to a minute")
    with own_stdout():
        if is_rule(spec):
            results = check_rule("+".join([spec, *(f"{k}={v}" for k, v in options.items())]), timeout_s=timeout_s)
        else:
            if ":" not in spec and spec not in installed_policies():
                policy_class(spec)  # says what may have been meant
            results = check_policy(spec, options, timeout_s=timeout_s)
    checks = [{"check": r.check, "passed": r.passed, "reason": r.reason, "was_run": r.was_run} for r in results]
    lines = _check_lines(results)
    print_result({"schema": 1, "policy": spec, "checks": checks, "table": "\n".join(lines)}, as_json=as_json)
    failed = [one.check for one in results if one.was_run and not one.passed]
    left = sum(not one.was_run for one in results)
    if failed:
        rest = f"; {left} were not run" if left else ""
        raise PolicyError(f"policy {spec!r} fails {len(failed)} of {len(results)} checks: {', '.join(failed)}{rest}")


def _module_doc(cls: "type[Policy] | type[SkipRule]") -> str | None:
    """Description of the class's module, to which its own refers; a package's is about more than the class."""
    module = inspect.getmodule(cls)
    return None if module is None or hasattr(module, "__path__") else inspect.getdoc(module)


def _check_lines(results: "Sequence[CheckResult]") -> list[str]:
    """A line for each check; a cause that fails several checks once, with their names below it. A failed check belongs
    to an earlier cause if its reason says it, too."""
    causes: dict[str, list[str]] = {}
    for result in results:
        if result.was_run and not result.passed:
            cause = next((known for known in causes if known in result.reason), result.reason)
            causes.setdefault(cause, []).append(result.check)
    of_many = {name for names in causes.values() if len(names) > 1 for name in names}
    lines = []
    for result in results:
        names = causes.get(result.reason, [])
        if result.check not in of_many:
            lines.append(_check_text(result))
        elif names[:1] == [result.check]:
            lines += [f"FAILED {len(names)} checks: {result.reason}", *(f"         {name}" for name in names)]
    return lines


def _check_text(result: "CheckResult") -> str:
    word = "-" if not result.was_run else "warn" if result.is_doubtful else "ok" if result.passed else "FAILED"
    return f"{word:<6} {result.check}{result.reason and ': '}{result.reason}"


def _options(sets: list[str]) -> dict[str, Any]:
    from adaptive.errors import ConfigError
    from adaptive.training.settings import parse_text

    options = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r}: needed NAME=VALUE, the value of a parameter of the policy")
        options[name.strip().removeprefix("policy.")] = parse_text(value)
    return options


def _timeout(options: dict[str, Any]) -> float:
    """Takes the limit, which is none of the policy's parameters, out of the options."""
    from pydantic import ValidationError

    from adaptive.config import TierConfig
    from adaptive.errors import ConfigError

    key = TIMEOUT.rpartition(".")[2]
    given = {key: options.pop(TIMEOUT)} if TIMEOUT in options else {}
    try:
        return TierConfig.model_validate(given).policy_timeout_s
    except ValidationError as error:
        raise ConfigError(f"--set {TIMEOUT}: found {given[key]!r}; allowed: seconds, 0 for no limit") from error


def _about(name: str, load: Callable[[str], type]) -> dict[str, str]:
    """First line of the description and the paper's link, or why it does not load."""
    try:
        cls = load(name)
    except Exception as error:  # a policy of somebody else may raise anything when imported
        return {"error": f"{type(error).__name__}: {error}"}
    doc = "\n".join(filter(None, (inspect.getdoc(cls), inspect.getdoc(inspect.getmodule(cls)))))
    link = LINK.search(doc)
    return {"doc": doc.partition("\n")[0], "paper": link[0] if link else ""}


def _entry_text(name: str, entry: dict[str, str]) -> str:
    head = f"{name:<12} {entry['doc']}" if "doc" in entry else f"{name:<12} does not load: {entry['error']}"
    tail = ", ".join(filter(None, (entry.get("paper"), entry["from"])))
    return f"{head}\n{'':<12} {tail}"


def _decides(cls: "type[Policy]") -> list[str]:
    """The methods of the interface that the class fills."""
    from adaptive.policy import Policy

    optional = ("saturated", "looked_up", "left", "came", "arrange", "calibrate")
    return ["score", *(name for name in optional if getattr(cls, name) is not getattr(Policy, name))]


def _parameters(cls: "type[Policy] | type[SkipRule]") -> dict[str, dict[str, str]]:
    from adaptive.plugins import policy_parameters

    empty = inspect.Parameter.empty
    return {
        name: {
            "type": "any" if one.annotation is empty else _type_text(one.annotation),
            "default": "none, must be given" if one.default is empty else repr(one.default),
        }
        for name, one in policy_parameters(cls).items()
    }


def _type_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _show_text(doc: str, facts: dict[str, Any]) -> str:
    lines = [doc, ""]
    for key in ("class", "misses", "device_rows"):
        lines.append(f"{key}: {facts[key]}")
    lines.append(f"decides: {', '.join(facts['decides'])}")
    lines.append("parameters (--set policy.NAME=VALUE):" if facts["parameters"] else "parameters: none")
    lines += [f"  {name}: {one['type']} = {one['default']}" for name, one in facts["parameters"].items()]
    return "\n".join(lines)


def _rule_text(doc: str, facts: dict[str, Any]) -> str:
    lines = [doc, "", f"class: {facts['class']}", f"leaves updates out: {'yes' if facts['leaves_out'] else 'no'}"]
    lines.append("parameters (--skip RULE+NAME=VALUE):" if facts["parameters"] else "parameters: none")
    lines += [f"  {name}: {one['type']} = {one['default']}" for name, one in facts["parameters"].items()]
    return "\n".join(lines)
