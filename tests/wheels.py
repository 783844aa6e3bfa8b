"""Projects of examples installed from their wheels, without pip, whose processes take seconds each."""

from __future__ import annotations

import zipfile
from pathlib import Path


def install(project: Path, folder: Path) -> Path:
    """Build the wheel of a project as pip does, and lay it out in `folder`, which is returned: pure Python
    needs no more. Its modules are found from there, and so are its entry points."""
    from hatchling.builders.wheel import WheelBuilder

    folder.mkdir(parents=True, exist_ok=True)
    for wheel in WheelBuilder(str(project)).build(directory=str(folder / "wheels"), versions=["standard"]):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder
