"""Clients of servers that can hold a remote cache: `redis`."""
