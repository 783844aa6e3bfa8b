"""`polyfuse bench`: a model in eager mode, by torch's default compiler, and by each backend, side by side.

subject    what is measured: a program, a function of a module, a model of `transformers`
engine     who runs it: eager mode, a compiler that torch knows, or a backend of Polyfuse
child      one engine in a process of its own: compiles, checks, and runs on request
process    that process, from outside
campaign   all engines at all sizes, in turn, within a budget; what could not be run, and why
statistics what the times say, and how sure that is
table      the results in a terminal
plot       the results as a picture
"""
