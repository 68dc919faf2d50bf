"""What can be tried: models, clusters, recipes, parallel configurations and their rules."""
