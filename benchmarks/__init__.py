"""What torchlayers costs beside torch.func and beside the engine both are built on."""
