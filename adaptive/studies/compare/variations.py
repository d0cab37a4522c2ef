"""From `--vary batch_size=256,1024` to the values under which every policy is trained.

Several lists make the product of their values, the last one varying fastest. A list may vary keys together, joined by
`+`: `optimizer.lr+dense_optimizer.lr=0.01+0.01,0.1+0.1` has two values, not four.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final
from urllib.parse import quote

from adaptive.errors import ConfigError
from adaptive.training.settings import parse_text

OWN_FLAGS: Final = {
    "policy": "policies are compared with --policies",
    "seed": "seeds are compared with --seeds",
    "out": "run directories lie under --out",
}
_ITEM: Final = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])*""")  # up to a comma outside of these
_SAFE: Final = "=+%@:~ ,"  # in names of folders, besides letters, digits and _ . -


@dataclass(frozen=True)
class Value:
    """A value of a key, as it was written, and where that was, for messages."""

    key: str
    text: str
    place: str = ""


Variation = tuple[Value, ...]
"""A value of each key that is varied; none where nothing is."""


def variations(lists: Sequence[str], given: Mapping[str, str]) -> list[Variation]:
    """Every combination of the values of `KEY=VALUE,VALUE` lists; a single empty one of no list.

    Commas in quotes and brackets belong to a value. Whether keys exist and values fit is seen where settings are read.

    Args:
        lists: as given by --vary.
        given: settings that were given otherwise -> by what.

    Raises:
        ConfigError: for a list without a key or a value, a value that comes twice, and a key that another list or
            option gives, or that cannot be varied.
    """
    choices = [_choices(text) for text in lists]
    seen = dict(given)
    for key in [value.key for values in choices for value in values[0]]:
        if key in OWN_FLAGS:
            raise ConfigError(f"--vary {key}: {OWN_FLAGS[key]}")
        if key in seen:
            raise ConfigError(f"--vary {key}: {seen[key]} gives {key}, too; give one of them")
        seen[key] = "another --vary"
    return [tuple(value for part in combination for value in part) for combination in product(*choices)]


def title(variation: Variation) -> str:
    """`batch_size=256, optimizer.lr=0.1`"""
    return ", ".join(f"{value.key}={value.text}" for value in variation)


def folders(variation: Variation) -> list[str]:
    """A name of a folder for each key: `batch_size=256`. Different values have different names."""
    return [quote(f"{value.key}={value.text}", safe=_SAFE) for value in variation]


def values(variation: Variation) -> dict[str, Any]:
    """Key -> value, numbers as numbers."""
    return {value.key: parse_text(value.text) for value in variation}


def _choices(text: str) -> list[Variation]:
    """The values of one list, each of one key or of several that vary together."""
    left, equals, right = text.partition("=")
    keys = [key.strip() for key in left.split("+")]
    if not (equals and all(keys)):
        raise ConfigError(f"--vary {text!r}: needed KEY=VALUE,VALUE, for example --vary batch_size=256,1024,4096")
    items = [item.strip() for item in _split(right)]
    found = []
    for number, item in enumerate(items, start=1):
        place = f"--vary, value {number} of {len(items)}"
        parts = [part.strip() for part in item.split("+")] if len(keys) > 1 else [item]
        if not all(parts):
            raise ConfigError(f"--vary {left}: value {number} of {len(items)} is empty, in {text!r}")
        if len(parts) != len(keys):
            raise ConfigError(
                f"--vary {left}: value {number} of {len(items)} is {item!r}; needed a part for each of "
                f"{len(keys)} keys, joined by +"
            )
        found.append(tuple(Value(key, part, place) for key, part in zip(keys, parts, strict=True)))
    for number, item in enumerate(items):
        if any(values(found[number]) == values(earlier) for earlier in found[:number]):  # 0.1 and 0.10 are one, too
            raise ConfigError(f"--vary {left}: {item} more than once, in {text!r}")
    return found


def _split(text: str) -> list[str]:
    """At the commas outside of quotes and brackets."""
    items, start = [], 0
    while True:
        match = _ITEM.match(text, start)
        assert match is not None  # it may be empty
        items.append(match.group())
        if match.end() == len(text):
            return items
        start = match.end() + 1
