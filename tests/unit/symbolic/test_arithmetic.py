"""Index arithmetic against Python's integers, on random expressions and random values."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from polyfuse.symbolic import (
    axis,
    axis_name,
    axis_size,
    bounds,
    coefficient,
    evaluate,
    free_axes,
    free_symbols,
    host,
    is_equal,
    is_less,
    is_nonnegative,
    maximum,
    minimum,
    product,
    python_text,
    substitute,
    symbol,
)

SYMBOLS = {"s0": symbol("s0", 1, 7), "s1": symbol("s1", 2)}
AXES = {"i": axis("i", 6), "j": axis("j", SYMBOLS["s0"]), "k": axis("k", 1), "m": axis("m", 12)}

# An expression is a nested tuple, built twice: with indices, and with integers for its variables.
LEAVES = st.one_of(st.integers(-20, 20), st.sampled_from([*AXES, *SYMBOLS]))
POSITIVE = st.one_of(st.integers(1, 13), st.sampled_from(list(SYMBOLS)))


def _grow(inner):
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: ("+", *p)),
        pair.map(lambda p: ("-", *p)),
        st.tuples(inner, st.integers(-12, 12)).map(lambda p: ("*", *p)),
        st.tuples(inner, POSITIVE).map(lambda p: ("*", *p)),
        st.tuples(inner, POSITIVE).map(lambda p: ("//", *p)),
        st.tuples(inner, POSITIVE).map(lambda p: ("%", *p)),
        st.tuples(inner, st.integers(-12, -1)).map(lambda p: ("//", *p)),
        st.tuples(inner, st.integers(-12, -1)).map(lambda p: ("%", *p)),
        pair.map(lambda p: ("//", *p)),
        pair.map(lambda p: ("%", *p)),
        pair.map(lambda p: ("min", *p)),
        pair.map(lambda p: ("max", *p)),
    )


TREES = st.recursive(LEAVES, _grow, max_leaves=10)

VALUES = st.builds(
    lambda s0, s1, i, j, m: {"s0": s0, "s1": s1, "i": i, "j": j % s0, "k": 0, "m": m},
    st.integers(1, 7),
    st.integers(2, 40),
    st.integers(0, 5),
    st.integers(0, 6),
    st.integers(0, 11),
)


def build(tree, known):
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return known[tree]
    sign, left, right = tree[0], build(tree[1], known), build(tree[2], known)
    if sign == "min":
        return minimum(left, right)
    if sign == "max":
        return maximum(left, right)
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "//": lambda: left // right,
        "%": lambda: left % right,
    }[sign]()


EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
"""The same ones in each run, which may take any time."""


def both(tree, values):
    """The index of a tree, and what Python makes of it; rejects a division by zero."""
    try:
        return build(tree, {**AXES, **SYMBOLS}), build(tree, values)
    except ZeroDivisionError:
        assume(False)
        raise


def value_of(index, values):
    try:
        return evaluate(index, values)
    except ZeroDivisionError:
        # a divisor that Python's own order of simplification never reached
        assume(False)
        raise


@EXAMPLES
@given(TREES, VALUES)
def test_arithmetic_means_what_python_means(tree, values):
    index, expected = both(tree, values)
    assert value_of(index, values) == expected


@EXAMPLES
@given(TREES, VALUES)
def test_bounds_and_signs_hold_everywhere(tree, values):
    index, expected = both(tree, values)
    low, high = bounds(index)
    assert low is None or low <= expected
    assert high is None or expected <= high
    if is_nonnegative(index):
        assert expected >= 0


@EXAMPLES
@given(TREES, TREES, VALUES)
def test_comparisons_that_are_proved_hold(left, right, values):
    a, x = both(left, values)
    b, y = both(right, values)
    if is_less(a, b):
        assert x < y
    if is_equal(a, b):
        assert x == y


@EXAMPLES
@given(TREES, TREES, VALUES)
def test_substitution_is_evaluation_in_two_steps(tree, inner, values):
    outer, _ = both(tree, values)
    replacement, put = both(inner, values)
    assume(0 <= put <= 5)
    # every variable that is bounded promises to stay inside its bounds
    low, high = bounds(replacement)
    assume(low is not None and low >= 0 and high is not None and high <= 5)
    changed = _try(lambda: substitute(outer, {"i": replacement, "s1": SYMBOLS["s0"] + 1}))
    moved = {**values, "i": put, "s1": values["s0"] + 1}
    assert value_of(changed, values) == value_of(outer, moved)


def _try(function):
    try:
        return function()
    except ZeroDivisionError:
        assume(False)
        raise


@EXAMPLES
@given(TREES, VALUES)
def test_host_text_evaluates_to_the_same(tree, values):
    index, expected = both(tree, values)
    try:
        found = eval(python_text(index), {}, dict(values))
    except ZeroDivisionError:
        assume(False)
        raise
    assert found == expected


@EXAMPLES
@given(TREES, VALUES)
def test_coefficients_are_differences(tree, values):
    index, _ = both(tree, values)
    step = coefficient(index, "m")
    assume(step is not None and values["m"] < 11)
    after = value_of(index, {**values, "m": values["m"] + 1})
    assert value_of(step, values) == after - value_of(index, values)


@EXAMPLES
@given(TREES)
def test_equal_expressions_are_one_object(tree):
    first = _try(lambda: build(tree, {**AXES, **SYMBOLS}))
    second = _try(lambda: build(tree, {**AXES, **SYMBOLS}))
    assert first is second or (isinstance(first, int) and first == second)
    copy = pickle.loads(pickle.dumps(first))
    assert copy is first or copy == first


def test_known_simplifications():
    i, j, s = AXES["i"], AXES["j"], SYMBOLS["s0"]
    m = AXES["m"]
    assert (12 * i + m) // 12 is i
    assert (12 * i + m) % 12 is m
    assert 12 * ((12 * i + m) // 12) + (12 * i + m) % 12 is 12 * i + m
    assert (i * s + j) // s is i
    assert (i * s + j) % s is j
    assert 4 * (m // 4) + m % 4 is m
    assert (m // 2) // 3 is m // 6
    assert (m % 6) % 3 is m % 3
    assert (s * s * i) // s is s * i
    assert ((s + 1) * i) // (s + 1) is i
    assert minimum(i, 6, m) is minimum(i, m)
    assert maximum(i, -1) is i
    assert minimum(s, s + 1) is s
    assert product([2, s, 3]) is 6 * s


def test_queries():
    i, j = AXES["i"], AXES["j"]
    assert free_axes(3 * i + j // 2) == ("i", "j")
    assert free_symbols(SYMBOLS["s1"] * i) == ("s1",)
    assert axis_name(i) == "i" and axis_size(j) is SYMBOLS["s0"]
    with pytest.raises(TypeError):
        axis_name(i + 1)
    with pytest.raises(ZeroDivisionError):
        i // 0
    assert coefficient(i // 2, "i") is None
    assert evaluate(host("math.ceil(s0 / 2) + 1", [SYMBOLS["s0"]]), {"s0": 5}) == 4


def test_only_named_variables_are_replaced():
    i, m = AXES["i"], AXES["m"]
    index = 12 * i + m
    assert substitute(index, {"z": 3}) is index
    assert substitute(index, {"i": m, "m": i}) is 12 * m + i
    assert substitute((i + 1) // 2, {"i": 3}) == 2


def test_digits_of_unknown_sizes_join():
    a, b, c, d = (symbol(name, 1) for name in "abcd")
    x = axis("x", a * b * c)
    assert (x // (a * b)) * a * b + ((x // a) % b) * a + x % a == x
    assert ((x // a) % b) * a * d * 4 + (x % a) * d * 4 + d == (x % (a * b)) * d * 4 + d
    assert d * (x // a) * a + d * (x % a) == d * x
    # another multiple, or digits of something else, stay
    assert len((((x // a) % b) * a * d + (x % a) * c).terms) == 2
    assert len((((x // b) % a) * a + x % a).terms) == 2
    for value in range(60):
        index = ((x // a) % b) * a * d + (x % a) * d
        assert evaluate(index, {"x": value, "a": 3, "b": 4, "c": 5, "d": 7}) == value % 12 * 7


def test_digits_of_an_axis_join():
    x = axis("x", 4096)
    assert 16 * ((x // 16) % 8) + x % 16 == x % 128
    assert 3 * (16 * ((x // 16) % 8) + x % 16) + x // 128 == 3 * (x % 128) + x // 128
    assert 256 * (x // 256) + 16 * ((x // 16) % 16) + x % 16 == x
    # digits of something else, or at another power, stay
    assert str(16 * ((x // 32) % 8) + x % 16) == "16*((x // 32) % 8) + (x % 16)"
    for value in (0, 15, 16, 127, 128, 4095):
        assert evaluate(16 * ((x // 16) % 8) + x % 16, {"x": value}) == value % 128
