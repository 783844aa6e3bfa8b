"""Options of torch's own compiler: which there are (`known`), which of ours do the same (`counterparts`)."""
