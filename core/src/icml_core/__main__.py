"""``python -m icml_core``: the command line where the script ``icml`` is not on the path."""

from icml_core.cli import main

if __name__ == "__main__":
    main()
