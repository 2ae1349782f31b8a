"""``python -m oppo_sim``: the command line where ``oppo`` is not on the path."""

from oppo_sim.cli.main import main

if __name__ == "__main__":
    main()
