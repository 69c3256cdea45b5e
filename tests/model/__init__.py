"""Small models of the protocols, random runs that compare engines, and checked histories."""
