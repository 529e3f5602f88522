"""The training engine: plain torch and FSDP2, no Ray."""
