"""The page of a run: a single file that answers the question, and opens from disk.

Python writes the parts that need no script (answer, tables, setting, trust); assets/*.js draw the selected point.
"""
