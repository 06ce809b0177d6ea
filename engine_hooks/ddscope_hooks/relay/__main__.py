"""`python -m ddscope_hooks.relay`: started by `sender`, ends with the pipe to it."""

from ddscope_hooks.relay.receiver import main

if __name__ == "__main__":
    main()
