"""Data sources: one file each, named after it, a class `Source`.

The contract is in fedddp/core/data.py; _settings.py has bases for images and tables of which a share is used.
"""
