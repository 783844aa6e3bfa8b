"""The compiler: its stages in order, the session they share, and reports of what they did."""
