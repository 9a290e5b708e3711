"""Ray: connecting to a cluster, and a pool of actors."""
