"""What people look at: figures, the report and the read-only dashboard."""
