"""How the training set is shared out among the workers, one file each."""
