"""What a panel looks like: figures and pages."""
