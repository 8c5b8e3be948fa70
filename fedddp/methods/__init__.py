"""Methods: one file each, named after it, a class `Method`; the contract is fedddp/rounds/method.py."""
