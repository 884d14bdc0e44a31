"""Rematerialization: `checkpoint`, its policies, memory budgets, and the ambient state to restore
when a function is recomputed.
"""
