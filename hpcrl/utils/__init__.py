"""Small helpers that every floor above may use."""
