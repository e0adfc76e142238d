"""The user's training loop: what ties meter and tuner to it and never gets in its way."""
