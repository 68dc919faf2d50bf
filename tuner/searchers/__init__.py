"""Search algorithms: each proposes configurations by ask and tell."""
