"""What the compiler says of its own work: reports, explanations, dumps of each stage and their replay.

Nothing here takes part in compiling: without it, the same programs come out.
"""
