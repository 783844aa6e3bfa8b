#!/bin/sh
# Does one wheel of this plugin work with the torch of this environment?
#
#   check_wheel.sh WHEEL_FOLDER
#
# Builds the wheel into the folder unless one is there, installs it into an empty folder, and runs the conformance
# kit and a compiled function. Run it in one environment after another with the same folder: the digest that it
# prints shows that the wheel is the same. It needs polyfuse and, for the build, hatchling.
set -eu
wheels=$1
here=$(cd "$(dirname "$0")" && pwd)
offline="--no-deps --no-index --disable-pip-version-check --quiet"
ls "$wheels"/*.whl > /dev/null 2>&1 ||
  python -m pip wheel $offline --no-build-isolation --wheel-dir "$wheels" "$here"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python -m pip install $offline --target "$site" "$wheels"/*.whl
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" POLYFUSE_CACHE_DIR="$site/cache"
sha256sum "$wheels"/*.whl
python -c 'import torch
f = lambda x: (x * 2).tanh().sum(-1)
x = torch.randn(5, 7)
options = {"strict": True, "backends": ["numpy"]}
torch.testing.assert_close(torch.compile(f, backend="polyfuse", options=options)(x), f(x))
print("compiled with torch", torch.__version__)'
python -m polyfuse conformance numpy --quick | tail -1
