"""Stages, their graph, and what runs them. Imports no torch, ray or transformers; of hpcrl only `hpcrl.config`."""
