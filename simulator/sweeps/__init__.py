"""Points: one point's outcome and what it leaves behind; who plays many of them; outcomes that are kept.

Rule: a point's outcome depends on the point alone, so neither order nor place nor number of processes changes it.
"""
