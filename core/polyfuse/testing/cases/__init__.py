"""The cases of the conformance kit, by subject, and what they are written with."""
