"""The cases of the conformance kit, by subject, and what they are written with (`builder`, `loops`,
`values`). Which of them a backend must pass says `testing.matrix`.
"""
