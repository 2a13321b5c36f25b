"""Which settings of a training fit and are fastest on a cluster? Branch and bound with proven bounds; fit checks."""
