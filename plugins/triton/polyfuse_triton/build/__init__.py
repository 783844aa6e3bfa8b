"""From Triton text to machine code. Runs in build workers, without a GPU."""
