"""A kernel as the text of a program that builds its Halide pipeline.

`kernel` begins at a `Kernel` for the CPU, `device_kernel` and `device_plan` at one for a GPU; `values` and
`ops` write its statements, `address` and `index_checks` its indices. Text alone, without Halide: what it
calls is in `library`, and how loops run in `schedules`.
"""
