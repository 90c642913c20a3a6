"""`python -m torchyard`: the command `torchyard`, where its folder is not on PATH."""

from torchyard.cli.console import main

if __name__ == "__main__":
    main()
