"""Fields by themselves, compiled and as plain Python: numbers, times, UTF-8."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.data.kernels import text_fields as kernels


def read(function, text, end="\t"):
    data = np.frombuffer(text.encode() + end.encode() + b"\n", np.uint8)
    value, stop = function(data, 0)
    return value, int(stop)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("1.5", 1.5),
        ("-.25", -0.25),
        ("7.", 7.0),
        ("1e3", 1000.0),
        ("1.4202400320782e+19", 1.4202400320782e19),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
        ("0.021739130434782608", 0.021739130434782608),
        ("0." + "0" * 40 + "1", 1e-41),
        ("4.9e-324", 5e-324),
        ("1e-400", 0.0),
        ("0e9999", 0.0),
        ("0.000e-9999", 0.0),
        ("1e400", math.inf),
        ("1" + "0" * 400, math.inf),
        ("1e99999999999999999999", math.inf),
    ],
)
def test_decimal(text, value, compiled):
    function = kernels.parse_decimal if compiled else kernels.parse_decimal.py_func
    actual, stop = read(function, text)
    assert stop == len(text)
    assert actual == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["", "-", ".", "-.", "e5", "1e", "1e+", "+1", "nan", "inf", "x"])
def test_no_decimal_stops_where_it_starts(text):
    assert read(kernels.parse_decimal, text) == (0.0, 0)


@settings(deadline=None)
@given(st.floats(-1e308, 1e308))
def test_decimal_is_within_a_relative_1e_15(number):
    actual, stop = read(kernels.parse_decimal, repr(number))
    assert stop == len(repr(number))
    assert abs(actual - number) <= max(1e-15 * abs(number), 1e-323)


@settings(deadline=None)
@given(st.integers(0, 10**15), st.integers(0, 15))
def test_decimal_is_exact_to_fifteen_digits(digits, point):
    text = f"{digits // 10**point}.{digits % 10**point:0{max(point, 1)}d}"
    if len(text.replace(".", "").lstrip("0")) <= 15:
        assert read(kernels.parse_decimal, text)[0] == float(text)


@pytest.mark.nightly
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01", 0.0),
        ("2000-03-01", 951868800.0),
        ("2019-11-24 00:01:29.788335+00:00", 1574553689.788335),
        ("2019-11-24T00:01:29Z", 1574553689.0),
        ("2019-11-24T02:01:29+02:00", 1574553689.0),
        ("2019-11-23T22:31:29-01:30", 1574553689.0),
        ("2019-11-24 00:01:29 UTC", 1574553689.0),  # BigQuery
        ("2019-11-24 00:01:29+00", 1574553689.0),  # Postgres
        ("2019-11-24 02:01:29.500 +0200", 1574553689.5),  # Snowflake
        ("2019-11-24 00:01", 1574553660.0),
        ("2019-11-23T22:31-0130", 1574553660.0),
        ("2024-02-29", 1709164800.0),
        ("2100-03-01", 4107542400.0),
    ],
)
def test_iso_time(text, seconds, compiled):
    function = kernels.parse_iso_time if compiled else kernels.parse_iso_time.py_func
    actual, stop = read(function, text)
    assert (actual, stop) == (pytest.approx(seconds, abs=1e-6), len(text))


@pytest.mark.parametrize(
    "text",
    [
        "2019-11-24 00:01:29 UT",
        "2019-11-24 00:01:29 ",
        "2019-11-24 00:01 +2",
        "2019-11-24 0",
        "2020-01-01 01:02:00.1e-45+05:30",
        "2020-01-01 23:59:59.2e5Z",
        "2020-01-01 00:00:00.e1",
        "2020-01-01 00:00:00.",
    ],
)
def test_times_end_where_they_are_complete(text):
    assert read(kernels.parse_iso_time, text)[1] < len(text)


@pytest.mark.parametrize(
    "text",
    ["1969-12-31", "2023-02-29", "2100-02-29", "2023-00-01", "2023-04-31", "2023-1-01", "2023/01/01", "20230101"],
)
def test_no_date(text):
    assert read(kernels.parse_iso_time, text)[1] == 0


@settings(deadline=None)  # the first call compiles
@given(st.binary(max_size=12))
def test_utf8_as_python_has_it(data):
    padded = np.frombuffer(data + b"\n", np.uint8)
    try:
        data.decode("utf-8")
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert kernels.is_utf8(padded, 0, len(data)) is expected
    assert kernels.is_utf8.py_func(padded, 0, len(data)) is expected
