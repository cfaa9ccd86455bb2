"""`python -m vlrl` is `vlrl`: what launchers that start a module need."""

from vlrl.cli import main

if __name__ == "__main__":
    main()
