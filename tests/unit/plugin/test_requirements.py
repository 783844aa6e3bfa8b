"""Requirements of manifests mean what they mean to pip."""

from __future__ import annotations

import itertools

from packaging.requirements import Requirement

from polyfuse.plugin.session.discovery import is_within, plain_requirement

VERSIONS = (
    "1",
    "1.0",
    "1.9",
    "1.10",
    "1.10.0",
    "1.10.1",
    "2",
    "2.0.0",
    "21.0.0",
    "1.10+cpu",
    "2.13.0+cu130.x",
)
LIMITS = ("", ">=1.10", "<2", "<=1.10", ">1.10", ">=1,<2", ">= 1.9 , < 1.10", ">=1.10.0,<=2.0", ">0", "<1")
MORE = (
    "a==1.0",
    "a~=1.4",
    "a!=2",
    "a[x]>=1",
    "a>=1; python_version < '3'",
    "a>=1.0rc1",
    "a @ file:///a",
    ">=1",
)


def test_plain_ones_agree_with_packaging():
    for limits, version in itertools.product(LIMITS, VERSIONS):
        found = plain_requirement(f"some-package{limits}")
        assert found is not None and found[0] == "some-package"
        wanted = Requirement(f"some-package{limits}").specifier.contains(version, prereleases=True)
        assert is_within(found[1], version) == wanted, (limits, version)


def test_others_are_left_to_packaging():
    assert [plain_requirement(text) for text in MORE] == [None] * len(MORE)
    assert [is_within("<2", version) for version in ("2.0rc1", "1.0.dev3", "1!1.0", "1.post1", "")] == [
        None
    ] * 5
