"""The page of a run: one file that answers the question, to be opened from disk.

Rule: Python writes what is there without a script (answer, tables, setting, trust); assets/*.js draw what is picked.
"""
