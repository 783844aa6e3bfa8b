"""`python -m polyfuse_bench`."""

from polyfuse_bench.run import main

raise SystemExit(main())
