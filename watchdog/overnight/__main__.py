"""`python -m overnight`: the same as the console script."""

from overnight.cli import main

if __name__ == "__main__":
    main()
