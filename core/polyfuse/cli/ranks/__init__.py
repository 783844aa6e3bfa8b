"""Subcommands about programs of several processes."""
