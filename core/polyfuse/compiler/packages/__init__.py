"""Packages: exported models and single operators, compiled to one file that loads without the compiler.

Loading them lives in `polyfuse.aot`, which nothing here may be imported by.
"""
