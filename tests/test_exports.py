"""The public face: sorted names, each importable, and nothing heavy loaded before it is asked for."""

import subprocess
import sys

import pytest

import adaptive


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_every_name_has_a_home_and_every_home_a_name() -> None:
    assert set(adaptive.__all__) == set(adaptive._HOMES)


@pytest.mark.parametrize("name", adaptive.__all__)
def test_a_name_is_the_thing_that_its_module_defines(name: str) -> None:
    thing = getattr(adaptive, name)
    home = f"adaptive.{adaptive._HOMES[name]}"
    assert getattr(sys.modules[home], name) is thing
    assert getattr(thing, "__module__", home) == home


def test_star_import_gives_all_names() -> None:
    names: dict[str, object] = {}
    exec("from adaptive import *", names)  # noqa: S102 (there is no other way to write it in a function)
    assert set(adaptive.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'adaptive' has no attribute 'Unknown'"):
        adaptive.Unknown  # noqa: B018 (what an attribute error is about)


def test_importing_adaptive_loads_nothing_heavy() -> None:
    heavy = ["torch", "numba", "numpy", "pydantic", "tensorboard", "scipy"]
    print_loaded = f"import sys, adaptive; print([name for name in {heavy} if name in sys.modules])"
    assert run(print_loaded) == "[]"


def test_settings_and_policies_need_neither_torch_nor_numba() -> None:
    code = "import sys; from adaptive import Batch, Policy, TrainConfig; print({'torch', 'numba'} & {*sys.modules})"
    assert run(code) == "set()"
