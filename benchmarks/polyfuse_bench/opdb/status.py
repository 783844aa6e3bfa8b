"""What can become of an operator in a sweep."""

AGREE = "agree"
# The operator is random: another seed changes eager's result as well.
DRAWS = "other draws"
MISMATCH = "mismatch"
RAISES = "raises"
CRASH = "crash"
TIMEOUT = "timeout"
SKIP = "skip"
GOOD = (SKIP, AGREE, DRAWS)
# From best to worst: an operator's status is the worst of its samples.
STATUSES = (SKIP, AGREE, DRAWS, MISMATCH, RAISES, TIMEOUT, CRASH)
