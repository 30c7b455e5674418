"""``python -m tacit.cli``."""

from tacit.cli import main

if __name__ == "__main__":
    main()
