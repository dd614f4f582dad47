"""What is computed of the workers' vectors [m, d] and knows nothing of rules or attacks: means, lengths, inner products."""
