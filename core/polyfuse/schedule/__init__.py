"""Scheduling: dependencies, fusion, order, lifetimes, kernels."""

from polyfuse.schedule.result import Call, Decision, Launch, Schedule
from polyfuse.schedule.schedule import schedule_graph

__all__ = ["Call", "Decision", "Launch", "Schedule", "schedule_graph"]
