"""memory_budget: limits the bytes that a function saves for its gradient.

While the function runs, a tape (`tape.py`) records the operators that reach the bottom of the
stack, and each level that records the function passes the tensors that it saves to saved-tensor
hooks, which store their positions on the tape. The tape is cut into stages (`stages.py`), and a
plan (`plan.py`, csrc/reverse/checkpoint_schedule.h) determines which values to hold, and which to
recompute from them. When the reverse pass unpacks saved tensors, operators of the tape run again
(`region.py`). The function itself runs once.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (2021), for recomputing operators at run
time; Griewank and Walther, "Algorithm 799: Revolve" (2000), and Beaumont et al., "Optimal
checkpointing for heterogeneous chains" (2019), for the plan.
"""

from torchlayers.remat.budget.region import budgeted as budgeted
