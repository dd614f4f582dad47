"""A round of Algorithm 2: who is Byzantine, the gradients, the attack on them, the server's answer, and the record of it."""
