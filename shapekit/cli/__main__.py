"""`python -m shapekit.cli` is the `shapekit` command."""

from shapekit.cli.main import main

if __name__ == "__main__":
    main()
