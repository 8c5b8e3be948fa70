"""The papers' tables and figures by name: what each is made of, how far it has come, and the work that is left.

A file in configs/reproduce describes one table (fedddp/reproduce/protocol.py), configs/reproduce/results.json holds
every number that was found, with its command, seeds and date (results.py), and state.py compares them with the
published ones. `fedddp reproduce` runs what is missing (work.py); the docs' tables are written of that file (docs.py).
"""
