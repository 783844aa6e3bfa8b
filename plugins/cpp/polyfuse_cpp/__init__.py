"""Polyfuse backend that generates C++ for the CPU."""
