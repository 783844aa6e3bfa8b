"""A distribution with a backend, to start from: `command.py` is the subcommand, `templates` its files."""
