"""A matmul with prologue and epilogue as the text of one Triton function."""
