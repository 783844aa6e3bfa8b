from __future__ import annotations

import pickle
import re
import traceback

from polyfuse.base import errors
from polyfuse.base.errors import KernelBuildError, PolyfuseError

CODES = {
    "PolyfuseError": "PF1000",
    "InvalidOptionError": "PF1100",
    "UnsupportedError": "PF1200",
    "InputLayoutError": "PF1300",
    "IRError": "PF1400",
    "VerifyError": "PF1410",
    "ParseError": "PF1420",
    "BackendError": "PF1500",
    "BackendUnavailableError": "PF1510",
    "IncompatibleBackendError": "PF1520",
    "DuplicateBackendError": "PF1530",
    "KernelBuildError": "PF1600",
    "KernelLoadError": "PF1610",
    "KernelLaunchError": "PF1620",
    "WrongCandidateError": "PF1630",
    "CacheError": "PF1700",
    "PackageError": "PF1800",
    "RankError": "PF1900",
}
"""Codes are part of the interface: a new class gets a new one, and none is used again."""


def test_each_class_keeps_its_code_which_tracebacks_show():
    classes = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert {error.__name__: error.code for error in classes} == CODES
    assert len(set(CODES.values())) == len(CODES) and all(re.fullmatch(r"PF\d{4}", c) for c in CODES.values())
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
