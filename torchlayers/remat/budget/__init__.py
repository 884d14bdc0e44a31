"""memory_budget: what a function keeps for its gradient stays within a number of bytes.

While the function runs, a tape (`tape.py`) notes the operators that reach the bottom of the stack,
and each level that records it gives the tensors that it saves to saved-tensor hooks, which keep
their places on the tape. What the tape would hold in memory is cut into stages (`stages.py`), and a
plan (`plan.py`, csrc/reverse/chain_plan.h) tells what to hold and what to compute again, from what.
The reverse pass asks for the saved tensors, and operators of the tape run once more (`region.py`).
The function itself runs once.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (2021), for computing operators again at
run time; Griewank and Walther, "Algorithm 799: Revolve" (2000), and Beaumont et al., "Optimal
checkpointing for heterogeneous chains" (2019), for the plan.
"""

from torchlayers.remat.budget.region import budgeted as budgeted
