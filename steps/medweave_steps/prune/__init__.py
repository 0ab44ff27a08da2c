"""A smaller or sparser model of a trained one: pruning by sensitivities, within a tolerance of the validation loss."""
