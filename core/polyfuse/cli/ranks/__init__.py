"""Subcommands about programs of several processes. They print; what they measure is in `distributed`."""
