"""What runs the job scripts."""
