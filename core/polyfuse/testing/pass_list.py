"""What a backend has passed before: a file of labels, one a line, that a run of the kit may only add to."""

from __future__ import annotations

from pathlib import Path

from polyfuse.testing.matrix import Matrix, Status


def update_pass_list(path: Path, matrix: Matrix) -> tuple[str, ...]:
    """Add what passed to the file, and return what it lists that was tried and did not pass.

    Nothing is taken out of the file: who gives up a cell deletes its line by hand. A label that this run did
    not try, such as those that a quick run leaves out, stays as it is.
    """
    known = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    worst: dict[str, Status] = {}
    for cell in matrix.cells:
        if worst.get(cell.label, Status.PASS) is Status.PASS:
            worst[cell.label] = cell.status
    passed = {label for label, status in worst.items() if status is Status.PASS}
    path.write_text("".join(f"{label}\n" for label in sorted(known | passed)), encoding="utf-8")
    return tuple(sorted(known & (worst.keys() - passed)))
