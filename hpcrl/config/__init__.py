"""The one schema of every option, with its checks; imports no torch and touches no hardware."""
