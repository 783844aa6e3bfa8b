from __future__ import annotations

import subprocess
import sys

from polyfuse.base.settings import child_environment


def test_a_worker_imports_no_torch_and_ends_with_its_input():
    script = (
        "import sys, polyfuse.workers.main as m\n"
        "assert m.main() == 0\n"
        "assert 'torch' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=600,
        env=child_environment(),
    )
