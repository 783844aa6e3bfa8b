"""Autotuning: what can be done in several ways is timed, and the fastest is used.

A `Candidate` is one way, a `Trial` what one took, a `Record` all trials of a problem (`cache/timings.py`); a
`TuningDecision` goes into the schedule. `gemm_choice` decides who does matmuls and other calls, `kernels` in
which configuration of which backend a kernel is generated, and what is fused; `tuner` runs their searches.

`candidate`, `segments`: what is timed. `search`: how the next candidates are chosen. `benchmark`, `worker`:
where they run. `pruning`, `cost_model`: which are not worth building. `alternatives`, `gemm_candidates`,
`gemm_search`: what may do a call. `report`: what users see of it.
"""
