"""Byzantine attacks, one file each: what the Byzantine workers send in place of their own vectors."""
