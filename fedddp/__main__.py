"""`python -m fedddp` is the `fedddp` command, also under torchrun."""

from fedddp.cli import main

if __name__ == "__main__":
    main()
