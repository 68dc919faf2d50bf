"""The decoder: parameters, layers and stages, written once for every layout."""
