"""Programs of several processes: what their collectives cost (`costs`, measured by `measure`), and one rank
of a larger world that is played in one process (`simulated`, `timeline`).
"""
