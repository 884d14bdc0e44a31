"""Rematerialization: `checkpoint`, its policies, memory budgets, and what has to be restored to run
a function again.
"""
