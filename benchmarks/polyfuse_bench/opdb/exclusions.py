"""Operators whose results cannot be compared, each with the reason."""

from __future__ import annotations

UNINITIALISED = "the result is uninitialised memory"

EXCLUDED = {
    "empty": UNINITIALISED,
    "empty_like": UNINITIALISED,
    "empty_permuted": UNINITIALISED,
    "empty_strided": UNINITIALISED,
    "new_empty": UNINITIALISED,
    "new_empty_strided": UNINITIALISED,
    "resize_": "the grown part of the result is uninitialised memory",
    "resize_as_": "the grown part of the result is uninitialised memory",
}
