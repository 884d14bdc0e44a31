"""Compares the cost of torchlayers with that of torch.func and of the engine under both."""
