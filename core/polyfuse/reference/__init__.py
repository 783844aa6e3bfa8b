"""The reference interpreter as a backend: the oracle, and what runs where no code generator can."""
