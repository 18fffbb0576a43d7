"""`gmt explore`: a local page in which a person reads texts with a model, follows tokens and touches the memory."""
