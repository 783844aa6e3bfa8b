"""What can become of an operator in a sweep."""

AGREE = "agree"
# The operator is random: another seed changes eager's result as well.
DRAWS = "other draws"
MISMATCH = "mismatch"
# A kernel differs from the interpreter: the option `check` found it, whatever eager mode says.
REPORTED = "reported"
RAISES = "raises"
CRASH = "crash"
TIMEOUT = "timeout"
SKIP = "skip"
GOOD = (SKIP, AGREE, DRAWS)
# From best to worst: an operator's status is the worst of its samples.
STATUSES = (SKIP, AGREE, DRAWS, MISMATCH, REPORTED, RAISES, TIMEOUT, CRASH)
