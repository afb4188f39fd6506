"""``python -m fusescope``: the same as the ``fusescope`` command."""

from fusescope.cli import main

if __name__ == "__main__":
    main()
