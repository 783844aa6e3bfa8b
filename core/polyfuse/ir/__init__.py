"""The intermediate representation: scalar expressions (`expr`) under graph nodes (`nodes`, `graph`), and
statements (`statements`) in kernels (`kernel`), with the tables of operations (`ops`) that give them
meaning.

Data alone: nothing here decides anything, and nothing knows who made it or what becomes of it.
"""
