from __future__ import annotations

import pickle
import re
import traceback

from polyfuse.base import errors
from polyfuse.base.errors import KernelBuildError, PolyfuseError


def test_each_class_has_a_code_that_tracebacks_show():
    classes = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    codes = [error.code for error in classes]
    assert len(set(codes)) == len(codes) and all(re.fullmatch(r"PF\d{4}", code) for code in codes)
    error = errors.CacheError("no folder", "name one")
    assert str(error) == "no folder; name one"
    shown = "".join(traceback.format_exception(error)).splitlines()
    assert shown[-1] == f"{errors.CacheError.code}, explained in docs/reference/errors.md"


def test_cause_and_fix_make_one_sentence():
    assert str(PolyfuseError("it broke", "mend it")) == "it broke; mend it"
    assert str(PolyfuseError("it broke")) == "it broke"


def test_build_error_shows_command_and_output():
    error = KernelBuildError("failed", "look", command=("cc", "-O3"), output="x" * 5000, name="k")
    text = str(error)
    assert "cc -O3" in text and "[1000 more characters]" in text


def test_build_error_survives_pickling():
    error = KernelBuildError("failed", "look", command=("cc",), output="out", name="k")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.cause, copy.fix, copy.command, copy.output, copy.name) == (
        "failed",
        "look",
        ("cc",),
        "out",
        "k",
    )


def test_public_names_are_the_whole_tree():
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, PolyfuseError)
    }
    assert defined == set(errors.__all__)
