"""What Dynamo makes of a frame, so that it can be stored and used again without tracing the frame.

frames.py           how a frame comes here before Dynamo traces it, and what Dynamo made of it
guards.py           its guards, as a record and built again on the values of another process
shortcuts.py        what Dynamo is spared meanwhile
spared_imports.py   what AOTAutograd imports and no compilation needs
convolutions.py     of inputs whose sizes vary, without guards on them
conversions.py      modules whose parameters are converted in place
shared_inputs.py    inputs that overlap, of which one is written
written_inputs.py   inputs that are written, and overlap others at later calls
buckets.py          graphs that DDPOptimizer cuts, and what calls their buckets
bucket_layouts.py   the first call of a bucket, which tells torch how the next one's inputs lie
"""
