"""Options of torch's own compiler: which there are, and which of ours do the same (`counterparts`)."""
